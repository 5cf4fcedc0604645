"""Reads one range of an embedded container: it waits for the bell to ring, then fetches changes.

An idle reader fetches every `poll_s` all the same: a writer may have been killed between its commit and its ring, and
documents expire without a ring.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from evenflow.embedded.container.feed import FeedRequest, ranges_in
from evenflow.embedded.container.feed_reads import read_feed_lines, read_feed_rows
from evenflow.embedded.container.keys import EPK_MIN
from evenflow.embedded.container.open_container import slot_of
from evenflow.errors import RangeGone, SourceUnavailable
from evenflow.model import Batch, Partition
from evenflow.sources.container.positions import (
    PositionPart,
    RangePiece,
    advance,
    next_piece,
    parse_position,
    to_position,
)
from evenflow.sources.waiting import Waiter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import ThreadPoolExecutor

    from evenflow.embedded.container.feed import FeedRows, Mode
    from evenflow.embedded.container.open_container import OpenContainer
    from evenflow.model import Event, PartitionId, Position
    from evenflow.sources.container.codec import ContainerCodec
    from evenflow.sources.container.positions import FeedPosition, Span

FETCH_CHANGES = 2_000
"""A fetch asks for at least this many changes, if they are small: it spreads its cost over several small reads."""
FIRST_CHANGES = 100
"""The first fetch asks for this many, while the size of the changes is unknown."""


class RangeFetch(NamedTuple):
    """The result of one fetch."""

    events: Sequence[Event] = ()
    place: FeedPosition = ()
    """After these events, and after changes that are not events."""
    is_last: bool = True
    children: tuple[Partition, ...] | None = None
    """Not None if the range was split or merged: these ranges continue it."""


class RangeContext(NamedTuple):
    """Which range of an opened container is read, and how."""

    opened: OpenContainer
    id: PartitionId
    span: Span
    mode: Mode
    codec: ContainerCodec
    poll_s: float
    threads: ThreadPoolExecutor


class ContainerReader:
    """A fetch runs on a thread, and its result is kept until a read takes it: a read may be cancelled at any time."""

    def __init__(self, range: RangeContext, after: Position) -> None:
        self._range = range
        self._place = parse_position(after)
        self._resume = after
        self._events: Sequence[Event] = ()
        self._sizes: list[int] = []
        self._at = 0
        self._change_bytes = 0.0
        self._children: tuple[Partition, ...] | None = None
        self._loop = asyncio.get_running_loop()
        self._fetching: asyncio.Future[RangeFetch] | None = None
        self._fetched_s = 0.0
        # The bell's value before the last fetch, if that fetch reached the end; None requests a fetch.
        self._bell_value: int | None = None
        self._waiter = Waiter()
        self._slot = slot_of(int(range.id))
        range.opened.bell.grow(self._slot + 1)
        self._end_watch = range.opened.bell.watch(self._waiter.wake, self._slot)

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        deadline_s = self._loop.time() + max_wait_s
        while self._at == len(self._events):
            if self._children is not None:
                return Batch([], self._resume, 0, self._children)
            if self._fetching is not None or self._must_fetch():
                await self._fetch(max_events, max_bytes)
            elif self._loop.time() >= deadline_s:
                return Batch((), self._resume)
            else:
                await self._waiter.until(min(deadline_s, self._fetched_s + self._range.poll_s))
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        self._end_watch()
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            self._fetching.exception()

    def _must_fetch(self) -> bool:
        bell = self._range.opened.bell
        if bell.gone():
            raise SourceUnavailable(
                f"The container at {self._range.opened.folder} was deleted or recreated while it was being read. Open"
                " it again."
            )
        late = self._loop.time() - self._fetched_s >= self._range.poll_s
        return self._bell_value is None or late or bell.value(self._slot) != self._bell_value

    async def _fetch(self, max_events: int, max_bytes: int) -> None:
        if self._fetching is None:
            self._fetching = self._begun(self._fetch_changes(max_events, max_bytes), max_bytes)
        await asyncio.wait([self._fetching])
        fetching, self._fetching = self._fetching, None
        bell_value, self._bell_value = self._bell_value, None
        fetched = fetching.result()
        if fetched.is_last:
            self._bell_value = bell_value
        self._take_in(fetched)

    def _fetch_changes(self, max_events: int, max_bytes: int) -> int:
        if not self._change_bytes:
            return FIRST_CHANGES
        return min(max(max_events, FETCH_CHANGES), int(max_bytes // self._change_bytes) + 1)

    def _begun(self, max_events: int, max_bytes: int) -> asyncio.Future[RangeFetch]:
        self._fetched_s = self._loop.time()
        try:
            # Taken before the fetch, so that a ring during the fetch causes another.
            bell_value = self._range.opened.bell.value(self._slot)
            fetching = self._loop.run_in_executor(
                self._range.threads, fetch, self._range, self._place, max_events, max_bytes
            )
        except (RuntimeError, OSError) as error:
            raise SourceUnavailable("The source of this reader was closed. Open a new one.") from error
        self._bell_value = bell_value
        return fetching

    def _take_in(self, fetched: RangeFetch) -> None:
        if fetched.children is not None:
            self._children = fetched.children
            return
        self._events, self._at, self._place = fetched.events, 0, fetched.place
        self._sizes = [len(event.body) for event in fetched.events]
        if fetched.events:
            self._change_bytes = max(1.0, sum(self._sizes) / len(self._sizes))
        else:
            self._resume = to_position(fetched.place)

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        found = self._events[self._at : self._at + max_events]
        sizes = self._sizes[self._at : self._at + max_events]
        count, size_bytes = len(found), sum(sizes)
        while count > 1 and size_bytes > max_bytes:
            count -= 1
            size_bytes -= sizes[count]
        found = found[:count]
        self._at += count
        self._resume = to_position(self._place) if self._at == len(self._events) else found[-1].position
        return Batch(found, self._resume, size_bytes)


def fetch(range: RangeContext, place: FeedPosition, max_events: int, max_bytes: int) -> RangeFetch:
    """The next changes after a position: those of the part that is furthest behind, up to the LSN of the next part."""
    piece, ceiling = next_piece(place, range.span)
    ask = FeedRequest(
        range=range.id,
        after=piece.lsn,
        within=(piece.low, piece.high),
        mode=range.mode,
        max_items=max_events,
        max_bytes=max_bytes,
    )
    try:
        lines = read_feed_lines(range.opened, ask) if range.mode == "latest" and len(place) == 1 else None
        if lines is not None:
            return RangeFetch(
                range.codec.of_lines(lines), (PositionPart(EPK_MIN, lines.after),), lines.after >= lines.lsn
            )
        found = read_feed_rows(range.opened, ask)
    except RangeGone:
        return RangeFetch(children=children_of(range.opened, range.id))
    return _fetch_result(range, place, piece, found, ceiling)


def _fetch_result(
    range: RangeContext, place: FeedPosition, piece: RangePiece, found: FeedRows, ceiling: int | None
) -> RangeFetch:
    rows, to = found.rows, found.after
    if ceiling is not None:
        rows, to = [row for row in rows if row[0] <= ceiling], min(to, ceiling)
    events = range.codec.events(place, range.span, piece, rows)
    after = advance(place, range.span, RangePiece(piece.low, piece.high, to))
    return RangeFetch(events, after, is_last=ceiling is None and to >= found.lsn)


def children_of(opened: OpenContainer, range: PartitionId) -> tuple[Partition, ...]:
    """The existing ranges that came from this one."""
    with opened.reading() as connection:
        return tuple(Partition(one.id, one.parents) for one in ranges_in(connection) if range in one.parents)
