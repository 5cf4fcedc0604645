"""Places in a stream, and what a stream says of itself: whether something after a place was removed unread.

An id is `MILLISECONDS-NUMBER`. Ids have gaps, so they alone do not tell whether an entry between two of them is
missing. What does is in `Facts.is_gone`, and so is what cannot be known.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Bounds, Position

NUMBER_MOST = (1 << 64) - 1
TIME_MOST_MS = 253_402_300_799_000
"""The last second of the year 9999. Whoever gives entries ids of their own may go beyond it."""


class Id(NamedTuple):
    time_ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.time_ms}-{self.number}"

    @property
    def before(self) -> Id:
        """The highest id below it."""
        if self.number:
            return Id(self.time_ms, self.number - 1)
        return Id(self.time_ms - 1, NUMBER_MOST) if self.time_ms else ZERO

    @property
    def next(self) -> Id:
        """The lowest id above it."""
        return Id(self.time_ms, self.number + 1) if self.number < NUMBER_MOST else Id(self.time_ms + 1, 0)


ZERO = Id(0, 0)
"""Before the first entry: no entry has this id."""


def id_of(text: str) -> Id:
    time_ms, dash, number = text.partition("-")
    try:
        found = Id(int(time_ms), int(number) if dash else 0)
    except ValueError:
        found = Id(-1, 0)
    if min(found) < 0 or max(found) > NUMBER_MOST:
        raise PositionOutOfRange(
            f"The offset {text!r} is no id of a Redis stream, such as 1731000000000-0. Was it another source's?"
        )
    return found


class Place(Struct, frozen=True):
    """An id, and how many entries were ever added up to it, where that is known."""

    id: Id
    count: int | None = None

    @property
    def position(self) -> Position:
        return Position(str(self.id), None if self.count is None else self.count - 1)


def place_of(position: Position) -> Place:
    if position.offset == BEGINNING.offset:
        return Place(ZERO, 0)
    return Place(id_of(position.offset), None if position.sequence is None else position.sequence + 1)


class Facts(Struct, frozen=True):
    """One stream at one moment."""

    length: int = 0
    added: int | None = None
    """How many were ever added; servers count them from 7.0 on."""
    first: Id | None = None
    """The oldest entry that is there."""
    last: Id = ZERO
    """The highest id that was ever given, whether its entry is there or not."""

    @property
    def end(self) -> Place:
        return Place(self.last, 0 if self.last == ZERO else self.added)

    @property
    def beginning(self) -> Place:
        """Just before the oldest entry."""
        if self.first is None:
            return self.end
        return Place(self.first.before, None if self.added is None else self.added - self.length)

    @property
    def bounds(self) -> Bounds:
        oldest = self.last.next if self.first is None else self.first
        count = None if self.added is None else self.added - self.length + 1
        if self.last == ZERO:
            return Bounds(Place(oldest, 1).position, BEGINNING)
        return Bounds(Place(oldest, count).position, self.end.position)

    def is_gone(self, after: Place, *, was_end: bool = False) -> bool:
        """Whether entries after this place were removed; when it cannot be known, yes.

        Removing begins at the oldest: as long as the entry at the place is there, or an older one, all that came
        after it is there. When it is not, only the count of all entries tells, if it is known of the place.
        `was_end`: when the stream was last asked, milliseconds ago, the place was its end.
        """
        if after.id >= self.last or (self.first is not None and self.first <= after.id.next):
            return False
        if self.first is None:
            return True
        if self.added is None:
            # An older server. Who was at the end has missed nothing but what came and went within those milliseconds.
            return not was_end and after.id != ZERO
        count = 0 if after.id == ZERO else after.count
        # All up to the place were removed, so there are no fewer than these, unless the stream is another by now.
        return self.added - self.length != count
