"""Dead letters in a hub: the embedded one, or any that can be read and written to (`ports.Writable`).

The records of one partition of one group have one key, so that they stay in one partition of the target, in order.
Should the target have got more partitions since, they are in two: so all partitions are read, merged by the times at
which their events were enqueued. What else is in that hub is somebody else's, and is passed over.
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
"""Of a hub that is made for dead letters: there are few, and whoever reads looks into each."""
OURS = "evenflow"
"""A property that tells our records from whatever else is in a hub."""
READ_EVENTS = 500
READ_BYTES = 1 << 20
QUIET_S = 1.0
"""Where a source cannot tell where its end is, it has come when nothing comes for so long."""
MISSES = 10
"""Where it can tell, so many empty reads before it are a target that is not well."""


def from_url(url: str, *, create: bool = True) -> HubDeadLetters:
    """`hub:PATH`. A hub that is not there is made, unless somebody only looks."""
    path = url.removeprefix("hub:")
    if not path:
        raise Misconfigured("The URL hub: names no folder; write for instance hub:data/dead.")
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
        # Another instance was faster.
        return Hub(path)


class EmbeddedHub(HubSource):
    """The embedded hub, read and written."""

    def __init__(self, hub: Hub, *, owned: bool) -> None:
        super().__init__(hub)
        self._owned = owned

    async def send(self, events: Sequence[Event]) -> object:
        return await self.hub.send(events)


class HubDeadLetters:
    """It closes the hub only if it opened it."""

    def __init__(self, hub: Hub | Writable, *, owned: bool = False) -> None:
        self._owned = owned or isinstance(hub, Hub)
        self._hub: Writable = EmbeddedHub(hub, owned=owned) if isinstance(hub, Hub) else hub

    async def check(self) -> None:
        """Where the hub can tell: that dead letters can be written to it."""
        if isinstance(self._hub, Checkable):
            with _translated():
                await self._hub.check()

    async def file(self, group: Group, partition: PartitionId, records: Sequence[DeadLetterRecord]) -> None:
        key = f"{group}/{partition}"
        events = [Event(encode(group, partition, record), key, {OURS: "dead_letters"}) for record in records]
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
        """Where each partition ends is looked up before anything is read: what is filed meanwhile may be missed."""
        names = [partition.id for partition in await self._hub.partitions()]
        bounds = await self._hub.bounds(names)
        logs: list[_Log] = []
        for name in names:
            after = await self._hub.resolve(name, "earliest")
            logs.append(_Log(name, await self._hub.open(name, after, epoch=0), bounds.get(name)))
        return logs


class _Log:
    """One partition of the target, up to where it ended when the reading began."""

    def __init__(self, partition: PartitionId, reader: Reader, bounds: Bounds | None) -> None:
        self.partition = partition
        self._reader = reader
        newest = bounds.newest if bounds is not None else None
        self._end = newest.sequence if newest is not None else None
        self._events: deque[Event] = deque()
        self._ended = self._end is not None and _is_empty(bounds)
        self.time_us = 0
        """Of its events so far, the latest: a source's times may go back a little, its order does not."""

    async def next(self) -> Event | None:
        misses = 0
        while not self._events and not self._ended:
            batch = await self._reader.read(READ_EVENTS, READ_BYTES, QUIET_S)
            misses = 0 if batch.events else misses + 1
            self._take(batch, misses)
        if not self._events:
            return None
        event = self._events.popleft()
        self.time_us = max(self.time_us, event.enqueued_us)
        return event

    async def aclose(self) -> None:
        await self._reader.aclose()

    def _take(self, batch: Batch, misses: int) -> None:
        self._events.extend(batch.events)
        reached = batch.resume.sequence
        if batch.ended is not None or (self._end is None and not batch.events):
            self._ended = True
        elif self._end is not None and reached is not None:
            self._ended = reached >= self._end
        if not self._ended and misses == MISSES:
            raise DeadLettersUnavailable(
                f"Partition {self.partition} of the dead letters gave nothing for {misses * QUIET_S:.0f} s, but has "
                f"more to give. See whether the target is well."
            )


async def _merged(logs: Sequence[_Log]) -> AsyncIterator[tuple[PartitionId, Event]]:
    """Each log's events in its own order, and those of different logs by their times."""
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
    if event.properties is None or OURS not in event.properties:
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
    """What a source or a hub raises, as what it means for dead letters."""
    try:
        yield
    except (DeadLettersUnavailable, StorageFull):
        raise
    except (Transient, PositionOutOfRange) as error:
        raise DeadLettersUnavailable(f"The target of dead letters does not answer: {error}") from error
