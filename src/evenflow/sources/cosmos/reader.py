"""Reads one range of a container's feed: a request for each page, and one for each poll when there is no new change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from evenflow.drivers.cosmos.client import BadRequest
from evenflow.drivers.cosmos.positions import Spot, place_of
from evenflow.errors import RangeGone
from evenflow.model import Batch, Partition
from evenflow.sources.cosmos.feed import ITEMS_MOST, since

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.drivers.cosmos.positions import Piece, Place, Range
    from evenflow.model import Event, Position
    from evenflow.sources.cosmos.client import FeedPage
    from evenflow.sources.cosmos.feed import CosmosFeed
    from evenflow.sources.cosmos.ranges import ContainerRanges

ITEMS_LEAST = 100
"""The smallest page size unless max_items is set: it spreads the cost of a request over several small reads."""


class _FetchedPage(NamedTuple):
    """The result of one request."""

    events: Sequence[Event]
    place: Place
    """After these events, and after changes that are not events."""
    is_last: bool


class CosmosReader:
    """A request is a task of its own, and its result is kept until a read takes it. So a read may be cancelled."""

    def __init__(self, feed: CosmosFeed, ranges: ContainerRanges, range: Range, after: Position) -> None:
        self._feed, self._ranges, self._range = feed, ranges, range
        self._place = place_of(after).within(range)
        self._resume = after
        self._events: Sequence[Event] = ()
        self._at = 0
        self._children: tuple[Partition, ...] | None = None
        self._fetching: asyncio.Task[_FetchedPage | tuple[Partition, ...]] | None = None
        self._next_s = 0.0
        """The time of the next poll, on the loop's clock."""

    async def read_first(self) -> None:
        """Reads the first page, so that an invalid position is refused when the reader is opened."""
        await self._receive(ITEMS_LEAST)

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max_wait_s
        while self._at == len(self._events):
            if self._children is not None:
                return Batch([], self._resume, 0, self._children)
            now_s = loop.time()
            if self._fetching is not None or now_s >= self._next_s:
                await self._receive(max_events)
            elif now_s >= until_s:
                return Batch([], self._resume)
            else:
                await self._feed.link.rest(min(self._next_s, until_s) - now_s)
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            if not self._fetching.cancelled():
                self._fetching.exception()  # marks the exception as retrieved

    async def _receive(self, max_events: int) -> None:
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(self._read_page(max_events))
        await asyncio.wait([self._fetching])
        fetching, self._fetching = self._fetching, None
        found = fetching.result()
        if not isinstance(found, _FetchedPage):
            self._children = found
            return
        self._events, self._at, self._place = found.events, 0, found.place
        self._next_s = asyncio.get_running_loop().time() + self._feed.poll_s if found.is_last else 0.0
        if not found.events:
            self._resume = found.place.position

    async def _read_page(self, max_events: int) -> _FetchedPage | tuple[Partition, ...]:
        """A page, or the children of the range if it was split or merged."""
        piece, ceiling = self._place.next()
        items = self._feed.max_items or min(ITEMS_MOST, max(ITEMS_LEAST, max_events))
        since_s = self._place.since_s
        try:
            page = await self._ranges.use(self._range.id, lambda range: self._feed.read(range, piece, items, since_s))
        except BadRequest as error:
            raise self._feed.refusal(self._place, error) from error
        except RangeGone:
            return self._ranges.children(self._range.id)
        return self._parsed(page, piece, ceiling)

    def _parsed(self, page: FeedPage, piece: Piece, ceiling: Spot | None) -> _FetchedPage:
        changes = self._feed.changes(page)
        last = changes[-1].lsn if changes else piece.spot.passed
        to = Spot(page.after if page.after is not None else last)
        reached = max(piece.spot, to if ceiling is None else min(to, ceiling))
        events = self._feed.codec.events(since(changes, self._place.since_s), self._place, piece, ceiling)
        place = self._place.advanced(piece, reached)
        is_last = ceiling is None and (not changes or (page.end is not None and to.lsn >= page.end))
        # Changes after the end need no filter by time.
        return _FetchedPage(events, place._replace(since_s=None) if is_last else place, is_last)

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        found = self._events[self._at : self._at + max_events]
        sizes = [len(event.body) for event in found]
        while len(found) > 1 and sum(sizes) > max_bytes:
            count = max(1, len(found) * max_bytes // sum(sizes))
            found, sizes = found[:count], sizes[:count]
        self._at += len(found)
        self._resume = self._place.position if self._at == len(self._events) else found[-1].position
        return Batch(found, self._resume, sum(sizes))


class GoneReader:
    """The reader of a range that was split or merged before it was opened: it has only children."""

    def __init__(self, children: tuple[Partition, ...], after: Position) -> None:
        self._children, self._after = children, after

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        return Batch([], self._after, 0, self._children)

    async def aclose(self) -> None:
        pass
