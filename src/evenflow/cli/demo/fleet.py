"""The processes of a demo: one generator and any number of consumers. It ends only what it has started.

The example in `examples/home_security` has its fleets from here too: one a group, with consumers of its own.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

from evenflow.cli import parent_watch

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence
    from pathlib import Path

    from evenflow.ports import Clock

Fate: TypeAlias = Literal["running", "stopping", "killed", "died", "ended"]
"""What became of a consumer. died: by itself, which no consumer should."""

STOP_S = 40.0
"""A consumer has its own deadline, of 30 s; this one is behind it."""
CONSUMER, GENERATOR = "evenflow.cli.demo.consumer", "evenflow.cli.demo.generator"


class Consumer:
    def __init__(self, name: str, process: Process, started_s: float) -> None:
        self.name = name
        self.process = process
        self.started_s = started_s
        self.asked: Literal["stop", "kill"] | None = None
        self.gone_s: float | None = None
        """When it was first seen to be gone."""

    @property
    def fate(self) -> Fate:
        if self.process.returncode is None:
            return "running" if self.asked is None else "stopping"
        if self.asked == "kill":
            return "killed"
        # Who was retired from elsewhere ends well, too. Who is asked before it has begun has no ear for it yet, and
        # ends by the signal itself.
        clean = (0, -signal.SIGTERM) if self.asked == "stop" else (0,)
        return "ended" if self.process.returncode in clean else "died"


def ended_how(returncode: int | None) -> str:
    """By which signal, by its name, or with which code a process ended."""
    if returncode is None:
        return "it runs"
    if returncode >= 0:
        return f"it ended with code {returncode}"
    try:
        return f"it was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"it was ended by signal {-returncode}"


class Fleet:
    def __init__(
        self, folder: Path, clock: Clock, *, consumer: str = CONSUMER, name: str = "consumer", logs: Path | None = None
    ) -> None:
        """`consumer` is the module that each runs, given the folder and a name of its own: `name`-1, `name`-2, ..."""
        self._folder = folder
        self._clock = clock
        self._module = consumer
        self._name = name
        self._logs = logs or folder
        self._generator: Process | None = None
        self.consumers: list[Consumer] = []
        self._added = 0

    @property
    def running(self) -> list[Consumer]:
        """Those that nobody has asked to end, the oldest first."""
        return [consumer for consumer in self.consumers if consumer.fate == "running"]

    async def generate(self, rate: float) -> None:
        self._generator = await start(GENERATOR, str(self._folder), str(rate), log=self._log("generator"))

    @property
    def generates(self) -> bool:
        return self._generator is not None and self._generator.returncode is None

    async def add(self) -> Consumer:
        # Counted first: two may be added at the same time.
        self._added += 1
        name = f"{self._name}-{self._added}"
        process = await start(self._module, str(self._folder), name, log=self._log(name))
        consumer = Consumer(name, process, self._clock.now())
        self.consumers.append(consumer)
        return consumer

    def stop(self, consumer: Consumer) -> None:
        """SIGTERM: it drains, commits, hands over and ends."""
        consumer.asked = consumer.asked or "stop"
        parent_watch.send(consumer.process, signal.SIGTERM)
        parent_watch.send(consumer.process, signal.SIGCONT)

    def kill(self, consumer: Consumer) -> None:
        """SIGKILL: as if its machine had died."""
        consumer.asked = "kill"
        parent_watch.send(consumer.process, signal.SIGKILL)

    def stall(self, consumer: Consumer) -> None:
        """SIGSTOP: it is there, and does nothing, and does not know."""
        parent_watch.send(consumer.process, signal.SIGSTOP)

    def wake(self, consumer: Consumer) -> None:
        parent_watch.send(consumer.process, signal.SIGCONT)

    async def end_generator(self) -> None:
        if self._generator is not None:
            await end([self._generator], STOP_S)

    async def end(self, within_s: float = STOP_S) -> None:
        """Everything, gently; what is left after that, not gently."""
        for consumer in self.running:
            self.stop(consumer)
        processes = [consumer.process for consumer in self.consumers]
        await end([*processes, self._generator] if self._generator is not None else processes, within_s)

    def last_words(self, consumer: Consumer) -> str:
        """How it ended, and the last line of its log: why it died."""
        lines = self._log(consumer.name).read_text(errors="replace").splitlines()
        how = ended_how(consumer.process.returncode)
        return f"{how}; its log ends with: {lines[-1]}" if lines else f"{how}, and its log is empty"

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


async def start(module: str, *arguments: str, log: Path) -> Process:
    """A process of one's own program, on a leash: see `evenflow.cli.parent_watch`."""
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=file,
            stderr=file,
            # Ctrl-C must reach only the demo, which ends the others in order.
            start_new_session=True,
        )


async def end(processes: Sequence[Process], within_s: float) -> None:
    """Gently; what is left after that, not gently."""
    waits = [asyncio.create_task(process.wait()) for process in processes]
    try:
        for process in processes:
            parent_watch.send(process, signal.SIGTERM)
            # One that is stalled would not hear it.
            parent_watch.send(process, signal.SIGCONT)
        if waits:
            await asyncio.wait(waits, timeout=within_s)
    finally:
        for process in processes:
            parent_watch.send(process, signal.SIGKILL)
        if waits:
            await asyncio.wait(waits)
