"""Counts the open dead letters of a group for watchers. Counting reads all of them, so it is done seldom."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import EvenflowError
from evenflow.operate.dead_letters.redrive import read_filed

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import Group
    from evenflow.ports import Clock, DeadLetters

COUNT_EVERY_S = 10.0


class DeadLetterCount(NamedTuple):
    open: int | None = None
    """None: not counted yet, or the dead letters could not be read."""
    problems: tuple[str, ...] = ()


class DeadLetterCounter:
    """For one group."""

    def __init__(self, opening: Callable[[], DeadLetters] | None, clock: Clock) -> None:
        """`opening` is called at the first count, and again until it works; None: their target is unknown."""
        self._opening, self._clock = opening, clock
        self._dead_letters: DeadLetters | None = None
        self._last = DeadLetterCount()
        self._counted_s: float | None = None

    async def counted(self, group: Group) -> DeadLetterCount:
        """An error becomes a problem of the snapshot, so that it does not hide the rest."""
        if self._opening is None:
            return self._last
        if self._counted_s is None or self._clock.now() - self._counted_s >= COUNT_EVERY_S:
            self._counted_s = self._clock.now()
            try:
                self._dead_letters = self._dead_letters or self._opening()
                self._last = DeadLetterCount(sum(one.is_open for one in await read_filed(self._dead_letters, group)))
            except EvenflowError as error:
                self._last = DeadLetterCount(None, (f"dead letters: {error}",))
        return self._last

    async def aclose(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.aclose()
