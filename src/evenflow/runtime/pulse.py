"""Measures on the event loop for how long it did not run: a handler blocked it, or the process was stopped.

It counts on the instance's own clock. So what a lease ran out for can be told apart: the store that did not answer, and
the loop that could not ask it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 0.5
LEAST_S = 0.1
"""A loop that is so much late is busy, not blocked."""
KEPT = 32


class LoopPulse:
    def __init__(self, now: Callable[[], float], every_s: float = EVERY_S) -> None:
        self._now = now
        self._every_s = every_s
        self._due_s = now() + every_s
        self._gaps: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """From when to when it did not run, the newest last."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_s = self._now() + self._every_s
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._heartbeat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def blocked_s(self, since_s: float) -> float:
        """How long the loop did not run since then, at least: a block may have begun up to one period sooner."""
        now_s = self._now()
        gaps = [*self._gaps, (self._due_s, now_s)]
        return sum(
            end_s - max(begin_s, since_s)
            for begin_s, end_s in gaps
            if end_s - begin_s >= LEAST_S and end_s > max(begin_s, since_s)
        )

    def _heartbeat(self) -> None:
        now_s = self._now()
        if now_s - self._due_s >= LEAST_S:
            self._gaps.append((self._due_s, now_s))
        self.start()
