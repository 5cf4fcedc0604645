from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from evenflow.model import MICROSECONDS
from evenflow.testing.fakes import FakeFeed, FakeSource
from evenflow.testing.source.contract import SourceContract, SourceWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event, Partition


def by_body(child: Partition, event: Event) -> bool:
    """Even numbers go to the left, odd ones to the right."""
    return child.id.endswith("left") == (int(event.body) % 2 == 0)


class FakeWorld(SourceWorld):
    def __init__(self, partitions: int, *, vanish: bool = False) -> None:
        self.now_us = 1_700_000_000 * MICROSECONDS
        wall: dict[str, Any] = {"wall_us": lambda: self.now_us}
        self.fake = FakeFeed(partitions, takes=by_body, **wall) if vanish else FakeSource(partitions, **wall)
        self.source = self.fake

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        for event in events:
            self.fake.append(partition, event.body, event.key, event.properties)

    async def later(self) -> datetime:
        self.now_us += 20 * MICROSECONDS
        return datetime.fromtimestamp(self.now_us / MICROSECONDS - 10, UTC)

    async def trim(self, partition: str, count: int) -> None:
        oldest = (await self.fake.bounds([partition]))[partition].oldest
        assert oldest is not None
        assert oldest.sequence is not None
        self.fake.trim(partition, oldest.sequence + count)

    async def grow(self, more: int) -> None:
        self.fake.grow(more)

    async def end(self, partition: str) -> None:
        self.fake.end(partition, [f"{partition}-left", f"{partition}-right"])

    async def restart(self) -> None:
        """What is in memory alone has nothing to come back from; the same source goes on."""

    async def remake(self) -> None:
        self.fake.remake()


class TestFakeSource(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        yield FakeWorld(partitions)


class TestFakeFeed(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        yield FakeWorld(partitions, vanish=True)
