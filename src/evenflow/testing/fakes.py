"""A source in memory, for tests of whatever reads sources: no threads, no files, any kind of event loop.

It keeps to the contract that real sources are held to (`source_contract`). Several event loops that take turns in one
thread may share one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
class _Log:
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
        """A waiter is woken in its own loop: a future must not be touched from another one."""
        waiters, self.waiters = self.waiters, []
        for loop, waiter in waiters:
            if not loop.is_closed():
                loop.call_soon(_set, waiter)

    def check(self, after: int) -> None:
        kept = f"the oldest is {self.oldest}, the newest {self.next - 1}"
        if after < self.oldest - 1:
            raise PositionGone(f"Events after {after} of partition {self.partition.id} are no longer kept: {kept}.")
        if after >= self.next:
            raise PositionOutOfRange(f"Position {after} is beyond partition {self.partition.id}: {kept}.")


class FakeSource:
    """Partitions "0", "1", ... to append to, grow, trim, end and make again, at any time."""

    def __init__(self, partitions: int = 4, *, name: str = "fake", wall_us: Callable[[], int] = _loop_us) -> None:
        self.name = name
        self._wall_us = wall_us
        self._makings = 0
        self._logs: dict[PartitionId, _Log] = {}
        self.grow(partitions)

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
        """The sequence of the newest event; -1 when there never was one."""
        return self._log(partition).next - 1

    def grow(self, more: int) -> None:
        for number in range(len(self._logs), len(self._logs) + more):
            self._logs[str(number)] = _Log(Partition(str(number)))

    def trim(self, partition: PartitionId, before: int) -> None:
        """Forget the events before this sequence."""
        log = self._log(partition)
        cut = min(max(before, log.oldest), log.next)
        del log.events[: cut - log.oldest]
        log.oldest = cut

    def end(self, partition: PartitionId, children: Sequence[PartitionId]) -> None:
        """The partition takes no more events and is succeeded by new ones: one is a merge's, several a split's."""
        log = self._log(partition)
        for child in children:
            known = self._logs.get(child)
            parents = (*(known.partition.parents if known else ()), partition)
            self._logs[child] = _Log(Partition(child, parents))
        log.children = tuple([self._logs[child].partition for child in children])
        log.wake()

    def remake(self, partitions: int | None = None) -> None:
        """Delete the hub and make it again: empty, under the same name."""
        for log in self._logs.values():
            log.deleted = True
            log.wake()
        count = len(self._logs) if partitions is None else partitions
        self._logs = {}
        self._makings += 1
        self.grow(count)

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
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        return _position(log.oldest - 1 if start == "earliest" else log.next - 1)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        log = self._log(partition)
        log.check(_sequence(after))
        return FakeReader(log, _sequence(after))

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        return {partition: _bounds(self._log(partition)) for partition in partitions}

    async def aclose(self) -> None:
        pass

    def _log(self, partition: PartitionId) -> _Log:
        if partition not in self._logs:
            raise Misconfigured(f"The source {self.name} has no partition {partition!r}.")
        return self._logs[partition]


class FakeReader:
    """Reads one partition of a FakeSource."""

    def __init__(self, log: _Log, after: int) -> None:
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
            raise SourceUnavailable("The source was deleted, or made again, while it was read. Open it again.")
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


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _sequence(position: Position) -> int:
    return int(position.offset) if position.sequence is None else position.sequence


def _position(sequence: int) -> Position:
    return Position(str(sequence), sequence)


def _bounds(log: _Log) -> Bounds:
    if log.next == 0:
        return Bounds(_position(0), BEGINNING)
    newest_at = datetime.fromtimestamp(log.enqueued_us / MICROSECONDS, UTC)
    return Bounds(_position(log.oldest), _position(log.next - 1), newest_at)
