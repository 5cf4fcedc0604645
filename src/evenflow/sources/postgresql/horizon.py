"""How far a feed may be read, looked up once for all readers of a process, and no oftener than it makes sense.

While there is something to read, nobody looks: a look tells of all that may be read by then. When readers wait, looks
follow each other quickly at first. Then one rings for a wake-up, and sleeps: whoever begins to write rings from then on
when it commits. Those who had begun to write before are known by the look: while there are any, it is looked on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.drivers.postgresql.listener import NotificationListener
    from evenflow.sources.postgresql.client import Look

logger = logging.getLogger("evenflow")

FIRST_S = 0.002
QUICK_MOST_S = 0.05
"""Looks follow each other in so long at most while somebody writes."""
POLL_S = 0.1
"""The same while nobody does, where nobody can ring."""
SLEEP_S = 1.0
RING_MOST_MS = 2**31 - 1
TIDY_S = 60.0


class _Waiter:
    def __init__(self, place: int, after: int) -> None:
        self.place, self.after = place, after
        self.told: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
        self.seen: Look | None = None
        """A look that began after this one began to wait, and showed nothing."""
        self.is_late = False
        """Its time is over: any look will do."""


class Tide:
    def __init__(
        self,
        look: Callable[[int], Awaitable[Look]],
        tidy: Callable[[], Awaitable[object]],
        listener: NotificationListener | None,
        poll_s: float | None = None,
    ) -> None:
        """`poll_s` is how long is slept, whether or not somebody can ring; None: what is usual for either."""
        self._look = look
        self._tidy = tidy
        self._listener = listener
        self._poll_s, self._sleep_s = poll_s or POLL_S, poll_s or SLEEP_S
        self._is_spared = poll_s is not None
        self._waiters: set[_Waiter] = set()
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._pause_s = FIRST_S
        self._tidied_s = -TIDY_S
        self._looked_s = 0.0
        self.last: Look | None = None

    def ring(self) -> None:
        """Somebody has written."""
        self._pause_s = FIRST_S
        self._news.set()

    async def beyond(self, place: int, after: int, until_s: float, *, is_known: bool = False) -> Look:
        """The first look that shows something after this number, or the last one by then that does not.

        With `is_known`, whoever asks was told of a look before: then one of `poll_s` ago will do.
        """
        waiter = _Waiter(place, after)
        self._waiters.add(waiter)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="evenflow-tide")
            left_s = until_s - asyncio.get_running_loop().time()
            await asyncio.wait([waiter.told], timeout=max(0.0, left_s))
            if not waiter.told.done() and waiter.seen is not None:
                return waiter.seen
            if not waiter.told.done() and is_known and self.last is not None and self._is_fresh:
                return self.last
            waiter.is_late = True
            self._news.set()  # where nobody has looked since then
            return await waiter.told
        finally:
            self._waiters.discard(waiter)
            if not waiter.told.cancel() and not waiter.told.cancelled():
                waiter.told.exception()  # whoever was cancelled does not want to know

    async def aclose(self, why: EvenflowError) -> None:
        """The way to the server is cut already: a look that is under way ends by itself."""
        self._fail(why)
        self._news.set()
        if tasks := [task for task in (self._task, self._tidying) if task is not None]:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        """Until nobody waits any more. What goes wrong is told to all who wait."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            self._listener.begin()
        while self._waiters:
            asked = list(self._waiters)
            is_sleepy = self._can_sleep and self._pause_s > QUICK_MOST_S
            self._news.clear()
            try:
                look = self.last = await self._look(min(int(self._sleep_s * 1200), RING_MOST_MS) if is_sleepy else 0)
                self._looked_s = loop.time()
            except EvenflowError as error:
                self._fail(error)
                return
            self._tell(asked, look)
            if loop.time() - self._tidied_s > TIDY_S and (self._tidying is None or self._tidying.done()):
                self._tidied_s = loop.time()
                # Nobody waits for it: a large log takes its time.
                self._tidying = asyncio.create_task(self._tidy_patiently(), name="evenflow-tidy")
            await self._rest(is_sleepy and not look.open, bool(look.open))

    async def _tidy_patiently(self) -> None:
        """Nobody reads any worse where it fails: it is done later, or by another instance."""
        try:
            await self._tidy()
        except EvenflowError as error:
            logger.warning("old changes could not be removed: %s", error)

    def _fail(self, error: EvenflowError) -> None:
        """All who wait, also those who came while it was looked: nobody looks for them any more."""
        for waiter in self._waiters:
            if not waiter.told.done():
                waiter.told.set_exception(error)
        self._waiters.clear()

    def _tell(self, asked: list[_Waiter], look: Look) -> None:
        for waiter in asked:
            is_new = look.newest[waiter.place] > waiter.after
            if is_new:
                self._pause_s = FIRST_S
            if (is_new or waiter.is_late) and not waiter.told.done():
                waiter.told.set_result(look)
                self._waiters.discard(waiter)
            waiter.seen = look

    @property
    def _can_sleep(self) -> bool:
        return self._listener is not None and self._listener.is_listening

    @property
    def _is_fresh(self) -> bool:
        """Nobody has to look again before its time, if it was said which that is."""
        return self._is_spared and asyncio.get_running_loop().time() - self._looked_s < self._sleep_s

    async def _rest(self, is_asleep: bool, is_written: bool) -> None:
        # Who writes already when somebody goes to sleep does not ring.
        is_quick = is_written and (self._can_sleep or not self._is_spared)
        most_s = QUICK_MOST_S if is_quick else self._poll_s
        pause_s = self._sleep_s if is_asleep else min(self._pause_s, most_s)
        self._pause_s = min(2 * self._pause_s, max(SLEEP_S, self._poll_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._news.wait()
