"""The processes of a demo: one generator and any number of consumers. It ends only what it has started."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence
    from pathlib import Path

    from evenflow.ports import Clock

Fate: TypeAlias = Literal["running", "stopping", "killed", "died", "ended"]
"""What became of a consumer. died: by itself, which no consumer should."""

STOP_S = 40.0
"""A consumer has its own deadline, of 30 s; this one is behind it."""


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
        # Who is asked before it has begun has no ear for it yet, and ends by the signal itself.
        is_clean = self.process.returncode in (0, -signal.SIGTERM)
        return "ended" if self.asked == "stop" and is_clean else "died"


class Fleet:
    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._generator: Process | None = None
        self.consumers: list[Consumer] = []

    @property
    def running(self) -> list[Consumer]:
        """Those that nobody has asked to end, the oldest first."""
        return [consumer for consumer in self.consumers if consumer.fate == "running"]

    async def generate(self, rate: float) -> None:
        self._generator = await self._start("generator", "evenflow.cli.demo.generator", str(rate))

    @property
    def generates(self) -> bool:
        return self._generator is not None and self._generator.returncode is None

    async def add(self) -> Consumer:
        name = f"consumer-{len(self.consumers) + 1}"
        process = await self._start(name, "evenflow.cli.demo.consumer", name)
        consumer = Consumer(name, process, self._clock.now())
        self.consumers.append(consumer)
        return consumer

    def stop(self, consumer: Consumer) -> None:
        """SIGTERM: it drains, commits, hands over and ends."""
        consumer.asked = consumer.asked or "stop"
        _signal(consumer.process, kill=False)

    def kill(self, consumer: Consumer) -> None:
        """SIGKILL: as if its machine had died."""
        consumer.asked = "kill"
        _signal(consumer.process, kill=True)

    async def end_generator(self) -> None:
        if self._generator is not None:
            await _end([self._generator], STOP_S)

    async def end(self, within_s: float = STOP_S) -> None:
        """Everything, gently; what is left after that, not gently."""
        for consumer in self.running:
            self.stop(consumer)
        processes = [consumer.process for consumer in self.consumers]
        await _end([*processes, self._generator] if self._generator is not None else processes, within_s)

    def last_words(self, consumer: Consumer) -> str:
        """The last line of its log: why it died."""
        lines = (self._folder / f"{consumer.name}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    async def _start(self, name: str, module: str, argument: str) -> Process:
        with (self._folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                str(self._folder),
                argument,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C must reach only the demo, which ends the others in order.
                start_new_session=True,
            )


async def _end(processes: Sequence[Process], within_s: float) -> None:
    waits = [asyncio.create_task(process.wait()) for process in processes]
    try:
        for process in processes:
            _signal(process, kill=False)
        if waits:
            await asyncio.wait(waits, timeout=within_s)
    finally:
        for process in processes:
            _signal(process, kill=True)
        if waits:
            await asyncio.wait(waits)


def _signal(process: Process, *, kill: bool) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            if kill:
                process.kill()
            else:
                process.terminate()
