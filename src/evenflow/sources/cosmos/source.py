"""The change feed of an Azure Cosmos DB container as a source: a range is a partition. A split or merge removes it.

    CosmosSource("cosmos://shop.documents.azure.com/sales/orders")

A position is an LSN and the piece of the container that it belongs to. Every change of a range increments its LSN,
deletes included, so LSNs give an upper bound on the number of changes after a position.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from evenflow.drivers.cosmos.client import BadRequest, Link
from evenflow.drivers.cosmos.options import Purpose, address_of
from evenflow.drivers.cosmos.positions import Range, child_place, of_the_youngest, place_at, place_of
from evenflow.errors import EvenflowError, Misconfigured, RangeGone, SourceUnavailable
from evenflow.model import BEGINNING, Bounds, Convention, Identity, Partition, Position
from evenflow.sources.cosmos.client import FEEDS
from evenflow.sources.cosmos.codec import CosmosFeedCodec
from evenflow.sources.cosmos.feed import CosmosFeed
from evenflow.sources.cosmos.ranges import ContainerRanges
from evenflow.sources.cosmos.reader import CosmosReader, GoneReader
from evenflow.sources.documents import document_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from evenflow.drivers.cosmos.positions import Place
    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

T = TypeVar("T")
logger = logging.getLogger("evenflow.emulators.cosmos")

EPOCH = datetime.fromtimestamp(0, UTC)
MODES = {"latest": False, "all": True}
"""Whether the feed has all versions and deletes."""
POLL_S = 5.0
REQUEST_S = 10.0
AT_ONCE = 16
PURPOSE = Purpose(
    "source",
    "cosmos",
    SourceUnavailable,
    REQUEST_S,
    ("mode", "poll_s", "max_items"),
    " Restore it, and reading continues. If you recreate it, it is another container and this processor ends with"
    " HubReplaced: see docs/how-to/feed-cosmos.md.",
)


def from_url(url: str) -> CosmosSource:
    """`cosmos://HOST[:PORT]/DATABASE/CONTAINER[?mode=all&poll_s=5&max_items=100]`, and options for credentials."""
    return CosmosSource(url)


class CosmosSource:
    """Reads a container, given as a URL or as a container of the official client: an asynchronous one is used and not
    closed; of a synchronous one, the endpoint and the credential are used."""

    def __init__(
        self,
        container: Any,
        *,
        mode: str = "latest",
        poll_s: float = POLL_S,
        max_items: int | None = None,
        credential: Any = None,
    ) -> None:
        """`mode` is "latest" (the latest version of each document) or "all" (all versions and deletes).

        When there is no new change, a range is polled every `poll_s`. A page has up to `max_items`, if given. With a
        URL, `credential` is a key or a credential of azure-identity.
        """
        given: dict[str, str] = {}
        if isinstance(container, str):
            container, given = address_of(container, PURPOSE, credential)
        elif credential is not None:
            raise Misconfigured("cosmos: the given container has its own credential; remove credential=.")
        self._whole = _mode(given.get("mode", mode))
        self._poll_s = _seconds(given.get("poll_s", poll_s))
        self._max_items = _count(given.get("max_items", max_items))
        self._link = Link(container, PURPOSE)
        self._feed: CosmosFeed | None = None
        self._ranges = ContainerRanges(self._link)
        self._request_limit = asyncio.Semaphore(AT_ONCE)
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<CosmosSource {self._link.address}>"

    # --- identity and partitions
    async def identity(self) -> Identity:
        feed = await self._refresh_feed()
        address = self._link.address
        mode = "all" if feed.whole else ""
        return Identity(address.host, f"{address.database}/{address.container}", feed.rid, mode)

    async def convention(self, name: str) -> Convention:
        """The layout of leases that .NET's and Java's change feed processors use, for a processor of this name."""
        rid = (await self._opened_feed()).rid
        address = self._link.address
        host = urlsplit(address.endpoint).hostname or ""
        ending = f"_{_database_of(rid)}_{rid}"
        return Convention(
            prefix=f"{name}{host}{ending}",
            ending=ending,
            # Used by Java's handleChanges. Its newer processors use the same prefix as .NET's.
            prefix_by_names=f"{name}{host}_{address.database}_{address.container}",
            mode=FEEDS[self._whole],
            spans={one.id: one.span for one in await self._ranges.known()},
        )

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(one.id, one.parents) for one in await self._ranges.listed()]

    # --- starts
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        if isinstance(start, datetime) and start.tzinfo is None:
            raise Misconfigured(f"The start {start} has no time zone. Give it one, for instance tzinfo=UTC.")
        if not isinstance(start, datetime | Position) and start not in ("earliest", "latest"):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        feed = await self._opened_feed()
        if feed.whole and start != "latest" and not isinstance(start, Position):
            self._warn(start)
        try:
            if isinstance(start, Position):
                return await self._ranges.use(partition, lambda range: _checked(feed, range, start))
            return (await self._ranges.use(partition, lambda range: _started(feed, range, start))).position
        except RangeGone:
            return start if isinstance(start, Position) else await self._combined_start(feed, partition, start)

    def _warn(self, start: str | datetime) -> None:
        """Warns once. It is not an error: servers that emulate Cosmos DB return the versions that they have kept."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s is read with mode=all from %s on. Azure Cosmos DB returns all versions and deletes only from now on"
                ' and may refuse this: there, use start="now" ("latest" with a Processor).',
                self._link.address,
                "the beginning" if start == "earliest" else start,
            )

    async def _combined_start(self, feed: CosmosFeed, partition: PartitionId, start: str | datetime) -> Position:
        """The start of a split or merged range: the combined starts of its successors."""
        successors = self._ranges.successors(partition)
        places = [await self._ranges.use(one.id, lambda range: _started(feed, range, start)) for one in successors]
        return child_place(self._ranges.span_of_removed(partition), places).position

    async def child_start(self, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
        try:
            range = await self._ranges.get(child)
        except RangeGone:
            range = self._ranges.span_of_removed(child)
        # Ids of ranges only grow, so this is the order of age. A parent that was never checkpointed does not count.
        known = [(parent, after[parent]) for parent in sorted(after, key=int) if after[parent] != BEGINNING]
        generations = (self._placed(parent, place_of(position)) for parent, position in known)
        return child_place(range, of_the_youngest(generations)).position

    def _placed(self, parent: PartitionId, place: Place) -> Place:
        """The position with the span of its range, if it lacks one and the span is known here."""
        range = self._ranges.seen(parent)
        return place if place.has_span or range is None else place.within(range)

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        feed = await self._opened_feed()
        try:
            range = await self._ranges.get(partition)
        except RangeGone:
            return GoneReader(self._ranges.children(partition), after)
        reader = CosmosReader(feed, self._ranges, range, after)
        try:
            await reader.read_first()
        except BaseException:
            await reader.aclose()
            raise
        return reader

    # --- bounds
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        feed = await self._opened_feed()
        found = await asyncio.gather(*(self._limited(self._bounds(feed, one)) for one in partitions))
        return dict(zip(partitions, found, strict=True))

    async def _bounds(self, feed: CosmosFeed, partition: PartitionId) -> Bounds:
        try:
            return await self._ranges.use(partition, lambda range: _ends(feed, range))
        except RangeGone:
            return Bounds()

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime | None]:
        """A time of None means that no change waits, although LSNs suggest it. After a split, for instance, a child has
        only some of its parent's changes."""
        feed = await self._opened_feed()
        asked = (self._limited(self._waiting(feed, name, place)) for name, place in after.items())
        found = zip(after, await asyncio.gather(*asked), strict=True)
        return {name: time for name, (time, is_known) in found if is_known}

    async def _waiting(self, feed: CosmosFeed, partition: PartitionId, after: Position) -> tuple[datetime | None, bool]:
        try:
            return await self._ranges.use(partition, lambda range: _since(feed, range, after))
        except EvenflowError:
            return None, False  # unknown; the reader of the range gets the error

    def sequences(self, position: Position) -> Sequence[int]:
        return [piece.spot.passed for piece in place_of(position).pieces]

    def name_of(self, event: Event) -> str:
        return document_id(event.body)

    def range_of(self, partition: PartitionId) -> tuple[str, str] | None:
        range = self._ranges.seen(partition)
        return None if range is None else range.span

    def charges(self) -> Mapping[str, float]:
        return self._link.charges()

    async def aclose(self) -> None:
        await self._link.aclose()

    # --- inside
    async def _opened_feed(self) -> CosmosFeed:
        return self._feed or await self._refresh_feed()

    async def _refresh_feed(self) -> CosmosFeed:
        """The feed of the container that exists now. Readers of an earlier one get an error from the service."""
        properties = await self._link.properties()
        if self._feed is None or self._feed.rid != properties["_rid"]:
            codec = CosmosFeedCodec(properties["partitionKey"]["paths"], whole=self._whole)
            self._feed = CosmosFeed(self._link, properties["_rid"], codec, self._whole, self._poll_s, self._max_items)
            self._ranges.forget()
        return self._feed

    async def _limited(self, request: Awaitable[T]) -> T:
        async with self._request_limit:
            return await request


async def _checked(feed: CosmosFeed, range: Range, position: Position) -> Position:
    """The position with its range, once the service has confirmed that it can continue from there."""
    place = place_of(position).within(range)
    for piece in place.pieces:
        try:
            await feed.read(range, piece, 1)
        except BadRequest as error:
            raise feed.refusal(place, error) from error
    return position if str(place) == position.offset else place.position


async def _started(feed: CosmosFeed, range: Range, start: str | datetime) -> Place:
    if start == "latest":
        return place_at(range, await feed.newest(range))
    if isinstance(start, datetime):
        lsn, since_s = await feed.before(range, start)
        # A range without parents was not merged, so its LSN alone is exact.
        return place_at(range, lsn)._replace(since_s=since_s if range.parents else None)
    # A server that keeps all versions for a limited time has an oldest one.
    return place_at(range, (await feed.before(range, EPOCH))[0] if feed.whole else 0)


async def _ends(feed: CosmosFeed, range: Range) -> Bounds:
    newest = await feed.newest(range)
    end = place_at(range, newest).position if newest else BEGINNING
    # Latest versions are never removed: a later change includes what was overwritten, so nothing is missed.
    return Bounds(None if feed.whole else place_at(range, 1).position, end)


async def _since(feed: CosmosFeed, range: Range, after: Position) -> tuple[datetime | None, bool]:
    """The oldest of the changes that come next in each piece, and if there is none, whether that is certain."""
    place = place_of(after).within(range)
    found = [await feed.first(range, piece, place.since_s) for piece in place.pieces]
    times = [datetime.fromtimestamp(first.at_s, UTC) for first, _ in found if first is not None]
    return min(times, default=None), bool(times) or all(is_certain for _, is_certain in found)


def _database_of(rid: str) -> str:
    """The id of a container begins with the four bytes of its database's id."""
    return b64encode(b64decode(rid, b"+-")[:4], b"+-").decode()


def _mode(text: str) -> bool:
    if text not in MODES:
        raise Misconfigured(f"cosmos: mode={text!r} is unknown: write latest, or all for all versions and deletes.")
    return MODES[text]


def _seconds(value: float | str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < inf:
        raise Misconfigured(f"cosmos: poll_s={value!r} is invalid: give a number of seconds above 0.")
    return found


def _count(value: int | str | None) -> int | None:
    if value is None:
        return None
    try:
        found = int(value)
    except ValueError:
        found = 0
    if found < 1:
        raise Misconfigured(f"cosmos: max_items={value!r} is invalid: give a whole number of at least 1.")
    return found
