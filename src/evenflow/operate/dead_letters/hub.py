"""Dead letters in a hub: the embedded one, or any that can be read and written to (`ports.Writable`).

The records of one partition of one group have one key, so that they stay in one partition of the target, in order.
If partitions were added to the target since, they are in two: so all partitions are read, merged by the times at which
their events were enqueued. Other events in that hub are ignored.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.embedded.hub import Hub
from evenflow.errors import (
    DeadLettersUnavailable,
    HubExists,
    Misconfigured,
    NotAHub,
    PositionOutOfRange,
    StorageFull,
    Transient,
)
from evenflow.model import Event
from evenflow.operate.dead_letters.damage import DamageReport
from evenflow.operate.dead_letters.encoding import decode, encode
from evenflow.ports import Checkable
from evenflow.sources.hub.source import HubSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from evenflow.model import Batch, Bounds, DeadLetterRecord, Group, PartitionId
    from evenflow.operate.dead_letters.encoding import FiledRecord
    from evenflow.ports import Reader, Writable

PARTITIONS = 4
"""In a hub that is created for dead letters: few suffice, and readers read all of them."""
MARKER = "evenflow"
"""A property that distinguishes dead letters from other events in a hub."""
READ_EVENTS = 500
READ_BYTES = 1 << 20
QUIET_S = 1.0
"""Where a source does not know its end, an empty read of this length means the end."""
EMPTY_READS_MOST = 10
"""Where the end is known, this many empty reads before it mean that the target is failing."""


def from_url(url: str, *, create: bool = True) -> HubDeadLetters:
    """`hub:PATH`. `create` makes a missing hub; readers do not."""
    path = url.removeprefix("hub:")
    if not path:
        raise Misconfigured("The URL hub: names no folder. Name one, for example hub:data/dead.")
    with _translated():
        return HubDeadLetters(_opened(Path(path), create=create), owned=True)


def _opened(path: Path, *, create: bool) -> Hub:
    try:
        return Hub(path)
    except NotAHub:
        if not create or path.is_file():
            raise
    try:
        return Hub.create(path, PARTITIONS)
    except HubExists:
        # Another instance created it first.
        return Hub(path)


class EmbeddedHub(HubSource):
    """The embedded hub, read and written."""

    def __init__(self, hub: Hub, *, owned: bool) -> None:
        super().__init__(hub)
        self._owned = owned

    async def send(self, events: Sequence[Event]) -> object:
        return await self.hub.send(events)


class HubDeadLetters:
    """Closes the hub only if it opened it."""

    def __init__(self, hub: Hub | Writable, *, owned: bool = False) -> None:
        self._owned = owned or isinstance(hub, Hub)
        self._hub: Writable = EmbeddedHub(hub, owned=owned) if isinstance(hub, Hub) else hub

    async def check(self) -> None:
        """Checks that dead letters can be written to the hub, where it supports that."""
        if isinstance(self._hub, Checkable):
            with _translated():
                await self._hub.check()

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        key = f"{group}/{partition}"
        events = [Event(encode(group, partition, record), key, {MARKER: "dead_letters"}) for record in records]
        with _translated():
            await self._hub.send(events)

    async def read(self, group: Group, partition: PartitionId | None = None) -> AsyncIterator[DeadLetterRecord]:
        damage = DamageReport()
        with _translated():
            logs = await self._logs()
            try:
                async for where, event in _merged(logs):
                    entry = _entry(where, event, damage)
                    if entry is not None and entry.group == group and partition in (None, entry.partition):
                        yield entry.record
            finally:
                for log in logs:
                    await log.aclose()
        damage.check()

    async def aclose(self) -> None:
        if self._owned:
            await self._hub.aclose()

    async def _logs(self) -> list[_Log]:
        """The ends of all partitions are looked up before anything is read: what is filed later may be missed."""
        names = [partition.id for partition in await self._hub.partitions()]
        bounds = await self._hub.bounds(names)
        logs: list[_Log] = []
        for name in names:
            after = await self._hub.resolve(name, "earliest")
            logs.append(_Log(name, await self._hub.open(name, after, epoch=0), bounds.get(name)))
        return logs


class _Log:
    """One partition of the target, up to its end when reading began."""

    def __init__(self, partition: PartitionId, reader: Reader, bounds: Bounds | None) -> None:
        self.partition = partition
        self._reader = reader
        newest = bounds.newest if bounds is not None else None
        self._end = newest.sequence if newest is not None else None
        self._events: deque[Event] = deque()
        self._ended = self._end is not None and _is_empty(bounds)
        self.time_us = 0
        """The latest of its events so far: times of a source may go back a little, its order never does."""

    async def next(self) -> Event | None:
        empty_reads = 0
        while not self._events and not self._ended:
            batch = await self._reader.read(READ_EVENTS, READ_BYTES, QUIET_S)
            empty_reads = 0 if batch.events else empty_reads + 1
            self._take(batch, empty_reads)
        if not self._events:
            return None
        event = self._events.popleft()
        self.time_us = max(self.time_us, event.enqueued_us)
        return event

    async def aclose(self) -> None:
        await self._reader.aclose()

    def _take(self, batch: Batch, empty_reads: int) -> None:
        self._events.extend(batch.events)
        reached = batch.resume.sequence
        if batch.ended is not None or (self._end is None and not batch.events):
            self._ended = True
        elif self._end is not None and reached is not None:
            self._ended = reached >= self._end
        if not self._ended and empty_reads == EMPTY_READS_MOST:
            raise DeadLettersUnavailable(
                f"Partition {self.partition} of the dead letters returned no events for {empty_reads * QUIET_S:.0f} s "
                f"before its end. Check the target."
            )


async def _merged(logs: Sequence[_Log]) -> AsyncIterator[tuple[PartitionId, Event]]:
    """The events of each log in its own order, and those of different logs by their times."""
    heads: list[tuple[int, int, Event]] = []
    for number, log in enumerate(logs):
        if (event := await log.next()) is not None:
            heads.append((log.time_us, number, event))
    heapify(heads)
    while heads:
        _, number, event = heads[0]
        log = logs[number]
        yield log.partition, event
        following = await log.next()
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (log.time_us, number, following))


def _entry(partition: PartitionId, event: Event, damage: DamageReport) -> FiledRecord | None:
    if event.properties is None or MARKER not in event.properties:
        return None
    try:
        return decode(event.body)
    except ValueError as error:
        damage.found(f"Event {event.offset} of partition {partition} of the dead letters", error)
        return None


def _is_empty(bounds: Bounds | None) -> bool:
    if bounds is None or bounds.newest is None or bounds.oldest is None:
        return False
    newest, oldest = bounds.newest.sequence, bounds.oldest.sequence
    return newest is not None and oldest is not None and newest < oldest


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of a source or a hub, translated to those of dead letters."""
    try:
        yield
    except (DeadLettersUnavailable, StorageFull):
        raise
    except (Transient, PositionOutOfRange) as error:
        raise DeadLettersUnavailable(f"The target of dead letters is unavailable: {error}") from error
