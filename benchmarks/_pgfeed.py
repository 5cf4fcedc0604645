"""Changes of a watched PostgreSQL table, end to end through a processor, against a bare SQL read of its log.

    python -m benchmarks._pgfeed

`Feed` makes the table and its log; `bare` and `through` each read all of it once and say how many changes a second
that was; `cost` is what the trigger costs those who write.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import uvloop
from psycopg import sql

from evenflow import Every, Processor
from evenflow.sources import postgresql_watch as owner
from evenflow.sources.postgresql import from_url
from evenflow.sources.postgresql_watch import Terms
from evenflow.stores.memory import MemoryStore
from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from evenflow import Event, OwnedPartition

PARTITIONS = 4
AT_ONCE = 1_000
INSERT = (
    "INSERT INTO {} SELECT g, 'customer-' || g %% 1000, repeat('x', 100), g %% 500"
    " FROM generate_series(%s::bigint, %s::bigint) g"
)
READ = (
    "SELECT sequence, at_us, key, after::text FROM {} WHERE partition = %s AND sequence > %s ORDER BY sequence LIMIT %s"
)


class Feed(NamedTuple):
    """A watched table with so many changes in its log."""

    server: Postgres
    table: str
    changes: int

    @property
    def url(self) -> str:
        address = self.server.url().replace("postgresql:", "postgresql-table:")
        return f"{address}?table=public.{self.table}&schema={self.table}_feed"


@contextmanager
def fed(changes: int, *, all_versions: bool = False) -> Iterator[Feed]:
    """A server of its own, with a table of about 200 bytes a row, all of them changes."""
    server = Postgres(fsync=True)
    try:
        feed = Feed(server, server.fresh("orders"), changes)
        server.sql(f"CREATE TABLE {feed.table} (id bigint PRIMARY KEY, customer text, note text, total integer)")
        asyncio.run(_watch(feed, all_versions=all_versions))
        insert(feed.server, feed.table, 0, changes)
        yield feed
    finally:
        server.remove()


async def _watch(feed: Feed, *, all_versions: bool) -> None:
    link = owner.opened(feed.url)
    await owner.watch(link, Terms(partitions=PARTITIONS, all_versions=all_versions))
    link.close()


def insert(server: Postgres, table: str, first: int, rows: int) -> float:
    """Rows, a thousand a transaction; how many a second."""
    started_s = perf_counter()
    with psycopg.connect(server.url()) as connection:
        for start in range(first, first + rows, 1000):
            connection.execute(
                sql.SQL(INSERT).format(sql.Identifier(table)), (start, min(start + 1000, first + rows) - 1)
            )
            connection.commit()
    return rows / (perf_counter() - started_s)


def single(server: Postgres, table: str, first: int, rows: int) -> float:
    """One row a transaction, as applications write; how many a second."""
    started_s = perf_counter()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for number in range(first, first + rows):
            connection.execute(sql.SQL(INSERT).format(sql.Identifier(table)), (number, number))
    return rows / (perf_counter() - started_s)


def bare(feed: Feed, look: Callable[[str], object] | None = None) -> float:
    """A loop of plain SELECTs over the log's key, a partition after the other; changes a second.

    `look` makes a document of a row, for whoever wants documents.
    """
    query = sql.SQL(READ).format(sql.Identifier(f"{feed.table}_feed", "log_1"))

    async def read() -> float:
        connection = await psycopg.AsyncConnection.connect(feed.server.url(), autocommit=True)
        started_s, seen = perf_counter(), 0
        for place in range(PARTITIONS):
            after = 0
            while True:
                cursor = await connection.execute(query, (place, after, AT_ONCE), binary=True)
                rows = await cursor.fetchall()
                if not rows:
                    break
                if look is not None:
                    for row in rows:
                        look(row[3])
                seen += len(rows)
                after = rows[-1][0]
        taken_s = perf_counter() - started_s
        await connection.close()
        assert seen == feed.changes
        return feed.changes / taken_s

    return uvloop.run(read())


def through(feed: Feed, mode: str = "latest") -> float:
    """A processor from the beginning, with a checkpoint every second; from the first change handled to the last."""
    seen, times_s, ended = [0], [0.0, 0.0], asyncio.Event()

    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        if not seen[0]:
            times_s[0] = perf_counter()
        seen[0] += len(events)
        times_s[1] = perf_counter()
        if seen[0] >= feed.changes:
            ended.set()

    async def run() -> None:
        options: dict[str, Any] = {"checkpoint": Every(seconds=1.0), "start": "earliest"}
        processor = Processor(from_url(f"{feed.url}&mode={mode}"), MemoryStore(), "bench", **options)
        processor.on_batch(handle)
        async with processor:
            await ended.wait()

    uvloop.run(run())
    return feed.changes / (times_s[1] - times_s[0])


def cost(server: Postgres, watched: str, *, rows: int = 20_000, alone: int = 2_000) -> dict[str, float]:
    """What is left of a writer's speed when its table is watched: in bulk, and one row a transaction."""
    plain = server.fresh("plain")
    server.sql(f"CREATE TABLE {plain} (LIKE {watched} INCLUDING ALL)")
    first, found = 1 << 40, {}
    for name, write, count in (("bulk", insert, rows), ("single", single, alone)):
        ratios = []
        for _ in range(3):
            unwatched = write(server, plain, first, count)
            ratios.append(write(server, watched, first, count) / unwatched)
            first += count
        found[name] = statistics.median(ratios)
    return found


def main() -> None:
    with fed(100_000) as feed:
        for _ in range(3):
            loop, processor = bare(feed), through(feed)
            print(f"bare {loop:,.0f}/s, through a processor {processor:,.0f}/s: {processor / loop:.2f} x")
        ratios = cost(feed.server, feed.table)
        print(f"a watched table is written at {ratios['bulk']:.2f} x in bulk, {ratios['single']:.2f} x one by one")


if __name__ == "__main__":
    main()
