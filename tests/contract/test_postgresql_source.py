"""A watched table keeps the contract of sources, against a real server: in both modes, and through a pooler."""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from msgspec import structs

from evenflow.sources.postgresql import admin as owner
from evenflow.sources.postgresql.admin import WatchOptions
from evenflow.sources.postgresql.source import from_url
from evenflow.testing.source.contract import SourceContract, SourceWorld
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import shared_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from evenflow.model import Batch, Event, Position
    from evenflow.ports import Reader, Source


@pytest.fixture(autouse=True, scope="module")
def server() -> None:
    """Started before the first test's time runs."""
    shared_or_skip()


class Rows:
    """A table's source, with the rows that the contract's events were put into made events again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.partitions = source.partitions
        self.resolve = source.resolve
        self.bounds = source.bounds
        self.aclose = source.aclose
        self.identity = source.identity

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        return RowReader(await self._source.open(partition, after, epoch=epoch))


class RowReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.aclose = reader.aclose

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        return structs.replace(batch, events=[_event(event) for event in batch.events])


def _event(event: Event) -> Event:
    body = msgspec.json.decode(event.body)
    row: dict[str, Any] = body.get("current", body)
    assert event.key == row["id"]
    return structs.replace(event, body=bytes.fromhex(row["body"]), key=row["key"], properties=row["properties"])


class TableWorld(SourceWorld):
    def __init__(self, partitions: int, mode: str, port: int | None) -> None:
        self.server = shared_or_skip()
        self.table, self.schema = self.server.fresh("rows"), self.server.fresh("feed")
        self.partitions = partitions
        url = self.server.url(port=port).replace("postgresql:", "postgresql-table:")
        listen = "off" if port else "on"
        self.url = f"{url}?table=public.{self.table}&schema={self.schema}&mode={mode}&listen={listen}"
        self.numbers = count()

    async def begin(self) -> None:
        self.link = owner.opened(self.url)
        self.connection = await psycopg.AsyncConnection.connect(self.server.url(), autocommit=True)
        await self._make()
        self.source: Source = Rows(from_url(self.url))

    async def _make(self) -> None:
        await self.connection.execute(
            f"CREATE TABLE {self.table} (id text PRIMARY KEY, key text, properties json, body text)"
        )
        await owner.watch(self.link, WatchOptions(partitions=self.partitions, all_versions=True))

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        rows = [
            (self._key(partition), event.key, msgspec.json.encode(event.properties).decode(), event.body.hex())
            for event in events
        ]
        async with self.connection.cursor() as cursor:
            await cursor.executemany(f"INSERT INTO {self.table} VALUES (%s, %s, %s, %s)", rows)

    def _key(self, partition: str) -> str:
        """One that has not been, and belongs there."""
        return next(key for number in self.numbers if self._place(key := f"row-{number}") == int(partition))

    def _place(self, key: str) -> int:
        return int(hashlib.md5(key.encode()).hexdigest()[:8], 16) * self.partitions >> 32

    async def trim(self, partition: str, count: int) -> None:
        feed = await self.link.feed()
        ends = ", ".join(
            f"coalesce((SELECT sequence FROM {self.schema}.log_{feed.id} WHERE partition = {place}"
            f" ORDER BY sequence LIMIT 1 OFFSET {count - 1}), 0)"
            if str(place) == partition
            else "0"
            for place in range(self.partitions)
        )
        await self.connection.execute(f"SELECT {self.schema}.forget({feed.id}, ARRAY[{ends}]::bigint[])")

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = Rows(from_url(self.url))

    async def remake(self) -> None:
        await owner.unwatch(self.link)
        await self.connection.execute(f"DROP TABLE {self.table}")
        await self._make()

    async def aclose(self) -> None:
        await self.source.aclose()
        self.link.close()
        await self.connection.close()


@pytest.mark.process
class TestLatestVersions(SourceContract):
    mode = "latest"
    port: int | None = None

    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        world = TableWorld(partitions, self.mode, self.port)
        await world.begin()
        try:
            yield world
        finally:
            await world.aclose()


@pytest.mark.process
class TestAllVersions(TestLatestVersions):
    mode = "all"


@pytest.mark.process
class TestThroughPgBouncer(TestLatestVersions):
    """Each request may get another connection, and nobody can be woken."""

    @pytest.fixture(autouse=True)
    def _pooler(self) -> Iterator[None]:
        with PgBouncer(shared_or_skip()) as pooler:
            self.port = pooler.port
            yield
