"""Changes of a container of the local Cosmos DB, end to end through a processor, against a bare loop with the client.

    python -m benchmarks._cosmosfeed

`fed` serves a container with so many changes; `bare` and `through` each read all of it once, with pages of the same
size, and say how many changes a second that was.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import uvloop
from azure.cosmos import CosmosClient as PlainClient
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from evenflow import Every, Processor
from evenflow.container import Container
from evenflow.stores.memory import MemoryStore
from tests.servers.cosmos import CosmosServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow import Event, OwnedPartition

RANGES = 4
PAGE_ITEMS = 1_000
WRITE_AT_ONCE = 1_000


class Feed(NamedTuple):
    """A served container with so many changes."""

    server: CosmosServer
    changes: int

    @property
    def url(self) -> str:
        return f"cosmos://127.0.0.1:{self.server.port}/bench/orders?max_items={PAGE_ITEMS}"


@contextmanager
def fed(changes: int) -> Iterator[Feed]:
    """A server in a process of its own, with documents of about 300 bytes, all of them changes."""
    folder = Path(tempfile.mkdtemp(prefix="evenflow-bench-"))
    try:
        with CosmosServer(folder / "data", "--ranges", str(RANGES)) as server:
            with PlainClient(server.url, server.key) as client:
                client.create_database("bench").create_container("orders", PartitionKey("/customer"))
            with Container(folder / "data" / "bench" / "orders") as container:
                for start in range(0, changes, WRITE_AT_ONCE):
                    numbers = range(start, min(start + WRITE_AT_ONCE, changes))
                    container.upsert_many([_document(number) for number in numbers])
            yield Feed(server, changes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _document(number: int) -> dict[str, Any]:
    return {"id": str(number), "customer": f"customer-{number % 1000}", "note": "x" * 100, "total": number % 500}


def bare(feed: Feed) -> float:
    """A loop over the client's own change feed, a range after the other; changes a second."""

    async def read() -> float:
        async with CosmosClient(feed.server.url, feed.server.key) as client:
            container = client.get_database_client("bench").get_container_client("orders")
            ranges = [one async for one in container.read_feed_ranges()]
            started_s, seen = perf_counter(), 0
            for one in ranges:
                pages = container.query_items_change_feed(
                    feed_range=one, start_time="Beginning", max_item_count=PAGE_ITEMS
                )
                async for _ in pages:
                    seen += 1
            taken_s = perf_counter() - started_s
        assert seen == feed.changes
        return feed.changes / taken_s

    return uvloop.run(read())


def through(feed: Feed) -> float:
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
        processor = Processor(feed.url, MemoryStore(), "bench", **options)
        processor.on_batch(handle)
        async with processor:
            await ended.wait()

    uvloop.run(run())
    return feed.changes / (times_s[1] - times_s[0])


def main() -> None:
    with fed(100_000) as feed:
        for _ in range(3):
            loop, processor = bare(feed), through(feed)
            print(f"bare {loop:,.0f}/s, through a processor {processor:,.0f}/s: {processor / loop:.2f} x")


if __name__ == "__main__":
    main()
