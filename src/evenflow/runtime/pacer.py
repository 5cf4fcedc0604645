"""Around requests of one kind to the store: each has its time limit, and how long it took sizes the next one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from evenflow.core.pacing import Pace
from evenflow.errors import Transient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.runtime.parts import Parts


class Pacer:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pace = Pace()

    @property
    def most(self) -> int:
        """How many items the next request may carry."""
        return self._pace.most

    @asynccontextmanager
    async def request(self, items: int) -> AsyncIterator[None]:
        clock, limit_s = self._parts.clock, self._parts.request_s
        sent_s = clock.now()
        try:
            async with self._parts.answered():
                yield
        except Transient:
            self._pace = self._pace.unanswered(items, clock.now() - sent_s, limit_s)
            raise
        self._pace = self._pace.answered(items, clock.now() - sent_s, limit_s)
