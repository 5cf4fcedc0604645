"""The contract of sources, kept by Redis streams: on servers that count entries, and not; in a cluster; on Valkey."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import PositionGone
from evenflow.sources.redis_streams.source import RedisStreamsServer, RedisStreamsSource
from evenflow.testing.source.contract import SourceContract, SourceWorld
from tests.servers.redis import RedisServer, packed_program, skip_unless_counting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from evenflow.model import Event

_numbers = count(1)


class RedisWorld(SourceWorld):
    """Streams of their own name, and a second source that writes."""

    def __init__(self, server: RedisServer, partitions: int, *, cluster: bool = False) -> None:
        self.server = server
        self.address = RedisStreamsServer(server.place.address, server.port, cluster=cluster)
        self.name = f"homes{next(_numbers)}"
        self.partitions = partitions
        self.source, self.sender = self._opened(), self._opened()

    def _opened(self) -> RedisStreamsSource:
        return RedisStreamsSource(self.address, self.name, partitions=self.partitions)

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        await asyncio.sleep(0.002)  # in another millisecond: ids within one have no gaps, and tell more than usual
        await self.sender.send(events, partition)

    async def trim(self, partition: str, count: int) -> None:
        key = f"{self.name}:{partition}"
        self.server.ask("XTRIM", key, "MAXLEN", self.server.ask("XLEN", key) - count)

    async def grow(self, more: int) -> None:
        self.partitions += more
        await self.restart()

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = self._opened()

    async def remake(self) -> None:
        for number in range(self.partitions):
            self.server.ask("DEL", f"{self.name}:{number}")

    async def aclose(self) -> None:
        await self.source.aclose()
        await self.sender.aclose()
        await self.remake()


class RedisStreamsContract(SourceContract):
    server: RedisServer
    cluster = False

    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        world = RedisWorld(self.server, partitions, cluster=self.cluster)
        try:
            yield world
        finally:
            await world.aclose()


@pytest.fixture(scope="module")
def older_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("older"), program=packed_program())
    yield server.start()
    server.stop()


class TestStreamsThatAreCounted(RedisStreamsContract):
    """From Redis 7.0 on."""

    @pytest.fixture(autouse=True)
    def started(self, redis_server: RedisServer) -> None:
        skip_unless_counting(redis_server)
        self.server = redis_server


class TestStreamsOnValkey(RedisStreamsContract):
    @pytest.fixture(autouse=True)
    def started(self, valkey_server: RedisServer) -> None:
        self.server = valkey_server


class TestStreamsThatAreNotCounted(RedisStreamsContract):
    """Before Redis 7.0."""

    @pytest.fixture(autouse=True)
    def started(self, older_server: RedisServer) -> None:
        self.server = older_server

    @pytest.mark.xfail(strict=True, raises=PositionGone, reason="the last one that was read is gone: were there more?")
    def test_an_emptied_partition_continues(self) -> None:
        super().test_an_emptied_partition_continues()


class TestStreamsInACluster(RedisStreamsContract):
    """Each stream in a slot of its own."""

    cluster = True

    @pytest.fixture(autouse=True)
    def started(self, redis_cluster: RedisServer) -> None:
        self.server = redis_cluster

    def test_an_emptied_partition_continues(self) -> None:
        skip_unless_counting(self.server)
        super().test_an_emptied_partition_continues()
