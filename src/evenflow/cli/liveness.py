"""How the supervisor knows that its workers are alive: each reports over a pipe that its event loop runs, and that it
has joined the group.

The report says nothing about the store or the source: a worker that waits for them is alive. This module needs no
extra, like the worker itself.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from evenflow.signals import Joined, Signal

if TYPE_CHECKING:
    from evenflow.ports import Clock

REPORT_S = 1.0
STUCK_S = 60.0
"""An event loop without a report for this long is stuck, for instance in a handler that never awaits."""
RUNNING, JOINED = b".", b"j"


class LivenessSender:
    """Runs in the worker, as a listener of its processor. The first signal comes from the event loop and starts it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_started = False
        os.set_blocking(descriptor, False)

    def __call__(self, signal: Signal) -> None:
        if isinstance(signal, Joined):
            self._write(JOINED)
        if not self._is_started:
            loop = asyncio.get_running_loop()
            self._is_started = True
            self._report(loop)

    def _report(self, loop: asyncio.AbstractEventLoop) -> None:
        self._write(RUNNING)
        loop.call_later(REPORT_S, self._report, loop)

    def _write(self, report: bytes) -> None:
        try:
            os.write(self._descriptor, report)
        except OSError:
            pass  # the supervisor has ended, or the pipe is full


class WorkerLiveness:
    """Runs in the supervisor: what it knows of one worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported_s: float | None = None
        self._receiving = -1
        self.has_joined = False

    @property
    def is_stuck(self) -> bool:
        """False for a worker that has not reported yet: it is starting, or waits for the store or the source."""
        return self._reported_s is not None and self._clock.now() - self._reported_s > STUCK_S

    def begin(self) -> int:
        """Called for each new process: the descriptor that it writes its reports to."""
        self.end()
        self._receiving, sending = os.pipe()
        os.set_blocking(self._receiving, False)
        asyncio.get_running_loop().add_reader(self._receiving, self._receive)
        return sending

    def end(self) -> None:
        if self._receiving >= 0:
            asyncio.get_running_loop().remove_reader(self._receiving)
            os.close(self._receiving)
        self._receiving, self._reported_s, self.has_joined = -1, None, False

    def _receive(self) -> None:
        if not (reports := os.read(self._receiving, 4096)):
            self.end()
            return
        self._reported_s = self._clock.now()
        self.has_joined = self.has_joined or JOINED in reports
