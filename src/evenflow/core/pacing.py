"""How many items one request to the store carries, and whose turn it is.

A store that takes items one by one answers a request for a thousand of them too late, and the answer is lost for all.
So a request begins small, grows while the store answers quickly, and shrinks when it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

T = TypeVar("T")

FIRST = 128
"""How many items a request may carry before the store has answered any."""
FACTOR = 4
"""How much larger the next request may be, and how much smaller it is when there was no answer."""
CROWDED = 0.8
"""A request that takes this share of its time limit is too large: the next one might not be answered."""
STRETCH_MOST = 4
HEAD_START_S = 30.0
"""So much longer do checkpoints wait that no caller waits for."""


class Pace(Struct, frozen=True):
    """How many items a request may carry, so that it takes about half of its time limit."""

    most: int = FIRST
    stretch: int = 1
    """How many times as long as usual a request may take: a store that is busy with what others ask may not even take
    one item within the usual time, and then no smaller request helps."""

    def answered(self, items: int, took_s: float, limit_s: float) -> Pace:
        """After an answer. A request that could have been larger tells little about a full one."""
        fits = items * FACTOR if took_s <= 0 else int(items * limit_s / 2 / took_s)
        if took_s > CROWDED * limit_s and items > self.most // 2:
            return Pace(max(1, fits), self.stretch)
        stretch = 1 if took_s <= limit_s / self.stretch / 2 else self.stretch
        if items < self.most:
            return Pace(self.most, stretch)
        if took_s <= limit_s / 2 or stretch == 1:
            return Pace(max(self.most, min(fits, self.most * FACTOR)), stretch)
        return Pace(self.most + max(1, self.most // 8), stretch)  # it waited: a few more may take no longer

    def answered_beside(self, others: int, took_s: float, limit_s: float) -> Pace:
        """After the answer to one of so many requests of one item that were under way together. One that was slow was
        perhaps behind a larger one of another kind: only those without an answer make them fewer."""
        stretch = 1 if took_s <= limit_s / self.stretch / 2 else self.stretch
        if others < self.most or took_s > CROWDED * limit_s:
            return Pace(self.most, stretch)
        return Pace(self.most * 2 if took_s <= limit_s / 2 else self.most + 1, stretch)

    def unanswered(self, items: int, took_s: float, limit_s: float) -> Pace:
        """After a failure: one that came soon had nothing to do with the size of the request."""
        if took_s < limit_s / 2:
            return self
        if min(items, self.most) == 1:
            return Pace(1, min(self.stretch * 2, STRETCH_MOST))
        return Pace(max(1, min(items, self.most) // FACTOR), self.stretch)


def in_turn(since_s: Mapping[T, float], waiting: Collection[T]) -> list[T]:
    """First come, first served, with a head start for those that a caller waits for.

    Both always have their turn: a newcomer passes nothing that was there HEAD_START_S before it.
    """
    return sorted(since_s, key=lambda one: since_s[one] - HEAD_START_S * (one in waiting))
