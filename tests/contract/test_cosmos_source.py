"""The feed of Cosmos DB keeps the contract of sources, in both modes, and where a range was merged.

It is read with the official client, from a local Cosmos DB; documents are written to it from the inside, so that they
get into the range that is wanted.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import structs

from evenflow.embedded.container.clock import wall_us
from evenflow.model import MICROSECONDS
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.testing.source.contract import SourceContract, SourceWorld
from tests.servers.cosmos import in_this_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from evenflow.embedded.container import Container
    from evenflow.model import Batch, Event, Position
    from evenflow.ports import Reader
    from evenflow.testing.cosmos import Cosmos

RETENTION_S = 7 * 24 * 3600
_numbers = count()


class Wall:
    """The server's clock, ahead of ours as much as tests need: times of documents are whole seconds."""

    ahead_us = 0
    fixed_us: int | None = None

    def now_us(self) -> int:
        return wall_us() + self.ahead_us if self.fixed_us is None else self.fixed_us


WALL = Wall()


@pytest.fixture(scope="module")
def server() -> Iterator[Cosmos]:
    with in_this_process(ranges=2, wall_us=WALL.now_us) as found:
        yield found


@pytest.fixture(autouse=True)
def served(server: Cosmos, request: pytest.FixtureRequest) -> None:
    request.instance.server = server


class Documents(CosmosSource):
    """With the documents that the contract's events were put into made events again."""

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        return DocumentReader(await super().open(partition, after, epoch=epoch))


class DocumentReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.aclose = reader.aclose

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        return structs.replace(batch, events=[_event(event) for event in batch.events])


def _event(event: Event) -> Event:
    body: Mapping[str, Any] = msgspec.json.decode(event.body)
    document = body.get("current", body)
    assert event.key == document["place"]
    found = {"body": bytes.fromhex(document["body"]), "key": document["key"], "properties": document["properties"]}
    return structs.replace(event, **found)


class CosmosWorld(SourceWorld):
    def __init__(self, server: Cosmos, mode: str) -> None:
        self.server, self.mode = server, mode
        self.database = f"contract{next(_numbers)}"
        server.account.create_database(self.database)
        self.make()
        self.source = self.opened()

    def make(self) -> None:
        self.server.account.create_container(self.database, {"id": "orders", "partitionKey": {"paths": ["/place"]}})

    def opened(self) -> CosmosSource:
        url = f"cosmos://127.0.0.1:{self.server.port}/{self.database}/orders"
        return Documents(url, mode=self.mode, poll_s=0.1)

    @property
    def inside(self) -> Container:
        return self.server.container(self.database, "orders")

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        for event in events:
            WALL.ahead_us += 1_000
            document = {"body": event.body.hex(), "key": event.key, "properties": event.properties}
            self.inside.insert({"id": str(next(_numbers)), "place": self.key_in(partition), **document})

    def key_in(self, partition: str) -> str:
        """A key that belongs there."""
        (there,) = (one for one in self.inside.ranges() if one.id == partition)
        keys = self.inside.opened().metadata.keys
        names = (f"key-{number}" for number in _numbers)
        return next(name for name in names if there.min <= keys.epk([name]) < there.max)

    async def later(self) -> datetime:
        WALL.ahead_us += 4 * MICROSECONDS
        return datetime.fromtimestamp(WALL.now_us() / MICROSECONDS - 2, UTC)

    async def trim(self, partition: str, count: int) -> None:
        if self.mode == "latest":
            raise NotImplementedError
        page = self.inside.feed(partition, mode="all", max_items=1000)
        WALL.fixed_us = page.changes[count - 1].changed_us + RETENTION_S * MICROSECONDS + 1
        try:
            self.inside.trim()
        finally:
            WALL.fixed_us = None

    async def end(self, partition: str) -> None:
        self.inside.split(partition)

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = self.opened()

    async def remake(self) -> None:
        self.server.account.delete_container(self.database, "orders")
        self.make()


class MergedWorld(CosmosWorld):
    """Its ranges come from merges, each of two that had been written to."""

    def make(self) -> None:
        super().make()
        for one in self.inside.ranges():
            first, second = self.inside.split(one.id)
            self.inside.merge(first.id, second.id)


class OverCosmos(SourceContract):
    server: Cosmos
    mode = "latest"
    kind: type[CosmosWorld] = CosmosWorld

    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        assert partitions == 2
        world = self.kind(self.server, self.mode)
        try:
            yield world
        finally:
            await world.source.aclose()
            self.server.account.delete_database(world.database)  # it would keep its files open


class TestLatestVersions(OverCosmos):
    pass


class TestAllVersions(OverCosmos):
    mode = "all"


class TestMergedRanges(OverCosmos):
    kind = MergedWorld


del OverCosmos
