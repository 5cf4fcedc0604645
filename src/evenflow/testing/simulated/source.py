"""The way between an instance and the source: events may come twice, reads may fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.errors import SourceUnavailable
from evenflow.testing.fakes import FakeFeed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Batch, Bounds, Event, Identity, Partition, PartitionId, Position
    from evenflow.ports import Reader, Start
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World


class SourceLine:
    """The source as one process reaches it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def identity(self) -> Identity:
        return await self._world.source.identity()

    async def partitions(self) -> Sequence[Partition]:
        self._may_fail()
        return await self._world.source.partitions()

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        self._may_fail()
        return await self._world.source.resolve(partition, start)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        self._may_fail()
        return ReaderLine(self._world, await self._world.source.open(partition, after, epoch=epoch))

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        return await self._world.source.bounds(partitions)

    async def aclose(self) -> None:
        """The world's source stays."""

    def _may_fail(self) -> None:
        if self._world.chance("source_fails"):
            raise SourceUnavailable("the simulated source is away")


class FeedLine(SourceLine):
    """A source whose partitions vanish when they split or merge."""

    async def child_start(self, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
        self._may_fail()
        source = self._world.source
        assert isinstance(source, FakeFeed)
        return await source.child_start(child, after)


def source_line(world: World, process: Process) -> SourceLine:
    return FeedLine(world, process) if isinstance(world.source, FakeFeed) else SourceLine(world, process)


class ReaderLine:
    def __init__(self, world: World, reader: Reader) -> None:
        self._world = world
        self._reader = reader
        self._last: Sequence[Event] = ()

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        if self._world.chance("source_fails"):
            raise SourceUnavailable("the simulated source dropped the connection")
        if batch.events and self._last and self._world.chance("repeat"):
            batch = replace(batch, events=[*self._last, *batch.events])
        self._last = batch.events or self._last
        return batch

    async def aclose(self) -> None:
        await self._reader.aclose()
