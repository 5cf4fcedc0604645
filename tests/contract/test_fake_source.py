from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evenflow.model import MICROSECONDS
from evenflow.testing.fakes import FakeSource
from evenflow.testing.source_contract import SourceContract, SourceWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event


class FakeWorld(SourceWorld):
    def __init__(self, partitions: int) -> None:
        self.now_us = 1_700_000_000 * MICROSECONDS
        self.fake = FakeSource(partitions, wall_us=lambda: self.now_us)
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
