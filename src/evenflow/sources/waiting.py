"""How a read waits for what somebody else brings: until it is woken, or until a time. What for, readers know."""

from __future__ import annotations

import asyncio


class Waiting:
    """One task waits; whoever is on the same loop wakes it. Nothing is remembered: look again before you wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None

    async def until(self, time_s: float | None) -> None:
        """Until `wake`, and with a time, on the loop's clock, no longer than that."""
        self._future = self._loop.create_future()
        timer = None if time_s is None else self._loop.call_at(time_s, self.wake)
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def wake_in(self, wait_s: float) -> None:
        """So much later, counted from the first who says so: what comes meanwhile shares one wake-up."""
        if self._future is not None and self._soon is None:
            self._soon = self._loop.call_later(wait_s, self.wake)
