"""Changes of a watched PostgreSQL table, end to end through a processor, against a bare SQL read of its log.

    python -m benchmarks._pgfeed

`Feed` makes the table and its log; `bare` and `through` each read all of it once and say how many changes a second
that was; `cost` is what the trigger costs those who write, in time and in the server's work.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import uvloop
from psycopg import sql

from evenflow import Every, Processor
from evenflow.sources.postgresql import admin as owner
from evenflow.sources.postgresql.admin import WatchOptions
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
        # As the server does by itself, sooner or later: how quick a bare loop is must not go by when that was.
        server.sql(f"ANALYZE {feed.table}_feed.log_1")
        yield feed
    finally:
        server.remove()


async def _watch(feed: Feed, *, all_versions: bool) -> None:
    link = owner.opened(feed.url)
    await owner.watch(link, WatchOptions(partitions=PARTITIONS, all_versions=all_versions))
    link.close()


class Written(NamedTuple):
    """How quickly rows were written, and how much of a processor the server needed for each."""

    rows_s: float
    work_us: float


def insert(server: Postgres, table: str, first: int, rows: int) -> Written:
    """A thousand a transaction."""
    starts = range(first, first + rows, AT_ONCE)
    return _written(server, table, [(start, min(start + AT_ONCE, first + rows) - 1) for start in starts])


def single(server: Postgres, table: str, first: int, rows: int) -> Written:
    """One row a transaction, as applications write."""
    return _written(server, table, [(number, number) for number in range(first, first + rows)])


def _written(server: Postgres, table: str, spans: Sequence[tuple[int, int]]) -> Written:
    query, rows = sql.SQL(INSERT).format(sql.Identifier(table)), spans[-1][1] + 1 - spans[0][0]
    with psycopg.connect(server.url(), autocommit=True) as connection:
        started_s, work_us = perf_counter(), _work_us(connection.info.backend_pid)
        for span in spans:
            connection.execute(query, span)
        taken_s, work_us = perf_counter() - started_s, _work_us(connection.info.backend_pid) - work_us
    return Written(rows / taken_s, work_us / rows)


def _work_us(process: int) -> float:
    """How long it has run on a processor."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1000


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
        processor = Processor(f"{feed.url}&mode={mode}", MemoryStore(), "bench", **options)
        processor.on_batch(handle)
        async with processor:
            await ended.wait()

    uvloop.run(run())
    return feed.changes / (times_s[1] - times_s[0])


class Cost(NamedTuple):
    """Of a watched table, beside one that is not."""

    speed: float
    """What is left of a writer's."""
    more_us: float
    """How much longer the server works for each row."""


def cost(server: Postgres, watched: str, *, rows: int = 20_000, alone: int = 2_000) -> dict[str, Cost]:
    """In bulk, and one row a transaction."""
    plain = server.fresh("plain")
    server.sql(f"CREATE TABLE {plain} (LIKE {watched} INCLUDING ALL)")
    first, found = 1 << 40, {}
    for name, write, count in (("in bulk", insert, rows), ("one by one", single, alone)):
        speeds, works_us = [], []
        for _ in range(3):
            without, with_it = write(server, plain, first, count), write(server, watched, first, count)
            speeds.append(with_it.rows_s / without.rows_s)
            works_us.append(with_it.work_us - without.work_us)
            first += count
        found[name] = Cost(statistics.median(speeds), statistics.median(works_us))
    return found


def main() -> None:
    for all_versions in (False, True):
        with fed(100_000, all_versions=all_versions) as feed:
            mode = "all" if all_versions else "latest"
            for _ in range(3):
                loop, processor = bare(feed), through(feed, mode)
                print(f"{mode}: bare {loop:,.0f}/s, through a processor {processor:,.0f}/s: {processor / loop:.2f} x")
            for way, found in cost(feed.server, feed.table).items():
                print(f"{mode}: written {way} at {found.speed:.2f} x, {found.more_us:.0f} us more work a row")


if __name__ == "__main__":
    main()
