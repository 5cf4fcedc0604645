"""Positions in a stream, and whether entries after a position were removed before they were read.

An id is `MILLISECONDS-NUMBER`. Ids have gaps, so they alone do not show whether an entry between two of them is
missing. `StreamState.is_removed` combines them with the stream's counts, and says what remains unknown.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Bounds, Position

NUMBER_MOST = (1 << 64) - 1
TIME_MOST_MS = 253_402_300_799_000
"""The last second of the year 9999. Producers that choose their own ids may exceed it."""


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
"""The position before the first entry: no entry has this id."""


def id_of(text: str) -> Id:
    time_ms, dash, number = text.partition("-")
    try:
        found = Id(int(time_ms), int(number) if dash else 0)
    except ValueError:
        found = Id(-1, 0)
    if min(found) < 0 or max(found) > NUMBER_MOST:
        raise PositionOutOfRange(
            f"{text!r} is not an id of a Redis stream (such as 1731000000000-0). Was it stored by another source?"
        )
    return found


class StreamPosition(Struct, frozen=True):
    """An id, and how many entries were ever added up to and including it, if known."""

    id: Id
    count: int | None = None

    @property
    def position(self) -> Position:
        return Position(str(self.id), None if self.count is None else self.count - 1)


def parse_position(position: Position) -> StreamPosition:
    if position.offset == BEGINNING.offset:
        return StreamPosition(ZERO, 0)
    return StreamPosition(id_of(position.offset), None if position.sequence is None else position.sequence + 1)


class StreamState(Struct, frozen=True):
    """The state of one stream at one moment."""

    length: int = 0
    added: int | None = None
    """How many entries were ever added. Servers count them since Redis 7.0."""
    first: Id | None = None
    """The oldest existing entry."""
    last: Id = ZERO
    """The highest id ever assigned, even if its entry was removed."""

    @property
    def end(self) -> StreamPosition:
        return StreamPosition(self.last, 0 if self.last == ZERO else self.added)

    @property
    def beginning(self) -> StreamPosition:
        """The position before the oldest entry."""
        if self.first is None:
            return self.end
        return StreamPosition(self.first.before, None if self.added is None else self.added - self.length)

    @property
    def bounds(self) -> Bounds:
        oldest = self.last.next if self.first is None else self.first
        count = None if self.added is None else self.added - self.length + 1
        if self.last == ZERO:
            return Bounds(StreamPosition(oldest, 1).position, BEGINNING)
        return Bounds(StreamPosition(oldest, count).position, self.end.position)

    def is_removed(self, after: StreamPosition, *, was_end: bool = False) -> bool:
        """Whether entries after this position were removed, or may have been.

        The oldest entries are removed first: if the entry at the position or an older one still exists, so do all
        later ones. Otherwise only the count of entries decides, if it is known for the position. `was_end` means that
        the position was the end of the stream when it was last queried, milliseconds ago.
        """
        if after.id >= self.last or (self.first is not None and self.first <= after.id.next):
            return False
        if self.first is None:
            return True
        if self.added is None:
            # A server before 7.0. At the end, only entries added and removed within those milliseconds can be missed.
            return not was_end and after.id != ZERO
        count = 0 if after.id == ZERO else after.count
        # Everything up to the position was removed. Any other number of removals means loss, or a recreated stream.
        return self.added - self.length != count
