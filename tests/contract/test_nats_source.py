from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import nats
import pytest

from evenflow.sources.nats.source import NatsSource
from evenflow.testing.source.contract import SourceContract, SourceWorld
from tests.servers.nats import shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event


@pytest.fixture(autouse=True, scope="module")
def server() -> None:
    """Started before the first test's time runs."""
    shared()


class NatsWorld(SourceWorld):
    """A stream of the shared server, with a literal subject for each partition, and a second source that writes."""

    def __init__(self, partitions: int) -> None:
        self.server = shared()
        self.stream = self.server.fresh()
        self.names = [str(number) for number in range(partitions)]
        self.source = self._opened()
        self.sender = self._opened()

    def _opened(self) -> NatsSource:
        return NatsSource(self.server.address, self.stream, subject=f"{self.stream}.{{partition}}")

    async def begin(self) -> None:
        self.client = await nats.connect(f"nats://{self.server.address}")
        self.manager = self.client.jsm()
        await self._make()

    async def _make(self) -> None:
        await self.manager.add_stream(name=self.stream, subjects=[f"{self.stream}.{name}" for name in self.names])

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        await self.sender.publish(events, partition)

    async def trim(self, partition: str, count: int) -> None:
        facts = await self.manager.stream_info(self.stream)
        await self.manager.purge_stream(
            self.stream, seq=facts.state.first_seq + count, subject=f"{self.stream}.{partition}"
        )

    async def grow(self, more: int) -> None:
        self.names += [str(number) for number in range(len(self.names), len(self.names) + more)]
        await self.manager.update_stream(name=self.stream, subjects=[f"{self.stream}.{name}" for name in self.names])

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = self._opened()

    async def remake(self) -> None:
        await self.manager.delete_stream(self.stream)
        await asyncio.sleep(0.01)
        await self._make()

    async def aclose(self) -> None:
        await self.source.aclose()
        await self.sender.aclose()
        await self.manager.delete_stream(self.stream)
        await self.client.close()


class TestNatsSource(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        world = NatsWorld(partitions)
        await world.begin()
        try:
            yield world
        finally:
            await world.aclose()
