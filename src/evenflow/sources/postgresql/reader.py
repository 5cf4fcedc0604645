"""Reads one partition of a feed: one range of the log at a time, never beyond the horizon."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from evenflow.errors import PositionGone, SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.postgresql import codec as events

if TYPE_CHECKING:
    from evenflow.model import Event
    from evenflow.sources.postgresql.client import FeedHorizon, TableClient, TableFeed
    from evenflow.sources.postgresql.horizon import HorizonPoller

FIRST_ROWS = 100
"""The first fetch asks for this many, while the size of rows is unknown."""
BATCHES = 2
"""How many batches one query fetches, to spread the cost of a query and of its round trip."""
STRIDE, STRIDE_MOST = 2000, 1 << 50
"""The range of numbers of one query. Numbers have gaps of any size, but a query without a limit gets slower with the
size of the backlog: without good statistics, the server reads and sorts all of it."""
STRIDE_REPLACED = 1 << 16
"""The same when most changes were replaced since, and few are returned."""

_FLOOR = "SELECT floors[$1 + 1] FROM @schema@.feeds WHERE id = @feed@"
_EMPTY = """
SELECT floors[$1 + 1], EXISTS (
    SELECT 1 FROM @schema@.log_@feed@ WHERE partition = $1 AND sequence > $2 AND sequence <= $3)
FROM @schema@.feeds WHERE id = @feed@"""
_READ = f"""
SELECT @columns@, ({_FLOOR}) FROM @schema@.log_@feed@ log
WHERE partition = $1 AND sequence > $2 AND sequence <= $3 @lasting@
ORDER BY sequence LIMIT $4"""  # noqa: S608 - our own words
"""Kept simple, since it is the cost of each change: no join, no conversion, no arrays."""
_READ_LARGE = f"""
SELECT @columns@, ({_FLOOR}) FROM (
    SELECT *, sum(size) OVER (ORDER BY sequence ROWS UNBOUNDED PRECEDING) - size AS before_it FROM (
        SELECT *, coalesce(pg_column_size(after), 0) + coalesce(pg_column_size(before), 0) AS size
        FROM @schema@.log_@feed@ log WHERE partition = $1 AND sequence > $2 AND sequence <= $3 @lasting@
        ORDER BY sequence LIMIT $4
    ) changes
) sized WHERE before_it < $5 ORDER BY sequence"""  # noqa: S608
"""Limits the bytes. Sizes cost something, so this is used only if some changes are large."""
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
"""Excludes changes that were replaced or removed before the sweep began. It is a subquery for each row, because the
server would turn NOT EXISTS into a join over everything."""


class TableReader:
    def __init__(
        self,
        client: TableClient,
        poller: HorizonPoller,
        feed: TableFeed,
        place: int,
        after: int,
        made: str,
        *,
        whole: bool,
    ) -> None:
        """With `whole`, all versions and deletes are returned."""
        self._client, self._poller, self._feed = client, poller, feed
        self._place = place
        self._after = self._read_to = after
        """Everything up to the first was returned, everything up to the second was fetched."""
        self._made = made
        self._whole = whole
        self._events: list[Event] = []
        self._sizes: list[int] = []
        """The sizes of their bodies, in bytes."""
        self._at = 0
        self._row_bytes = 0.0
        self._stride = STRIDE
        self._sweep = after
        """A sweep returns the latest versions of the changes up to here; the next sweep covers what came meanwhile. So
        a row that changes all the time is still returned once in each sweep."""
        self._is_replacing: bool | None = None
        """Whether anything in the sweep replaces or removes a row; None if not queried yet."""
        self._has_waited = False

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        until_s = asyncio.get_running_loop().time() + max_wait_s
        while self._at == len(self._events):
            horizon = self._poller.last
            if horizon is None or horizon.newest[self._place] <= self._read_to:
                horizon = await self._poller.beyond(self._place, self._read_to, until_s, is_known=self._has_waited)
                self._has_waited = True
                self._check(horizon)
            if horizon.newest[self._place] <= self._read_to:
                # Also moves past numbers of transactions that were rolled back.
                self._after = self._read_to = max(self._read_to, horizon.horizons[self._place])
                is_held_back = horizon.lasts[self._place] > horizon.horizons[self._place]
                return Batch((), position_at(self._after), is_held_back=is_held_back)
            await self._fetch(horizon, max_events, max_bytes)
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        pass

    def _check(self, horizon: FeedHorizon) -> None:
        if horizon.made != self._made:
            raise SourceUnavailable(
                f"{self._client} was unwatched and watched again since it was opened. Open it again."
            )
        if horizon.floors[self._place] > self._read_to:
            raise gone(self._client, self._read_to, horizon.floors[self._place])

    async def _fetch(self, horizon: FeedHorizon, max_events: int, max_bytes: int) -> None:
        most, query = max_events, _READ_LARGE
        if not horizon.has_large:
            fitting = int(max_bytes // self._row_bytes) + 1 if self._row_bytes else FIRST_ROWS
            most, query = min(BATCHES * max_events, fitting), _READ
        read_limit = horizon.horizons[self._place]
        if self._read_to >= self._sweep:
            self._sweep, self._is_replacing = read_limit, None
        until = min(self._sweep, self._read_to + self._stride)
        values: list[object] = [self._place, self._read_to, until, most]
        values += [max_bytes] if horizon.has_large else []
        lasting = ""
        # If one query returns everything, `latest` removes replaced changes here.
        is_all = until == self._sweep and until - self._read_to <= most and not horizon.has_large
        if not is_all and await self._passes_over():
            values.append(self._sweep)
            lasting = self._client.filled(_LASTING, feed=self._feed.id, upto=f"${len(values)}")
        columns = events.ALL if self._whole else events.LATEST
        rows = await self._client.rows(query, *values, columns=columns, feed=self._feed.id, lasting=lasting)
        # Without rows, the floor is queried afterwards: a log that is complete now was complete then.
        waiting = [(rows[0][-1], True)] if rows else await self._client.rows(_EMPTY, *values[:3], feed=self._feed.id)
        if not waiting:
            self._poller.last = None  # the table is no longer watched: the next poll raises the error
            return
        ((floor, has_any),) = waiting
        if floor > self._read_to:
            raise gone(self._client, self._read_to, floor)
        if not rows:
            self._pass(until, read_limit, has_any=has_any)
            return
        self._take_in(rows)
        if lasting:
            self._stride = min(self._stride, STRIDE_REPLACED)
        if 2 * len(rows) < most:
            self._stride = min(2 * self._stride, STRIDE_MOST)
        elif len(rows) == most:
            self._stride = max(self._stride // 2, STRIDE)

    async def _passes_over(self) -> bool:
        """Whether the query excludes replaced changes. That costs something, and is useless for tables that only get
        new rows."""
        if self._whole or not self._feed.has_later:
            return False
        if self._is_replacing is None:
            waiting = await self._client.rows(_REPLACING, self._place, self._read_to, self._sweep, feed=self._feed.id)
            self._is_replacing = bool(waiting[0][0])
        return self._is_replacing

    def _pass(self, until: int, read_limit: int, *, has_any: bool) -> None:
        """Moves past numbers without a change, or whose changes were replaced since."""
        if not has_any:
            self._stride = min(4 * self._stride, STRIDE_MOST)
        if has_any or until < read_limit:
            self._read_to = until
        else:
            self._poller.last = None  # a change was removed, or this is another server: poll again

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
    """As many as fit, and at least one."""
    for count, until_here in enumerate(accumulate(sizes)):
        if count and until_here > max_bytes:
            return sizes[:count]
    return sizes


def position_at(number: int) -> Position:
    return Position(str(number), number)


def gone(client: TableClient, after: int, floor: int) -> PositionGone:
    return PositionGone(
        f'Changes after {after} of {client} are no longer kept: the log was pruned up to {floor}. Start at "earliest"'
        " to continue with the changes that are left."
    )
