"""Sources in memory, for tests of code that reads sources: no threads, no files, any kind of event loop.

They pass the same contract suite as real sources. Several event loops that take turns in one thread may share one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import BEGINNING, MICROSECONDS, Batch, Bounds, Event, Identity, Partition, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model import PartitionId
    from evenflow.ports import Reader, Start


def _loop_us() -> int:
    try:
        return round(asyncio.get_running_loop().time() * MICROSECONDS)
    except RuntimeError:
        return 0


@dataclass(eq=False)
class _FakeLog:
    partition: Partition
    oldest: int = 0
    events: list[Event] = field(default_factory=list)
    enqueued_us: int = 0
    children: tuple[Partition, ...] | None = None
    deleted: bool = False
    waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def next(self) -> int:
        return self.oldest + len(self.events)

    def wake(self) -> None:
        """Wakes each waiter in its own loop: a future must not be changed from another loop."""
        waiters, self.waiters = self.waiters, []
        for loop, waiter in waiters:
            if not loop.is_closed():
                loop.call_soon(_set, waiter)

    def check(self, after: int) -> None:
        kept = f"the oldest is {self.oldest}, the newest {self.next - 1}"
        if after < self.oldest - 1:
            raise PositionGone(f"Events after {after} of partition {self.partition.id} are no longer kept: {kept}.")
        if after >= self.next:
            raise PositionOutOfRange(f"Position {after} is beyond the end of partition {self.partition.id}: {kept}.")


class FakeSource:
    """A hub with the partitions "0", "1", ..., which tests can append to, grow, trim, end and recreate at any time."""

    def __init__(self, partitions: int = 4, *, name: str = "fake", wall_us: Callable[[], int] = _loop_us) -> None:
        self.name = name
        self._wall_us = wall_us
        self._makings = 0
        self._logs: dict[PartitionId, _FakeLog] = {}
        self.grow(partitions)

    @property
    def open_ids(self) -> list[PartitionId]:
        """The partitions that accept events."""
        return [name for name, log in self._logs.items() if log.children is None]

    def append(
        self, partition: PartitionId, body: bytes, key: str | None = None, properties: dict[str, Any] | None = None
    ) -> Position:
        log = self._log(partition)
        assert log.children is None, f"partition {partition} has ended"
        log.enqueued_us = max(log.enqueued_us, self._wall_us())
        event = Event(body, key, properties, log.next, log.enqueued_us)
        log.events.append(event)
        log.wake()
        return event.position

    @property
    def partition_ids(self) -> list[PartitionId]:
        return list(self._logs)

    def newest(self, partition: PartitionId) -> int:
        """The sequence of the newest event; -1 if there never was one."""
        return self._log(partition).next - 1

    def grow(self, more: int) -> None:
        for name in self.new_ids(more):
            self._logs[name] = _FakeLog(Partition(name))

    def new_ids(self, more: int) -> list[PartitionId]:
        """Ids that no partition ever had."""
        return list(islice((name for name in map(str, count(len(self._logs))) if not self._has_had(name)), more))

    def _has_had(self, partition: PartitionId) -> bool:
        return partition in self._logs

    def trim(self, partition: PartitionId, before: int) -> None:
        """Removes the events before this sequence."""
        log = self._log(partition)
        cut = min(max(before, log.oldest), log.next)
        del log.events[: cut - log.oldest]
        log.oldest = cut

    def end(self, partition: PartitionId, children: Sequence[PartitionId]) -> None:
        """Ends the partition; the children continue it."""
        self._succeed([partition], children)

    def merge(self, partitions: Sequence[PartitionId], child: PartitionId) -> None:
        """Ends the partitions; the child continues them."""
        self._succeed(partitions, [child])

    def _succeed(self, parents: Sequence[PartitionId], children: Sequence[PartitionId]) -> None:
        made = tuple(Partition(child, tuple(parents)) for child in children)
        self._logs |= {child.id: _FakeLog(child) for child in made}
        for log in map(self._log, parents):
            log.children = made
            log.wake()

    def remake(self, partitions: int | None = None) -> None:
        """Deletes the hub and creates an empty one under the same name."""
        for log in self._logs.values():
            log.deleted = True
            log.wake()
        wanted = len(self._logs) if partitions is None else partitions
        self._logs = {}
        self._makings += 1
        self.grow(wanted)

    async def identity(self) -> Identity:
        return Identity("fake", self.name, f"made-{self._makings}")

    async def partitions(self) -> Sequence[Partition]:
        return [log.partition for log in self._logs.values()]

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        log = self._log(partition)
        if isinstance(start, Position):
            log.check(_sequence(start))
            return start
        if isinstance(start, datetime):
            time_us = round(start.timestamp() * MICROSECONDS)
            later = [event.sequence for event in log.events if event.enqueued_us >= time_us]
            return _position((later[0] or 0) - 1 if later else log.next - 1)
        if start not in ("earliest", "latest"):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        return _position(log.oldest - 1 if start == "earliest" else log.next - 1)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        log = self._log(partition)
        log.check(_sequence(after))
        return FakeReader(log, _sequence(after))

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        return {partition: _bounds(self._log(partition)) for partition in partitions}

    async def aclose(self) -> None:
        pass

    def _log(self, partition: PartitionId) -> _FakeLog:
        if partition not in self._logs:
            raise Misconfigured(f"The source {self.name} has no partition {partition!r}.")
        return self._logs[partition]


class FakeFeed(FakeSource):
    """A source whose partitions are removed when they split or merge, like the ranges of a change feed. The children
    have copies of all events, each in the child that `takes` it, and continue after the group's position."""

    def __init__(
        self,
        partitions: int = 4,
        *,
        takes: Callable[[Partition, Event], bool] = lambda child, event: True,
        **options: Any,
    ) -> None:
        self._takes = takes
        self._removed: dict[PartitionId, _FakeLog] = {}
        self._origins: dict[PartitionId, list[dict[PartitionId, int]]] = {}
        """The sequence of each event in the partition's ancestors."""
        super().__init__(partitions, **options)

    def remake(self, partitions: int | None = None) -> None:
        self._removed, self._origins = {}, {}
        super().remake(partitions)

    def _has_had(self, partition: PartitionId) -> bool:
        return partition in self._removed or super()._has_had(partition)

    def origin(self, partition: PartitionId, sequence: int) -> tuple[PartitionId, int]:
        """The partition and sequence where this event was appended."""
        known = self._origins.get(partition, [])
        return next(iter(known[sequence].items())) if sequence < len(known) else (partition, sequence)

    def _succeed(self, parents: Sequence[PartitionId], children: Sequence[PartitionId]) -> None:
        ancestors = [*dict.fromkeys(one for name in parents for one in (*self._logs[name].partition.parents, name))]
        made = tuple(Partition(child, tuple(ancestors)) for child in children)
        for child in made:
            self._logs[child.id] = _FakeLog(child)
            self._origins[child.id] = []
            for name in parents:
                self._inherit(child, name)
        for name in parents:
            log = self._removed[name] = self._logs.pop(name)
            log.children = made
            log.wake()

    def _inherit(self, child: Partition, parent: PartitionId) -> None:
        log, into = self._logs[parent], self._logs[child.id]
        known = self._origins.get(parent, [])
        for event in log.events:
            if self._takes(child, event):
                at = event.sequence or 0
                self._origins[child.id].append({**(known[at] if at < len(known) else {}), parent: at})
                into.events.append(replace(event, sequence=into.next))
                into.enqueued_us = max(into.enqueued_us, event.enqueued_us)

    async def child_start(self, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
        passed: dict[PartitionId, int] = {}
        for parent, position in after.items():
            passed |= _passed(position)
            passed[parent] = max(_sequence(position), passed.get(parent, -1))
        return Position(_offset(-1, passed), -1)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        if partition in self._removed:
            return _RemovedReader(self._removed[partition], after)
        log = self._log(partition)
        log.check(_sequence(after))
        return _FeedReader(log, after, self._origins.get(partition, []))

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        return {name: Bounds() if name in self._removed else _bounds(self._log(name)) for name in partitions}

    def _log(self, partition: PartitionId) -> _FakeLog:
        return self._removed[partition] if partition in self._removed else super()._log(partition)


class FakeReader:
    """Reads one partition of a FakeSource."""

    def __init__(self, log: _FakeLog, after: int) -> None:
        self._log = log
        self._after = after

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + max_wait_s
        while True:
            batch = self._next(max_events, max_bytes)
            if batch.events or batch.ended is not None or loop.time() >= deadline_s:
                return batch
            await self._wait_until(loop, deadline_s)

    async def aclose(self) -> None:
        pass

    def _next(self, max_events: int, max_bytes: int) -> Batch:
        log = self._log
        if log.deleted:
            raise SourceUnavailable("The source was deleted or recreated while it was being read. Open it again.")
        log.check(self._after)
        start = self._after + 1 - log.oldest
        events: list[Event] = []
        size_bytes = 0
        for event in log.events[start : start + max_events]:
            if events and size_bytes + len(event.body) > max_bytes:
                break
            events.append(event)
            size_bytes += len(event.body)
        self._after += len(events)
        ended = log.children if self._after == log.next - 1 else None
        return Batch(events, _position(self._after), size_bytes, ended)

    async def _wait_until(self, loop: asyncio.AbstractEventLoop, time_s: float) -> None:
        waiter: asyncio.Future[None] = loop.create_future()
        entry = (loop, waiter)
        self._log.waiters.append(entry)
        timer = loop.call_at(time_s, _set, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if entry in self._log.waiters:
                self._log.waiters.remove(entry)


class _FeedReader(FakeReader):
    """Skips events that were handled in the partition's ancestors. Every position contains the ancestors' positions."""

    def __init__(self, log: _FakeLog, after: Position, origins: Sequence[Mapping[PartitionId, int]]) -> None:
        super().__init__(log, _sequence(after))
        self._passed, self._origins, self._resume = _passed(after), origins, after

    def _next(self, max_events: int, max_bytes: int) -> Batch:
        if self._log.children is not None:
            return Batch([], self._resume, 0, self._log.children)  # the partition is removed, even with unread events
        batch = super()._next(max_events, max_bytes)
        events = [self._placed(event) for event in batch.events if not self._is_passed(event.sequence or 0)]
        self._resume = Position(_offset(self._after, self._passed), self._after)
        return Batch(events, self._resume, batch.size_bytes)

    def _is_passed(self, sequence: int) -> bool:
        origins = self._origins[sequence] if sequence < len(self._origins) else {}
        return any(at <= self._passed.get(name, -1) for name, at in origins.items())

    def _placed(self, event: Event) -> Event:
        return replace(event, offset_text=_offset(event.sequence or 0, self._passed)) if self._passed else event


class _RemovedReader:
    """The reader of a partition that was removed before it was opened."""

    def __init__(self, log: _FakeLog, after: Position) -> None:
        self._log, self._after = log, after

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        return Batch([], self._after, 0, self._log.children)

    async def aclose(self) -> None:
        pass


def _offset(sequence: int, passed: Mapping[PartitionId, int]) -> str:
    """A sequence, and the sequences handled in the partition's ancestors: `7|0=3,1=5`."""
    return f"{sequence}|{','.join(f'{name}={at}' for name, at in sorted(passed.items()))}" if passed else str(sequence)


def _passed(position: Position) -> dict[PartitionId, int]:
    listed = position.offset.partition("|")[2]
    return {name: int(at) for name, _, at in (one.rpartition("=") for one in listed.split(","))} if listed else {}


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _sequence(position: Position) -> int:
    return int(position.offset) if position.sequence is None else position.sequence


def _position(sequence: int) -> Position:
    return Position(str(sequence), sequence)


def _bounds(log: _FakeLog) -> Bounds:
    if log.next == 0:
        return Bounds(_position(0), BEGINNING)
    newest_at = datetime.fromtimestamp(log.enqueued_us / MICROSECONDS, UTC)
    return Bounds(_position(log.oldest), _position(log.next - 1), newest_at)
