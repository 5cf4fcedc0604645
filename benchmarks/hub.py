"""The embedded hub against a bare `sqlite3` loop: one partition, 200-byte events, durable batches of 1,000.

The bare loop keeps one row an event, in one transaction a batch, with the same write-ahead log and the same
durability, and reads 1,000 rows a query. Both take turns of some milliseconds on the same disk, so that whatever else
the machine does hits both.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, time_ns
from typing import TYPE_CHECKING

from benchmarks.harness import Result, at_least, figure
from evenflow.embedded.hub import Hub
from evenflow.sources.hub.source import HubSource

if TYPE_CHECKING:
    from evenflow.embedded.hub import Producer

BATCH_EVENTS = 1_000
EVENT_BYTES = 200
TURNS = 21
TURN_BATCHES = 10
EVENTS = TURNS * TURN_BATCHES * BATCH_EVENTS


def run() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(Path(folder)))


async def measure(folder: Path) -> Result:
    bodies = [os.urandom(EVENT_BYTES) for _ in range(BATCH_EVENTS)]
    bare = open_bare(folder / "bare.sqlite")
    hub_written_s, bare_written_s, hub_read_s, bare_read_s = [], [], [], []
    async with Hub.create(folder / "hub", partitions=1) as hub, hub.producer() as producer:
        for turn in range(TURNS):
            started_s = perf_counter()
            await write_hub(producer, bodies)
            hub_written_s.append(perf_counter() - started_s)
            started_s = perf_counter()
            write_bare(bare, turn * TURN_BATCHES * BATCH_EVENTS, bodies)
            bare_written_s.append(perf_counter() - started_s)
        source = HubSource(hub)
        for _ in range(TURNS):
            started_s = perf_counter()
            await read_hub(source)
            hub_read_s.append(perf_counter() - started_s)
            started_s = perf_counter()
            read_bare(bare)
            bare_read_s.append(perf_counter() - started_s)
        await source.aclose()
    bare.close()
    return Result(
        figures=[
            figure("hub, written", [TURN_BATCHES * BATCH_EVENTS / s for s in hub_written_s], "events/s"),
            figure("bare sqlite3, written", [TURN_BATCHES * BATCH_EVENTS / s for s in bare_written_s], "events/s"),
            figure("hub, read", [EVENTS / s for s in hub_read_s], "events/s"),
            figure("bare sqlite3, read", [EVENTS / s for s in bare_read_s], "events/s"),
        ],
        bars=[
            at_least("written, hub / bare sqlite3", median(bare_written_s) / median(hub_written_s), 1.0),
            at_least("read, hub / bare sqlite3", median(bare_read_s) / median(hub_read_s), 2.0),
        ],
    )


async def write_hub(producer: Producer, bodies: list[bytes]) -> None:
    for _ in range(TURN_BATCHES):
        await producer.send(bodies)


async def read_hub(source: HubSource) -> None:
    reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
    count = 0
    while count < EVENTS:
        batch = await reader.read(BATCH_EVENTS, 1 << 20, 1.0)
        count += len(batch.events)
    await reader.aclose()


def open_bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE events (sequence INTEGER PRIMARY KEY, enqueued_us INTEGER, key TEXT, properties BLOB, body BLOB)"
    )
    return connection


def write_bare(connection: sqlite3.Connection, sequence: int, bodies: list[bytes]) -> None:
    for first in range(sequence, sequence + TURN_BATCHES * BATCH_EVENTS, BATCH_EVENTS):
        now_us = time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO events VALUES (?, ?, NULL, NULL, ?)",
            [(place, now_us, body) for place, body in enumerate(bodies, first)],
        )
        connection.execute("COMMIT")


def read_bare(connection: sqlite3.Connection) -> None:
    count, after = 0, -1
    while count < EVENTS:
        rows = connection.execute(
            "SELECT sequence, enqueued_us, key, properties, body FROM events WHERE sequence > ? "
            "ORDER BY sequence LIMIT ?",
            (after, BATCH_EVENTS),
        ).fetchall()
        count, after = count + len(rows), rows[-1][0]
