"""The processes of the demo: a fleet of consumers for each group. A fleet ends only what it has started."""

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
"""The state of a consumer process. died: without a request, which no consumer should."""

STOP_S = 40.0
"""A consumer has its own deadline, of 30 s; this one is behind it."""


class ConsumerProcess:
    def __init__(self, name: str, process: Process, started_s: float) -> None:
        self.name = name
        self.process = process
        self.started_s = started_s
        self.asked: Literal["stop", "kill"] | None = None

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
        return "it is still running"
    if returncode >= 0:
        return f"it ended with code {returncode}"
    try:
        return f"it was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"it was ended by signal {-returncode}"


class Fleet:
    def __init__(self, folder: Path, clock: Clock, *, consumer: str, name: str, logs: Path) -> None:
        """`consumer` is the module that each process runs; its arguments are the folder and its name: `name`-1, ..."""
        self._folder = folder
        self._clock = clock
        self._module = consumer
        self._name = name
        self._logs = logs
        self.consumers: list[ConsumerProcess] = []
        self._added = 0

    @property
    def running(self) -> list[ConsumerProcess]:
        """Those that were not asked to end, the oldest first."""
        return [consumer for consumer in self.consumers if consumer.fate == "running"]

    async def add(self) -> ConsumerProcess:
        # Counted first: two may be added at the same time.
        self._added += 1
        name = f"{self._name}-{self._added}"
        process = await start(self._module, str(self._folder), name, log=self._log(name))
        consumer = ConsumerProcess(name, process, self._clock.now())
        self.consumers.append(consumer)
        return consumer

    def stop(self, consumer: ConsumerProcess) -> None:
        """SIGTERM: it drains, commits, hands over and ends."""
        consumer.asked = consumer.asked or "stop"
        parent_watch.send(consumer.process, signal.SIGTERM)
        parent_watch.send(consumer.process, signal.SIGCONT)

    def kill(self, consumer: ConsumerProcess) -> None:
        """SIGKILL: as if its machine had died."""
        consumer.asked = "kill"
        parent_watch.send(consumer.process, signal.SIGKILL)

    def stall(self, consumer: ConsumerProcess) -> None:
        """SIGSTOP: it is there, and does nothing, and does not know."""
        parent_watch.send(consumer.process, signal.SIGSTOP)

    def wake(self, consumer: ConsumerProcess) -> None:
        parent_watch.send(consumer.process, signal.SIGCONT)

    async def end(self, within_s: float = STOP_S) -> None:
        """SIGTERM to all of them; SIGKILL to those that still run after `within_s`."""
        for consumer in self.running:
            self.stop(consumer)
        await end([consumer.process for consumer in self.consumers], within_s)

    def last_words(self, consumer: ConsumerProcess) -> str:
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
    """SIGTERM to all of them; SIGKILL to those that still run after `within_s`."""
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
