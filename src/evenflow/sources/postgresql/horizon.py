"""Polls how far a feed may be read (its horizon), once for all readers of a process.

While readers still have changes below the horizon, there is no poll. When they wait, polls follow each other quickly at
first. Then a poll announces that the poller sleeps, and from then on transactions that begin to write notify it when
they commit. Transactions that began before that do not notify, so while there are any, polling continues.
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
    from evenflow.sources.postgresql.client import FeedHorizon

logger = logging.getLogger("evenflow")

FIRST_S = 0.002
QUICK_MOST_S = 0.05
"""The longest interval between polls while transactions are open."""
POLL_S = 0.1
"""The same without open transactions, if notifications are not available."""
SLEEP_S = 1.0
SLEEP_MOST_MS = 2**31 - 1
TIDY_S = 60.0


class _HorizonWaiter:
    def __init__(self, place: int, after: int) -> None:
        self.place, self.after = place, after
        self.result: asyncio.Future[FeedHorizon] = asyncio.get_running_loop().create_future()
        self.seen: FeedHorizon | None = None
        """A poll that began after this wait, and found nothing new."""
        self.is_late = False
        """The deadline has passed: the next poll's result is returned in any case."""


class HorizonPoller:
    def __init__(
        self,
        query: Callable[[int], Awaitable[FeedHorizon]],
        tidy: Callable[[], Awaitable[object]],
        listener: NotificationListener | None,
        poll_s: float | None = None,
    ) -> None:
        """`poll_s` is the polling interval with and without notifications; None uses the default of each."""
        self._query = query
        self._tidy = tidy
        self._listener = listener
        self._poll_s, self._sleep_s = poll_s or POLL_S, poll_s or SLEEP_S
        self._is_spared = poll_s is not None
        self._waiters: set[_HorizonWaiter] = set()
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._pause_s = FIRST_S
        self._tidied_s = -TIDY_S
        self._polled_s = 0.0
        self.last: FeedHorizon | None = None

    def notify(self) -> None:
        """A notification: a transaction has committed."""
        self._pause_s = FIRST_S
        self._news.set()

    async def beyond(self, place: int, after: int, until_s: float, *, is_known: bool = False) -> FeedHorizon:
        """The first result with a change after this number, or the last result before the deadline.

        With `is_known`, the caller has seen a result before: then one that is up to `poll_s` old is sufficient.
        """
        waiter = _HorizonWaiter(place, after)
        self._waiters.add(waiter)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="evenflow-poller")
            left_s = until_s - asyncio.get_running_loop().time()
            await asyncio.wait([waiter.result], timeout=max(0.0, left_s))
            if not waiter.result.done() and waiter.seen is not None:
                return waiter.seen
            if not waiter.result.done() and is_known and self.last is not None and self._is_fresh:
                return self.last
            waiter.is_late = True
            self._news.set()  # there was no poll since then
            return await waiter.result
        finally:
            self._waiters.discard(waiter)
            if not waiter.result.cancel() and not waiter.result.cancelled():
                waiter.result.exception()  # marks the exception as retrieved

    async def aclose(self, why: EvenflowError) -> None:
        """The connections are closed already, so a pending poll ends by itself."""
        self._fail(why)
        self._news.set()
        if tasks := [task for task in (self._task, self._tidying) if task is not None]:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        """Runs while there are waiters. An error is raised in all of them."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            self._listener.begin()
        while self._waiters:
            waiting = list(self._waiters)
            is_sleepy = self._can_sleep and self._pause_s > QUICK_MOST_S
            self._news.clear()
            try:
                horizon = self.last = await self._query(
                    min(int(self._sleep_s * 1200), SLEEP_MOST_MS) if is_sleepy else 0
                )
                self._polled_s = loop.time()
            except EvenflowError as error:
                self._fail(error)
                return
            self._resolve(waiting, horizon)
            if loop.time() - self._tidied_s > TIDY_S and (self._tidying is None or self._tidying.done()):
                self._tidied_s = loop.time()
                # In the background: a large log takes long.
                self._tidying = asyncio.create_task(self._tidy_in_background(), name="evenflow-tidy")
            await self._rest(is_sleepy and not horizon.open, bool(horizon.open))

    async def _tidy_in_background(self) -> None:
        """A failure does not affect readers: retention is applied later, or by another instance."""
        try:
            await self._tidy()
        except EvenflowError as error:
            logger.warning("could not remove old changes; retrying later: %s", error)

    def _fail(self, error: EvenflowError) -> None:
        """Fails all waiters, including those that came during the poll: polling has ended."""
        for waiter in self._waiters:
            if not waiter.result.done():
                waiter.result.set_exception(error)
        self._waiters.clear()

    def _resolve(self, waiting: list[_HorizonWaiter], horizon: FeedHorizon) -> None:
        for waiter in waiting:
            is_new = horizon.newest[waiter.place] > waiter.after
            if is_new:
                self._pause_s = FIRST_S
            if (is_new or waiter.is_late) and not waiter.result.done():
                waiter.result.set_result(horizon)
                self._waiters.discard(waiter)
            waiter.seen = horizon

    @property
    def _can_sleep(self) -> bool:
        return self._listener is not None and self._listener.is_listening

    @property
    def _is_fresh(self) -> bool:
        """The last result is younger than the configured interval."""
        return self._is_spared and asyncio.get_running_loop().time() - self._polled_s < self._sleep_s

    async def _rest(self, is_asleep: bool, is_written: bool) -> None:
        # Transactions that were open before the poller went to sleep do not notify.
        is_quick = is_written and (self._can_sleep or not self._is_spared)
        most_s = QUICK_MOST_S if is_quick else self._poll_s
        pause_s = self._sleep_s if is_asleep else min(self._pause_s, most_s)
        self._pause_s = min(2 * self._pause_s, max(SLEEP_S, self._poll_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._news.wait()
