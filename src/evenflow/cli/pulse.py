"""How a supervisor knows that its workers are well: each tells, over a pipe, that its event loop turns and has joined.

What a worker tells says nothing of the store or the source: one that waits for them is as well as one that works. Needs
no extra, like the worker itself.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from evenflow.signals import Joined, Signal

if TYPE_CHECKING:
    from evenflow.ports import Clock

TURN_S = 1.0
STILL_S = 60.0
"""A loop that does not turn for so long is stuck, in a handler that never awaits for instance."""
TURNS, JOINED = b".", b"j"


class Pulse:
    """In the worker: a listener of its processor. The first thing that happens is on the event loop, and starts it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_started = False
        os.set_blocking(descriptor, False)

    def __call__(self, signal: Signal) -> None:
        if isinstance(signal, Joined):
            self._tell(JOINED)
        if not self._is_started:
            loop = asyncio.get_running_loop()
            self._is_started = True
            self._turn(loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tell(TURNS)
        loop.call_later(TURN_S, self._turn, loop)

    def _tell(self, what: bytes) -> None:
        try:
            os.write(self._descriptor, what)
        except OSError:
            pass  # nobody listens, or has not for a long time


class Health:
    """In the supervisor: what is known of one worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_s: float | None = None
        self._receiving = -1
        self.has_joined = False

    @property
    def is_stuck(self) -> bool:
        """One that never told anything is not: it starts, or waits for something to be there."""
        return self._turned_s is not None and self._clock.now() - self._turned_s > STILL_S

    def begin(self) -> int:
        """Another life: the end of a pipe that is the worker's."""
        self.end()
        self._receiving, sending = os.pipe()
        os.set_blocking(self._receiving, False)
        asyncio.get_running_loop().add_reader(self._receiving, self._hear)
        return sending

    def end(self) -> None:
        if self._receiving >= 0:
            asyncio.get_running_loop().remove_reader(self._receiving)
            os.close(self._receiving)
        self._receiving, self._turned_s, self.has_joined = -1, None, False

    def _hear(self) -> None:
        if not (told := os.read(self._receiving, 4096)):
            self.end()
            return
        self._turned_s = self._clock.now()
        self.has_joined = self.has_joined or JOINED in told
