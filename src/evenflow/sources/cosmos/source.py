"""The change feed of a container of Azure Cosmos DB as a source: a range is a partition, and vanishes when it splits.

    CosmosSource("cosmos://shop.documents.azure.com/sales/orders")

A position is an LSN, and which piece of the container it is of. LSNs grow with every change of a range, deletes too: so
how many changes come after a position is known as the most that it may be.
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
from evenflow.sources.cosmos.codec import Teller
from evenflow.sources.cosmos.feed import Feed
from evenflow.sources.cosmos.ranges import Ranges
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
"""Whether all versions and deletes are given."""
POLL_S = 5.0
REQUEST_S = 10.0
AT_ONCE = 16
PURPOSE = Purpose(
    "source",
    "cosmos",
    SourceUnavailable,
    REQUEST_S,
    ("mode", "poll_s", "max_items"),
    " Restore it, and reading goes on. One that is made anew is another container, and this processor ends with"
    " HubReplaced: see docs/how-to/feed-cosmos.md.",
)


def from_url(url: str) -> CosmosSource:
    """`cosmos://HOST[:PORT]/DATABASE/CONTAINER[?mode=all&poll_s=5&max_items=100]`, and how to get in."""
    return CosmosSource(url)


class CosmosSource:
    """Reads a container: by its URL, or one of the official client's, asynchronous (which is used, and not closed) or
    plain (whose endpoint and credential are used)."""

    def __init__(
        self,
        container: Any,
        *,
        mode: str = "latest",
        poll_s: float = POLL_S,
        max_items: int | None = None,
        credential: Any = None,
    ) -> None:
        """`mode` is "latest" (of each document the latest version) or "all" (all versions and deletes).

        When there is nothing new, a range is asked again every `poll_s`. A page has up to `max_items`, if given. With a
        URL, `credential` is a key or one of azure-identity's.
        """
        given: dict[str, str] = {}
        if isinstance(container, str):
            container, given = address_of(container, PURPOSE, credential)
        elif credential is not None:
            raise Misconfigured("cosmos: a container of the client has its credential; leave credential= out.")
        self._whole = _mode(given.get("mode", mode))
        self._poll_s = _seconds(given.get("poll_s", poll_s))
        self._max_items = _count(given.get("max_items", max_items))
        self._link = Link(container, PURPOSE)
        self._feed: Feed | None = None
        self._ranges = Ranges(self._link)
        self._some = asyncio.Semaphore(AT_ONCE)
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<CosmosSource {self._link.address}>"

    # --- which it is
    async def identity(self) -> Identity:
        feed = await self._looked()
        address = self._link.address
        mode = "all" if feed.whole else ""
        return Identity(address.host, f"{address.database}/{address.container}", feed.rid, mode)

    async def convention(self, name: str) -> Convention:
        """That of .NET's and Java's change feed processors, by whatever name they go."""
        rid = (await self._found()).rid
        address = self._link.address
        host = urlsplit(address.endpoint).hostname or ""
        ending = f"_{_database_of(rid)}_{rid}"
        return Convention(
            prefix=f"{name}{host}{ending}",
            ending=ending,
            # Java's handleChanges. Its newer processors do as .NET's.
            prefix_by_names=f"{name}{host}_{address.database}_{address.container}",
            mode=FEEDS[self._whole],
            spans={one.id: one.span for one in await self._ranges.known()},
        )

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(one.id, one.parents) for one in await self._ranges.listed()]

    # --- where to begin
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        if isinstance(start, datetime) and start.tzinfo is None:
            raise Misconfigured(f"The start {start} has no time zone. Give it one, for instance tzinfo=UTC.")
        if not isinstance(start, datetime | Position) and start not in ("earliest", "latest"):
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        feed = await self._found()
        if feed.whole and start != "latest" and not isinstance(start, Position):
            self._warn(start)
        try:
            if isinstance(start, Position):
                return await self._ranges.use(partition, lambda range: _checked(feed, range, start))
            return (await self._ranges.use(partition, lambda range: _started(feed, range, start))).position
        except RangeGone:
            return start if isinstance(start, Position) else await self._among_heirs(feed, partition, start)

    def _warn(self, start: str | datetime) -> None:
        """Once. It is no error: servers that are like Cosmos DB, the local one too, give what they have kept."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s is to be read with mode=all from %s on: Azure Cosmos DB gives all versions and deletes from now on"
                ' alone, and may refuse it. There, begin with start="now" ("latest" of a Processor).',
                self._link.address,
                "the beginning" if start == "earliest" else start,
            )

    async def _among_heirs(self, feed: Feed, partition: PartitionId, start: str | datetime) -> Position:
        """Of one that is gone, where those begin that go on with it."""
        heirs = self._ranges.heirs(partition)
        places = [await self._ranges.use(one.id, lambda range: _started(feed, range, start)) for one in heirs]
        return child_place(self._ranges.seen_in_heirs(partition), places).position

    async def child_start(self, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
        try:
            range = await self._ranges.get(child)
        except RangeGone:
            range = self._ranges.seen_in_heirs(child)
        # The ids of ranges grow. Who was never checkpointed says nothing.
        known = [(parent, after[parent]) for parent in sorted(after, key=int) if after[parent] != BEGINNING]
        generations = (self._placed(parent, place_of(position)) for parent, position in known)
        return child_place(range, of_the_youngest(generations)).position

    def _placed(self, parent: PartitionId, place: Place) -> Place:
        """Where it does not tell of what it is, it may be known here."""
        range = self._ranges.seen(parent)
        return place if place.has_span or range is None else place.within(range)

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        feed = await self._found()
        try:
            range = await self._ranges.get(partition)
        except RangeGone:
            return GoneReader(self._ranges.children(partition), after)
        reader = CosmosReader(feed, self._ranges, range, after)
        try:
            await reader.look()
        except BaseException:
            await reader.aclose()
            raise
        return reader

    # --- what there is
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        feed = await self._found()
        found = await asyncio.gather(*(self._calmly(self._bounds(feed, one)) for one in partitions))
        return dict(zip(partitions, found, strict=True))

    async def _bounds(self, feed: Feed, partition: PartitionId) -> Bounds:
        try:
            return await self._ranges.use(partition, lambda range: _ends(feed, range))
        except RangeGone:
            return Bounds()

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime | None]:
        """None after a split, for instance: the LSNs that a child has from its parent are not all of its changes."""
        feed = await self._found()
        asked = (self._calmly(self._waiting(feed, name, place)) for name, place in after.items())
        found = zip(after, await asyncio.gather(*asked), strict=True)
        return {name: time for name, (time, is_known) in found if is_known}

    async def _waiting(self, feed: Feed, partition: PartitionId, after: Position) -> tuple[datetime | None, bool]:
        try:
            return await self._ranges.use(partition, lambda range: _since(feed, range, after))
        except EvenflowError:
            return None, False  # whoever reads it is told

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
    async def _found(self) -> Feed:
        return self._feed or await self._looked()

    async def _looked(self) -> Feed:
        """The container that is there now. Whoever reads another one is told by the service."""
        told = await self._link.properties()
        if self._feed is None or self._feed.rid != told["_rid"]:
            teller = Teller(told["partitionKey"]["paths"], whole=self._whole)
            self._feed = Feed(self._link, told["_rid"], teller, self._whole, self._poll_s, self._max_items)
            self._ranges.forget()
        return self._feed

    async def _calmly(self, request: Awaitable[T]) -> T:
        async with self._some:
            return await request


async def _checked(feed: Feed, range: Range, position: Position) -> Position:
    """Whether it can be gone on from there; it, and of which range it is."""
    place = place_of(position).within(range)
    for piece in place.pieces:
        try:
            await feed.read(range, piece, 1)
        except BadRequest as error:
            raise feed.refusal(place, error) from error
    return position if str(place) == position.offset else place.position


async def _started(feed: Feed, range: Range, start: str | datetime) -> Place:
    if start == "latest":
        return place_at(range, await feed.newest(range))
    if isinstance(start, datetime):
        lsn, since_s = await feed.before(range, start)
        # One that did not come from others was not merged of them.
        return place_at(range, lsn)._replace(since_s=since_s if range.parents else None)
    # Who keeps all versions for a time has an oldest one.
    return place_at(range, (await feed.before(range, EPOCH))[0] if feed.whole else 0)


async def _ends(feed: Feed, range: Range) -> Bounds:
    newest = await feed.newest(range)
    end = place_at(range, newest).position if newest else BEGINNING
    # Nothing is removed from the latest versions: what was overwritten is told by a later change, and is not missed.
    return Bounds(None if feed.whole else place_at(range, 1).position, end)


async def _since(feed: Feed, range: Range, after: Position) -> tuple[datetime | None, bool]:
    """Of all pieces that come next, the oldest; and if there is none, whether that is certain."""
    place = place_of(after).within(range)
    found = [await feed.first(range, piece, place.since_s) for piece in place.pieces]
    times = [datetime.fromtimestamp(first.at_s, UTC) for first, _ in found if first is not None]
    return min(times, default=None), bool(times) or all(is_certain for _, is_certain in found)


def _database_of(rid: str) -> str:
    """The id of a container begins with that of its database, which has four bytes."""
    return b64encode(b64decode(rid, b"+-")[:4], b"+-").decode()


def _mode(text: str) -> bool:
    if text not in MODES:
        raise Misconfigured(f"cosmos: mode={text!r}: write latest, or all for all versions and deletes.")
    return MODES[text]


def _seconds(value: float | str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < inf:
        raise Misconfigured(f"cosmos: poll_s={value!r}: give a number of seconds above 0.")
    return found


def _count(value: int | str | None) -> int | None:
    if value is None:
        return None
    try:
        found = int(value)
    except ValueError:
        found = 0
    if found < 1:
        raise Misconfigured(f"cosmos: max_items={value!r}: give a whole number of at least 1.")
    return found
