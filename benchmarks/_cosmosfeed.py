"""Changes of a container of the local Cosmos DB, for the benchmark of change feeds: all of them read by a bare loop
with the official client."""

from __future__ import annotations

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

from evenflow.container import Container
from tests.servers.cosmos import CosmosServer

if TYPE_CHECKING:
    from collections.abc import Iterator

RANGES = 4
PAGE_ITEMS = 1_000
"""The same for both: what a request brings."""
WRITE_AT_ONCE = 1_000


class Feed(NamedTuple):
    """A served container with so many changes."""

    server: CosmosServer
    changes: int

    @property
    def monitored(self) -> str:
        return f"cosmos://127.0.0.1:{self.server.port}/bench/orders?max_items={PAGE_ITEMS}"

    def bare(self, max_items: int) -> float:
        """A loop over `query_items_change_feed`, a range after the other; changes a second."""

        async def read() -> float:
            async with CosmosClient(self.server.url, self.server.key) as client:
                container = client.get_database_client("bench").get_container_client("orders")
                ranges = [one async for one in container.read_feed_ranges()]
                started_s, seen = perf_counter(), 0
                for one in ranges:
                    pages = container.query_items_change_feed(
                        feed_range=one, start_time="Beginning", max_item_count=max_items
                    )
                    async for _ in pages:
                        seen += 1
                taken_s = perf_counter() - started_s
            assert seen == self.changes
            return self.changes / taken_s

        return uvloop.run(read())


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
