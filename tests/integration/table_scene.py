"""A watched table of a real server, hands that change it in any number of transactions, and a reader of its feed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg

from evenflow.sources.postgresql import admin as owner
from evenflow.sources.postgresql.admin import WatchOptions
from evenflow.sources.postgresql.source import PostgreSQLTable, from_url
from tests.servers.postgres import shared_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from evenflow.model import Event, Position
    from evenflow.ports import Reader
    from tests.servers.postgres import Postgres

PATIENCE_S = 60.0
SCENE_S = 110.0
"""A little less than a test may take: what hangs then fails where it hangs."""
MUCH = 1 << 20


class TableScene:
    def __init__(self, server: Postgres | None = None, database: str = "postgres") -> None:
        self.server = server or shared_or_skip()
        self.database = database
        self.table, self.schema = self.server.fresh("orders"), self.server.fresh("feed")
        self.sources: list[PostgreSQLTable] = []
        self.connections: list[psycopg.AsyncConnection[tuple[Any, ...]]] = []
        self.link = owner.opened(self.url())

    def url(self, mode: str = "latest", user: str = "postgres") -> str:
        url = self.server.url(self.database, user).replace("postgresql:", "postgresql-table:")
        return f"{url}?table={self.table}&schema={self.schema}&mode={mode}"

    def rename(self, table: str) -> None:
        """Go on with the table under this name."""
        self.link.close()
        self.table = table
        self.link = owner.opened(self.url())

    async def make(self, columns: str = "id integer PRIMARY KEY, version integer", *, more: str = "") -> None:
        await (await self.hand()).execute(f"CREATE TABLE {self.table} ({columns}) {more}")

    async def watch(self, partitions: int = 1, *, all_versions: bool = False, **terms: Any) -> None:
        await owner.watch(self.link, WatchOptions(partitions=partitions, all_versions=all_versions, **terms))

    async def hand(self, *, autocommit: bool = True) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A connection that changes things; without `autocommit` in transactions that it ends itself."""
        connection = await psycopg.AsyncConnection.connect(self.server.url(self.database), autocommit=autocommit)
        self.connections.append(connection)
        return connection

    def source(self, mode: str = "latest", user: str = "postgres") -> PostgreSQLTable:
        self.sources.append(from_url(self.url(mode, user)))
        return self.sources[-1]

    async def reader(self, mode: str = "latest", start: Any = "earliest", partition: str = "0") -> Reader:
        source = self.source(mode)
        return await source.open(partition, await source.resolve(partition, start), epoch=1)

    async def log(self, columns: str = "op, key") -> list[tuple[Any, ...]]:
        feed = await self.link.feed()
        hand = await self.hand()
        cursor = await hand.execute(
            f"SELECT {columns} FROM {self.schema}.log_{feed.id} ORDER BY partition, sequence".encode()
        )
        return await cursor.fetchall()

    async def aclose(self) -> None:
        for source in self.sources:
            await source.aclose()
        self.link.close()
        for connection in self.connections:
            await connection.close()


@asynccontextmanager
async def scene_of(server: Postgres | None = None, database: str = "postgres") -> AsyncIterator[TableScene]:
    scene = TableScene(server, database)
    try:
        async with asyncio.timeout(SCENE_S):
            yield scene
    finally:
        await scene.aclose()


def staged(act: Callable[[TableScene], Awaitable[None]]) -> Callable[[], None]:
    """A test with a scene of its own."""

    def run() -> None:
        async def main() -> None:
            async with scene_of() as scene:
                await act(scene)

        asyncio.run(main())

    run.__name__, run.__doc__ = act.__name__, act.__doc__
    return run


async def next_events(reader: Reader, count: int, max_events: int = 1000) -> list[Event]:
    found: list[Event] = []
    while len(found) < count:
        batch = await reader.read(max_events, MUCH, PATIENCE_S)
        assert batch.events, f"{len(found)} of {count} events came"
        found += batch.events
    return found


async def nothing(reader: Reader, wait_s: float = 0.2) -> Position:
    batch = await reader.read(1000, MUCH, wait_s)
    assert [event.key for event in batch.events] == []
    return batch.resume


def keys(events: list[Event]) -> list[str | None]:
    return [event.key for event in events]


def rows(events: list[Event]) -> list[Any]:
    return [msgspec.json.decode(event.body) for event in events]


async def latest_in_log(scene: TableScene) -> dict[str, Any]:
    """The rows of the table, according to its log."""
    found: dict[str, Any] = {}
    for op, key, after in await scene.log("op, key, after"):
        if op == "t":
            found.clear()
        elif after is None:
            found.pop(key, None)
        else:
            found[key] = after
    return found


async def add_trigger(
    hand: psycopg.AsyncConnection[tuple[Any, ...]], scene: TableScene, name: str, events: str, body: str
) -> None:
    """One that does this for each row, but not inside another trigger."""
    function = f"{scene.schema}_{name}"
    await hand.execute(
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF pg_trigger_depth() = 1 THEN {body.format(scene.table)}; END IF; RETURN NULL; END $$".encode()
    )
    await hand.execute(
        f"CREATE TRIGGER later_{name} AFTER {events} ON {scene.table} FOR EACH ROW"
        f" EXECUTE FUNCTION {function}()".encode()
    )
