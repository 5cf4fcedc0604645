"""A reader of one partition of a feed: a slice of the log at a time, never beyond what the tide allows."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.postgresql import codec as events

if TYPE_CHECKING:
    from evenflow.model import Event
    from evenflow.sources.postgresql.client import Feed, Link, Look
    from evenflow.sources.postgresql.horizon import Tide

FIRST_ROWS = 100
"""While nobody knows how large they are."""
BATCHES = 2
"""So many are fetched at once: a query has its price, and so has waiting for its answer."""
STRIDE, STRIDE_MOST = 2000, 1 << 50
"""How many numbers one query is about. They have gaps, of any size; but a query about all of them would cost more the
more there are to come: the server, unless it knows the table well, looks at all of them and sorts them."""
STRIDE_REPLACED = 1 << 16
"""The same where most changes were replaced since, and few are given."""

_FLOOR = "SELECT floors[$1 + 1] FROM @schema@.feeds WHERE id = @feed@"
_EMPTY = """
SELECT floors[$1 + 1], EXISTS (
    SELECT 1 FROM @schema@.log_@feed@ WHERE partition = $1 AND sequence > $2 AND sequence <= $3)
FROM @schema@.feeds WHERE id = @feed@"""
_READ = f"""
SELECT @columns@, ({_FLOOR}) FROM @schema@.log_@feed@ log
WHERE partition = $1 AND sequence > $2 AND sequence <= $3 @lasting@
ORDER BY sequence LIMIT $4"""  # noqa: S608 - our own words
"""As plain as it can be, since it is what a change costs: no join, no conversion, no arrays."""
_READ_LARGE = f"""
SELECT @columns@, ({_FLOOR}) FROM (
    SELECT *, sum(size) OVER (ORDER BY sequence ROWS UNBOUNDED PRECEDING) - size AS before_it FROM (
        SELECT *, coalesce(pg_column_size(after), 0) + coalesce(pg_column_size(before), 0) AS size
        FROM @schema@.log_@feed@ log WHERE partition = $1 AND sequence > $2 AND sequence <= $3 @lasting@
        ORDER BY sequence LIMIT $4
    ) changes
) sized WHERE before_it < $5 ORDER BY sequence"""  # noqa: S608
"""It costs something to ask for sizes, and where no change is large nobody has to."""
_REPLACING = """
SELECT EXISTS (SELECT 1 FROM @schema@.log_@feed@
    WHERE partition = $1 AND sequence > $2 AND sequence <= $3 AND op IN ('u', 'd', 't'))"""
_LASTING = """
    AND after IS NOT NULL AND sequence > coalesce((
        SELECT emptied.sequence FROM @schema@.log_@feed@ emptied
        WHERE emptied.partition = $1 AND hashtext(emptied.key) IS NULL AND emptied.op = 't'
            AND emptied.sequence <= @upto@
        ORDER BY emptied.sequence DESC LIMIT 1), 0)
    AND (SELECT later.sequence FROM @schema@.log_@feed@ later
        WHERE later.partition = $1 AND hashtext(later.key) = hashtext(log.key) AND later.sequence > log.sequence
            AND later.sequence <= @upto@ AND later.key = log.key AND later.op IN ('u', 'd', 't') LIMIT 1) IS NULL"""
"""Nothing that was replaced or removed since, as far as was known when the sweep began. (Asked for each row by itself:
the server takes NOT EXISTS for a join, and looks through all that comes.)"""


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
        self._sizes: list[int] = []
        """Of their bodies, in bytes."""
        self._at = 0
        self._row_bytes = 0.0
        self._stride = STRIDE
        self._sweep = after
        """Of what was there up to here, the latest versions are given; then of what has come meanwhile. So also a row
        that is changed all the time is given once in a while."""
        self._is_replacing: bool | None = None
        """Whether anything in the sweep replaces or removes a row; None: nobody has asked yet."""
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
                is_held_back = look.lasts[self._place] > look.horizons[self._place]
                return Batch((), position_at(self._after), is_held_back=is_held_back)
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
            fitting = int(max_bytes // self._row_bytes) + 1 if self._row_bytes else FIRST_ROWS
            most, query = min(BATCHES * max_events, fitting), _READ
        horizon = look.horizons[self._place]
        if self._read_to >= self._sweep:
            self._sweep, self._is_replacing = horizon, None
        until = min(self._sweep, self._read_to + self._stride)
        values: list[object] = [self._place, self._read_to, until, most]
        values += [max_bytes] if look.has_large else []
        lasting = ""
        # Where all there is comes at once, it is seen here what was replaced.
        is_all = until == self._sweep and until - self._read_to <= most and not look.has_large
        if not is_all and await self._passes_over():
            values.append(self._sweep)
            lasting = self._link.filled(_LASTING, feed=self._feed.id, upto=f"${len(values)}")
        columns = events.ALL if self._whole else events.LATEST
        rows = await self._link.rows(query, *values, columns=columns, feed=self._feed.id, lasting=lasting)
        # Where there are none, it is asked afterwards: a log that has all after this place now, had it then.
        asked = [(rows[0][-1], True)] if rows else await self._link.rows(_EMPTY, *values[:3], feed=self._feed.id)
        if not asked:
            self._tide.last = None  # nobody watches it any more: the next look says so
            return
        ((floor, has_any),) = asked
        if floor > self._read_to:
            raise gone(self._link, self._read_to, floor)
        if not rows:
            self._pass(until, horizon, has_any=has_any)
            return
        self._take_in(rows)
        if lasting:
            self._stride = min(self._stride, STRIDE_REPLACED)
        if 2 * len(rows) < most:
            self._stride = min(2 * self._stride, STRIDE_MOST)
        elif len(rows) == most:
            self._stride = max(self._stride // 2, STRIDE)

    async def _passes_over(self) -> bool:
        """Whether the server is to leave out what was replaced: it costs something, and rows that are only ever added
        replace nothing."""
        if self._whole or not self._feed.has_later:
            return False
        if self._is_replacing is None:
            asked = await self._link.rows(_REPLACING, self._place, self._read_to, self._sweep, feed=self._feed.id)
            self._is_replacing = bool(asked[0][0])
        return self._is_replacing

    def _pass(self, until: int, horizon: int, *, has_any: bool) -> None:
        """Numbers without a change, or with such alone as were replaced since."""
        if not has_any:
            self._stride = min(4 * self._stride, STRIDE_MOST)
        if has_any or until < horizon:
            self._read_to = until
        else:
            self._tide.last = None  # there was one: it was removed, or this is another server. Look again

    def _take_in(self, rows: list[tuple[Any, ...]]) -> None:
        self._events, self._at = events.every(rows, self._feed.key) if self._whole else events.latest(rows), 0
        self._sizes = [len(event.body) for event in self._events]
        self._row_bytes = max(1.0, sum(self._sizes) / len(rows))
        self._read_to = rows[-1][0]
        if not self._events:
            self._after = self._read_to

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        sizes = self._sizes[self._at : self._at + max_events]
        if sum(sizes) > max_bytes:
            sizes = _fitting(sizes, max_bytes)
        begin, self._at = self._at, self._at + len(sizes)
        found = self._events[begin : self._at]
        if self._at == len(self._events):
            self._after = self._read_to
        else:
            assert found[-1].sequence is not None
            self._after = found[-1].sequence
        return Batch(found, position_at(self._after), sum(sizes))


def _fitting(sizes: list[int], max_bytes: int) -> list[int]:
    """As many of them as are not more in all, and at least one."""
    for count, until_here in enumerate(accumulate(sizes)):
        if count and until_here > max_bytes:
            return sizes[:count]
    return sizes


def position_at(number: int) -> Position:
    return Position(str(number), number)


def gone(link: Link, after: int, floor: int) -> PositionGone:
    return PositionGone(
        f'Changes after {after} of {link} are no longer kept: the log was pruned up to {floor}. Begin at "earliest" to'
        " go on with what is left."
    )
