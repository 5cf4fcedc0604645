from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import PositionGone
from evenflow.sources.kinesis.source import KinesisSource
from evenflow.testing.source.contract import SourceContract, SourceWorld
from tests.servers.kinesis import KEYS, REGION, shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event


@pytest.fixture(autouse=True, scope="module")
def server() -> None:
    """Started before the first test's time runs."""
    shared()


class KinesisWorld(SourceWorld):
    """A stream of the shared server."""

    def __init__(self, partitions: int) -> None:
        self.stream = shared().stream(partitions)
        self.shards = partitions
        self.source = self._opened()

    def _opened(self) -> KinesisSource:
        return KinesisSource(self.stream.name, region=REGION, endpoint=shared().endpoint, poll_s=0.2, options=KEYS)

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        await asyncio.to_thread(self.stream.put, partition, events)

    async def trim(self, partition: str, count: int) -> None:
        await asyncio.to_thread(self.stream.trim, partition, count)

    async def end(self, partition: str) -> None:
        await asyncio.to_thread(self.stream.split, partition)

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = self._opened()

    async def remake(self) -> None:
        await asyncio.to_thread(self.stream.delete)
        await asyncio.to_thread(self.stream.make, self.shards)


class TestKinesisSource(SourceContract):
    @pytest.mark.xfail(strict=True, raises=PositionGone, reason="the last one that was read is gone: were there more?")
    def test_a_position_whose_successors_are_trimmed_is_gone(self) -> None:
        super().test_a_position_whose_successors_are_trimmed_is_gone()

    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        world = await asyncio.to_thread(KinesisWorld, partitions)
        try:
            yield world
        finally:
            await world.source.aclose()
            await asyncio.to_thread(world.stream.delete)
