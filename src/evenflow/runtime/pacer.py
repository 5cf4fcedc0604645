"""Around requests of one kind to the store: each has its time limit, and how long it took sizes the next ones."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from evenflow.core.pacing import Pace
from evenflow.errors import Transient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.runtime.parts import Parts


def limit_of(parts: Parts, pace: Pace) -> float:
    """The time limit of a request. A store that answers no heartbeat is unreachable, not busy, and asked again soon."""
    return parts.request_s * (1 if parts.waits.is_open("store") else pace.stretch)


class Pacer:
    """One request after the other, each of many items."""

    def __init__(self, parts: Parts, *, stretches: bool = False) -> None:
        """`stretches`: an answer is of use, however late it comes."""
        self._parts = parts
        self._stretches = stretches
        self._pace = Pace()

    @property
    def most(self) -> int:
        """How many items the next request may carry."""
        return self._pace.most

    @asynccontextmanager
    async def request(self, items: int) -> AsyncIterator[None]:
        clock = self._parts.clock
        limit_s = limit_of(self._parts, self._pace) if self._stretches else self._parts.request_s
        sent_s = clock.now()
        try:
            async with self._parts.answered(limit_s):
                yield
        except Transient:
            self._pace = self._pace.unanswered(items, clock.now() - sent_s, limit_s)
            raise
        self._pace = self._pace.answered(items, clock.now() - sent_s, limit_s)


class Lanes:
    """Many requests of one item each: at most so many at once as the store answers in time.

    A store works on requests that nobody waits for any more, too: whoever tries again as often as before keeps it busy
    with those.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pace = Pace(most)
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def request(self, parts: Parts) -> AsyncIterator[None]:
        """Its time limit begins with its turn."""
        await self._turn()
        before, beside, sent_s = self._pace, self._under_way, parts.clock.now()
        limit_s = limit_of(parts, before)
        try:
            async with parts.answered(limit_s):
                yield
        except Transient:
            self._adapt(before, before.unanswered(beside, parts.clock.now() - sent_s, limit_s))
            raise
        else:
            self._adapt(before, before.answered_beside(beside, parts.clock.now() - sent_s, limit_s))
        finally:
            self._leave()

    async def _turn(self) -> None:
        if self._under_way < self._pace.most and not self._waiting:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # it had its turn already
            raise

    def _leave(self) -> None:
        self._under_way -= 1
        while self._waiting and self._under_way < self._pace.most:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)

    def _adapt(self, before: Pace, after: Pace) -> None:
        """Once for all that were under way together."""
        if self._pace == before:
            self._pace = Pace(min(self._most, after.most), after.stretch)
