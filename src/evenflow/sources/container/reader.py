"""A reader of one range of an embedded container: it waits for the bell, and looks for changes when that has rung.

One that has nothing to do looks every `poll_s`, for the writer that was killed between its commit and its ring, and for
documents whose time has come.
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
from evenflow.sources.container.positions import Part, Piece, lowest, place_of, position_of, raised
from evenflow.sources.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import ThreadPoolExecutor

    from evenflow.embedded.container.feed import FeedRows, Mode
    from evenflow.embedded.container.open_container import OpenContainer
    from evenflow.model import Event, PartitionId, Position
    from evenflow.sources.container.codec import Teller
    from evenflow.sources.container.positions import Place, Span

LOOK_CHANGES = 2_000
"""What a look brings at least, if it is there and not too large: who reads few at a time shares its cost."""
FIRST_CHANGES = 100
"""While nobody knows how large they are."""


class Look(NamedTuple):
    """What a look at the range found."""

    events: Sequence[Event] = ()
    place: Place = ()
    """After all of them, and after what was passed without an event."""
    is_last: bool = True
    children: tuple[Partition, ...] | None = None
    """The range is gone, and these go on."""


class Range(NamedTuple):
    """Which range of which making of a container is read, and how."""

    opened: OpenContainer
    id: PartitionId
    span: Span
    mode: Mode
    teller: Teller
    poll_s: float
    threads: ThreadPoolExecutor


class ContainerReader:
    """A look runs on a thread, and is kept until a read takes it: so a read may be cancelled at any time."""

    def __init__(self, range: Range, after: Position) -> None:
        self._range = range
        self._place = place_of(after)
        self._resume = after
        self._events: Sequence[Event] = ()
        self._sizes: list[int] = []
        self._at = 0
        self._change_bytes = 0.0
        self._children: tuple[Partition, ...] | None = None
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.Future[Look] | None = None
        self._looked_s = 0.0
        # The bell's value from before the last look, if that look took all there was; None asks for a look.
        self._heard: int | None = None
        self._waiting = Waiting()
        self._slot = slot_of(int(range.id))
        range.opened.bell.grow(self._slot + 1)
        self._end_watch = range.opened.bell.watch(self._waiting.wake, self._slot)

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        deadline_s = self._loop.time() + max_wait_s
        while self._at == len(self._events):
            if self._children is not None:
                return Batch([], self._resume, 0, self._children)
            if self._looking is not None or self._must_look():
                await self._look(max_events, max_bytes)
            elif self._loop.time() >= deadline_s:
                return Batch((), self._resume)
            else:
                await self._waiting.until(min(deadline_s, self._looked_s + self._range.poll_s))
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        self._end_watch()
        if self._looking is not None:
            await asyncio.wait([self._looking])
            self._looking.exception()

    def _must_look(self) -> bool:
        bell = self._range.opened.bell
        if bell.gone():
            raise SourceUnavailable(
                f"The container at {self._range.opened.folder} was deleted, or made again, while it was read. Open it"
                " again."
            )
        late = self._loop.time() - self._looked_s >= self._range.poll_s
        return self._heard is None or late or bell.value(self._slot) != self._heard

    async def _look(self, max_events: int, max_bytes: int) -> None:
        if self._looking is None:
            self._looking = self._begun(self._look_changes(max_events, max_bytes), max_bytes)
        await asyncio.wait([self._looking])
        looking, self._looking = self._looking, None
        heard, self._heard = self._heard, None
        look = looking.result()
        if look.is_last:
            self._heard = heard
        self._take_in(look)

    def _look_changes(self, max_events: int, max_bytes: int) -> int:
        if not self._change_bytes:
            return FIRST_CHANGES
        return min(max(max_events, LOOK_CHANGES), int(max_bytes // self._change_bytes) + 1)

    def _begun(self, max_events: int, max_bytes: int) -> asyncio.Future[Look]:
        self._looked_s = self._loop.time()
        try:
            # Before the look: a ring during it then asks for another.
            heard = self._range.opened.bell.value(self._slot)
            looking = self._loop.run_in_executor(
                self._range.threads, looked, self._range, self._place, max_events, max_bytes
            )
        except (RuntimeError, OSError) as error:
            raise SourceUnavailable("The source of this reader was closed. Open another.") from error
        self._heard = heard
        return looking

    def _take_in(self, look: Look) -> None:
        if look.children is not None:
            self._children = look.children
            return
        self._events, self._at, self._place = look.events, 0, look.place
        self._sizes = [len(event.body) for event in look.events]
        if look.events:
            self._change_bytes = max(1.0, sum(self._sizes) / len(self._sizes))
        else:
            self._resume = position_of(look.place)

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        found = self._events[self._at : self._at + max_events]
        sizes = self._sizes[self._at : self._at + max_events]
        count, size_bytes = len(found), sum(sizes)
        while count > 1 and size_bytes > max_bytes:
            count -= 1
            size_bytes -= sizes[count]
        found = found[:count]
        self._at += count
        self._resume = position_of(self._place) if self._at == len(self._events) else found[-1].position
        return Batch(found, self._resume, size_bytes)


def looked(range: Range, place: Place, max_events: int, max_bytes: int) -> Look:
    """The next changes after a place: those of the part that is furthest behind, up to where the next one is."""
    piece, ceiling = lowest(place, range.span)
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
            return Look(range.teller.of_lines(lines), (Part(EPK_MIN, lines.after),), lines.after >= lines.lsn)
        found = read_feed_rows(range.opened, ask)
    except RangeGone:
        return Look(children=children_of(range.opened, range.id))
    return _told(range, place, piece, found, ceiling)


def _told(range: Range, place: Place, piece: Piece, found: FeedRows, ceiling: int | None) -> Look:
    rows, to = found.rows, found.after
    if ceiling is not None:
        rows, to = [row for row in rows if row[0] <= ceiling], min(to, ceiling)
    events = range.teller.events(place, range.span, piece, rows)
    after = raised(place, range.span, Piece(piece.low, piece.high, to))
    return Look(events, after, is_last=ceiling is None and to >= found.lsn)


def children_of(opened: OpenContainer, range: PartitionId) -> tuple[Partition, ...]:
    """Those that are there now and came from this one."""
    with opened.reading() as connection:
        return tuple(Partition(one.id, one.parents) for one in ranges_in(connection) if range in one.parents)
