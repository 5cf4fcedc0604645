"""The embedded hub as a source. SQLite is accessed on threads only, in short transactions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from evenflow.embedded.hub import Hub
from evenflow.embedded.hub.log_state import check_range
from evenflow.errors import EvenflowError, Misconfigured, PositionOutOfRange
from evenflow.model import BEGINNING, MICROSECONDS, Bounds, Identity, Partition, Position
from evenflow.sources.hub.reader import HubReader, ReadPool, position_at

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.embedded.hub.log import PartitionLog
    from evenflow.embedded.hub.open_hub import OpenHub
    from evenflow.model import PartitionId
    from evenflow.ports import Reader, Start

T = TypeVar("T")

NAMESPACE = "local"
READING_THREADS = 4


def from_url(url: str) -> HubSource:
    """`hub:PATH`, with the path as it would be given to `Hub`."""
    path = url.removeprefix("hub:")
    if not path:
        raise Misconfigured("The URL hub: names no folder; write for instance hub:data/homes.")
    return HubSource(path)


class HubSource:
    """Closes the hub only if it opened it."""

    def __init__(self, hub: Hub | str | os.PathLike[str]) -> None:
        self._owned = not isinstance(hub, Hub)
        self.hub = hub if isinstance(hub, Hub) else Hub(hub)
        self._pool = ReadPool(READING_THREADS)

    async def identity(self) -> Identity:
        facts = self.hub.opened().metadata()
        return Identity(NAMESPACE, facts.name, facts.made)

    async def partitions(self) -> Sequence[Partition]:
        opened = self.hub.opened()
        facts = await self._on_thread(lambda: opened.metadata(fresh=True))
        return [Partition(str(number)) for number in range(facts.partitions)]

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        log = self._log(self.hub.opened(), partition)
        sequence = await self._on_thread(lambda: _resolved(log, start))
        return position_at(sequence)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        opened = self.hub.opened()
        log = self._log(opened, partition)
        sequence = _sequence(after)
        await self._on_thread(lambda: check_range(log.path, sequence, log.state()))
        return HubReader(opened, log, opened.slot(int(partition)), sequence, self._pool)

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        opened = self.hub.opened()
        logs = {partition: self._log(opened, partition) for partition in partitions}
        return await self._on_thread(lambda: {partition: _bounds(log) for partition, log in logs.items()})

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        opened = self.hub.opened()
        logs = [(partition, self._log(opened, partition), _sequence(place)) for partition, place in after.items()]
        found = await self._on_thread(lambda: {name: _enqueued_us(log, place) for name, log, place in logs})
        return {name: _moment(time_us) for name, time_us in found.items() if time_us is not None}

    async def aclose(self) -> None:
        self._pool.threads.shutdown(wait=False)
        if self._owned:
            await self.hub.aclose()

    def _log(self, opened: OpenHub, partition: PartitionId) -> PartitionLog:
        count = opened.metadata().partitions
        if not partition.isdecimal() or int(partition) >= count:
            raise Misconfigured(f"{self.hub} has no partition {partition!r}; its partitions are 0 to {count - 1}.")
        return opened.log(int(partition))

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool.threads, call)


def _resolved(log: PartitionLog, start: Start) -> int:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise Misconfigured(f"The start {start} has no time zone. Give it one, for instance tzinfo=UTC.")
        return log.before_time(round(start.timestamp() * MICROSECONDS))
    state = log.state()
    if start == "earliest":
        return state.oldest - 1
    if start == "latest":
        return state.next - 1
    if not isinstance(start, Position):
        raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
    sequence = _sequence(start)
    check_range(log.path, sequence, state)
    return sequence


def _sequence(position: Position) -> int:
    if position.sequence is not None:
        return position.sequence
    try:
        return int(position.offset)
    except ValueError:
        raise PositionOutOfRange(
            f"{position.offset!r} is not an offset of a hub (expected an integer). Was it stored by another source?"
        ) from None


def _bounds(log: PartitionLog) -> Bounds:
    try:
        state = log.state()
    except EvenflowError:
        # Bounds may be unknown. The reader of that partition gets the error.
        return Bounds()
    if state.next == 0:
        return Bounds(position_at(0), BEGINNING)
    return Bounds(position_at(state.oldest), position_at(state.next - 1), _moment(state.enqueued_us))


def _enqueued_us(log: PartitionLog, after: int) -> int | None:
    try:
        return log.enqueued_us(after)
    except EvenflowError:
        return None  # unknown, as in _bounds


def _moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / MICROSECONDS, UTC)
