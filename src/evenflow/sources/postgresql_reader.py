"""A reader of one partition of a feed: a slice of the log at a time, never beyond what the tide allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources import postgresql_events as events

if TYPE_CHECKING:
    from evenflow.model import Event
    from evenflow.sources.postgresql_link import Feed, Link, Look
    from evenflow.sources.postgresql_tide import Tide

FIRST_ROWS = 100
"""While nobody knows how large they are."""
STRIDE, STRIDE_MOST = 1000, 1 << 50
"""How many numbers one query is about. They have gaps, of any size; but a query about all of them would cost more the
more there are to come: the server, unless it knows the table well, looks at all of them and sorts them."""

_PAGE = """
SELECT floors[$1 + 1], page.* FROM @schema@.feeds, (SELECT @columns@ FROM (@changes@) changes) page WHERE id = @feed@"""
"""One row, with an array for each column: row by row, a client does more to take them in than to handle them."""
_CHANGES = """
SELECT * FROM @schema@.log_@feed@ WHERE partition = $1 AND sequence > $2 AND sequence <= $3
ORDER BY sequence LIMIT $4"""
_READ = _PAGE.replace("@changes@", _CHANGES)
_READ_LARGE = _PAGE.replace(
    "@changes@",
    f"""
SELECT * FROM (
    SELECT *, sum(size) OVER (ORDER BY sequence ROWS UNBOUNDED PRECEDING) - size AS before_it FROM (
        SELECT *, coalesce(pg_column_size(after), 0) + coalesce(pg_column_size(before), 0) AS size
        FROM ({_CHANGES}) changes
    ) changes
) sized WHERE before_it < $5 ORDER BY sequence""",  # noqa: S608 - our own words
)
"""It costs something to ask for sizes, and where no change is large nobody has to."""


class TableReader:
    def __init__(self, link: Link, tide: Tide, feed: Feed, place: int, after: int, made: str, *, whole: bool) -> None:
        """With `whole`, all versions and deletes are given."""
        self._link, self._tide, self._feed = link, tide, feed
        self._place = place
        self._after = self._read_to = after
        """All up to the first was returned, all up to the second was fetched."""
        self._made = made
        self._whole = whole
        self._events: list[Event] = []
        self._size_bytes = 0
        self._at = 0
        self._row_bytes = 0.0
        self._stride = STRIDE
        self._has_looked = False

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        until_s = asyncio.get_running_loop().time() + max_wait_s
        while self._at == len(self._events):
            look = self._tide.last
            if look is None or look.newest[self._place] <= self._read_to:
                look = await self._tide.beyond(self._place, self._read_to, until_s, is_known=self._has_looked)
                self._has_looked = True
                self._check(look)
            if look.newest[self._place] <= self._read_to:
                # What others have drawn and given back is no event: it is passed, too.
                self._after = self._read_to = max(self._read_to, look.horizons[self._place])
                return Batch((), position_at(self._after))
            await self._fetch(look, max_events, max_bytes)
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        pass

    def _check(self, look: Look) -> None:
        if look.made != self._made:
            raise SourceUnavailable(f"{self._link} is watched anew since it was opened. Open it again.")
        if look.floors[self._place] > self._read_to:
            raise gone(self._link, self._read_to, look.floors[self._place])

    async def _fetch(self, look: Look, max_events: int, max_bytes: int) -> None:
        most, query = max_events, _READ_LARGE
        if not look.has_large:
            most = min(max_events, int(max_bytes // self._row_bytes) + 1 if self._row_bytes else FIRST_ROWS)
            query = _READ
        horizon = look.horizons[self._place]
        until = min(horizon, self._read_to + self._stride)
        bounds = (most, max_bytes) if look.has_large else (most,)
        columns = events.ALL if self._whole else events.LATEST
        rows = await self._link.rows(
            query, self._place, self._read_to, until, *bounds, columns=columns, feed=self._feed.id
        )
        if not rows:
            self._tide.last = None  # nobody watches it any more: the next look says so
            return
        floor, *page = rows[0]
        if floor > self._read_to:
            raise gone(self._link, self._read_to, floor)
        if page[0] is None:
            self._pass(until, horizon)
            return
        self._take_in(page)
        count = len(page[0])
        if 2 * count < most:
            self._stride = min(2 * self._stride, STRIDE_MOST)
        elif count == most:
            self._stride = max(self._stride // 2, STRIDE)

    def _pass(self, until: int, horizon: int) -> None:
        """Numbers without a change."""
        self._stride = min(4 * self._stride, STRIDE_MOST)
        if until < horizon:
            self._read_to = until
        else:
            self._tide.last = None  # there was one: it was removed, or this is another server. Look again

    def _take_in(self, page: list[list[Any]]) -> None:
        self._events, self._at = events.every(page, self._feed.key) if self._whole else events.latest(page), 0
        self._size_bytes = sum([len(event.body) for event in self._events])
        self._row_bytes = max(1.0, self._size_bytes / len(page[0]))
        self._read_to = page[0][-1]
        if not self._events:
            self._after = self._read_to

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        if self._at == 0 and len(self._events) <= max_events and self._size_bytes <= max_bytes:
            self._at, self._after = len(self._events), self._read_to
            return Batch(self._events, position_at(self._after), self._size_bytes)
        stop, size_bytes = self._at, 0
        for event in self._events[self._at : self._at + max_events]:
            if size_bytes and size_bytes + len(event.body) > max_bytes:
                break
            size_bytes += len(event.body)
            stop += 1
        found, self._at = self._events[self._at : stop], stop
        if self._at == len(self._events):
            self._after = self._read_to
        else:
            assert found[-1].sequence is not None
            self._after = found[-1].sequence
        return Batch(found, position_at(self._after), size_bytes)


def position_at(number: int) -> Position:
    return Position(str(number), number)


def gone(link: Link, after: int, floor: int) -> PositionGone:
    return PositionGone(
        f'Changes after {after} of {link} are no longer kept: the log was pruned up to {floor}. Begin at "earliest" to'
        " go on with what is left."
    )
