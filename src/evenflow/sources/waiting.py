"""How a read waits: until another task on the same loop wakes it, or until a deadline."""

from __future__ import annotations

import asyncio


class Waiter:
    """One task waits; other callbacks on the same loop wake it.

    A wake-up without a waiting task is not remembered, so check the condition before each wait.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None

    async def until(self, time_s: float | None) -> None:
        """Waits until `wake` is called or, with a time on the loop's clock, until then at the latest."""
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
        """Wakes after a delay that starts with the first call; further calls during the delay share the wake-up."""
        if self._future is not None and self._soon is None:
            self._soon = self._loop.call_later(wait_s, self.wake)
