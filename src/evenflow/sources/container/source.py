"""The change feed of an embedded container as a source: a range is a partition. A split or merge removes a range.

SQLite is accessed on threads only, in short transactions.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl

from evenflow.embedded.container import Container
from evenflow.embedded.container.feed import FeedRequest
from evenflow.embedded.container.feed_reads import (
    check_position,
    checked_mode,
    epk_spans,
    feed_bounds,
    first_change,
    start_positions,
)
from evenflow.errors import EvenflowError, Misconfigured, RangeGone
from evenflow.model import BEGINNING, MICROSECONDS, Bounds, Identity, Partition, Position
from evenflow.sources.container.codec import ContainerCodec
from evenflow.sources.container.positions import (
    PositionPart,
    child_position,
    merge_equal,
    parse_position,
    pieces,
    to_position,
)
from evenflow.sources.container.reader import ContainerReader, RangeContext
from evenflow.sources.documents import document_id

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.embedded.container.feed import Mode
    from evenflow.embedded.container.open_container import OpenContainer
    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

T = TypeVar("T")

NAMESPACE = "container"
"""Not the namespace of hubs: a hub and a container may have the same name."""
POLL_S = 1.0
READING_THREADS = 1
"""Converting rows holds the interpreter lock, so more threads would only compete for it."""


def from_url(url: str) -> ContainerSource:
    """`container:PATH`, with the path as it would be given to `Container`; and `?mode=all&poll_s=1` behind it."""
    path, _, query = url.removeprefix("container:").partition("?")
    if not path:
        raise Misconfigured(
            "The URL container: names no folder; write container:FOLDER, such as container:data/orders."
        )
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(given.keys() - {"mode", "poll_s"})
    if unknown or (query and not given):
        raise Misconfigured(
            f"Unknown option in a container: URL: {', '.join(unknown) or query}. Its options are mode and poll_s."
        )
    try:
        poll_s = float(given.get("poll_s", POLL_S))
    except ValueError:
        raise Misconfigured(f"poll_s={given['poll_s']!r}: give a number of seconds above 0.") from None
    return ContainerSource(path, mode=given.get("mode", "latest"), poll_s=poll_s)


class ContainerSource:
    """Closes the container only if it opened it."""

    def __init__(
        self, container: Container | str | os.PathLike[str], *, mode: str = "latest", poll_s: float = POLL_S
    ) -> None:
        """`mode` is "latest" (the latest version of each document) or "all" (all versions and deletes).

        Writers wake readers at once. Every `poll_s`, readers also check for changes without a wake-up.
        """
        if not 0 < poll_s < inf:
            raise Misconfigured(f"poll_s={poll_s!r}: give a number of seconds above 0.")
        self._owned = not isinstance(container, Container)
        self.container = container if isinstance(container, Container) else Container(container)
        try:
            self.mode = checked_mode(self.container.opened().metadata, mode)
        except Misconfigured:
            if self._owned:
                self.container.close()
            raise
        self._poll_s = poll_s
        self._spans: dict[PartitionId, tuple[str, str]] = {}
        self._threads = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="evenflow-container-read")

    def __repr__(self) -> str:
        return f"<ContainerSource {self.container.path}>"

    async def identity(self) -> Identity:
        facts = self.container.opened().metadata
        return Identity(NAMESPACE, facts.name, facts.rid_text, "all" if self.mode == "all" else "")

    async def partitions(self) -> Sequence[Partition]:
        ranges = await self._on_thread(self.container.ranges)
        self._spans |= {one.id: (one.min, one.max) for one in ranges}
        return [Partition(one.id, one.parents) for one in sorted(ranges, key=lambda one: int(one.id))]

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        opened = self.container.opened()
        if isinstance(start, Position):
            await self._on_thread(lambda: self._check(opened, partition, start))
            return start
        if start not in ("earliest", "latest") and not isinstance(start, datetime):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        wanted = _microseconds(start) if isinstance(start, datetime) else start
        parts = await self._on_thread(lambda: start_positions(opened, partition, self.mode, wanted))  # type: ignore[arg-type]
        return to_position(merge_equal(PositionPart(*part) for part in parts))

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        opened = self.container.opened()
        span = await self._on_thread(lambda: self._check(opened, partition, after))
        codec = ContainerCodec(opened.metadata.keys, self.mode)
        range = RangeContext(opened, partition, span, self.mode, codec, self._poll_s, self._threads)
        return ContainerReader(range, after)

    async def child_start(self, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
        opened = self.container.opened()
        # Ids of ranges only grow, so this is the order of age. A parent that was never checkpointed does not count.
        known = [parent for parent in sorted(after, key=int) if after[parent] != BEGINNING]
        span, *spans = await self._on_thread(lambda: epk_spans(opened, [child, *known]))
        parents = zip(spans, (parse_position(after[parent]) for parent in known), strict=True)
        return to_position(child_position(span, parents))

    def sequences(self, position: Position) -> Sequence[int]:
        return [part.lsn for part in parse_position(position)]

    def name_of(self, event: Event) -> str:
        return document_id(event.body)

    def range_of(self, partition: PartitionId) -> tuple[str, str] | None:
        return self._spans.get(partition)

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        opened = self.container.opened()
        return await self._on_thread(lambda: {name: _bounds(opened, name, self.mode) for name in partitions})

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        opened = self.container.opened()
        found = await self._on_thread(
            lambda: {name: _waiting_us(opened, name, self.mode, place) for name, place in after.items()}
        )
        return {name: _moment(time_us) for name, time_us in found.items() if time_us is not None}

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False)
        if self._owned:
            self.container.close()

    def _check(self, opened: OpenContainer, partition: PartitionId, after: Position) -> tuple[str, str]:
        """The span of the range. A range that was split or merged may be opened anywhere: its reader reports it."""
        (span,) = epk_spans(opened, [partition])
        try:
            check_position(opened, partition, self.mode, pieces(parse_position(after), span))
        except RangeGone:
            pass
        return span

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _bounds(opened: OpenContainer, partition: PartitionId, mode: Mode) -> Bounds:
    try:
        ends = feed_bounds(opened, partition, mode)
    except EvenflowError:
        # Bounds may be unknown. The reader of that range gets the error.
        return Bounds()
    oldest = None if ends.oldest is None else _position(ends.oldest)
    if ends.newest is not None:
        return Bounds(oldest, _position(ends.newest), _moment(ends.newest_us))
    # Latest versions are never removed by retention, so an empty feed has missed nothing.
    return Bounds(oldest, _position(ends.lsn) if mode == "all" and ends.lsn else BEGINNING)


def _waiting_us(opened: OpenContainer, partition: PartitionId, mode: Mode, after: Position) -> int | None:
    """The oldest of the changes that come next in each part."""
    try:
        (span,) = epk_spans(opened, [partition])
        asks = [
            FeedRequest(range=partition, after=lsn, within=(low, high), mode=mode, max_items=1, max_bytes=1)
            for low, high, lsn in pieces(parse_position(after), span)
        ]
        found = [first for first in (first_change(opened, ask) for ask in asks) if first is not None]
    except EvenflowError:
        return None  # unknown, as in _bounds
    return min((time_us for _, time_us in found), default=None)


def _microseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
    return round(time.timestamp() * MICROSECONDS)


def _moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / MICROSECONDS, UTC)


def _position(lsn: int) -> Position:
    return Position(str(lsn), lsn)
