"""Changes of a container of a local Cosmos DB, for the benchmark of change feeds: read by the official client alone."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import uvloop
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncClient

from benchmarks._containerfeed import RANGES, fill
from evenflow.embedded.container import Container
from tests.servers.cosmos import CosmosServer

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASE, CONTAINER = "shop", "orders"


class Feed(NamedTuple):
    server: CosmosServer
    changes: int

    @property
    def monitored(self) -> str:
        return f"cosmos://127.0.0.1:{self.server.port}/{DATABASE}/{CONTAINER}"

    def bare(self, max_items: int) -> float:
        """A loop over `query_items_change_feed`, a range after the other; changes a second."""
        return uvloop.run(self._bare(max_items))

    async def _bare(self, max_items: int) -> float:
        async with AsyncClient(self.server.url, self.server.key) as client:
            container = client.get_database_client(DATABASE).get_container_client(CONTAINER)
            ranges = [one async for one in container.read_feed_ranges()]
            started_s, seen = perf_counter(), 0
            for one in ranges:
                feed = container.query_items_change_feed(
                    feed_range=one, start_time="Beginning", max_item_count=max_items
                )
                async for _ in feed:
                    seen += 1
            taken_s = perf_counter() - started_s
        assert seen == self.changes
        return self.changes / taken_s


@contextmanager
def fed(changes: int) -> Iterator[Feed]:
    """A server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with CosmosServer(data, "--ranges", str(RANGES)) as server:
            database = CosmosClient(server.url, server.key).create_database(DATABASE)
            database.create_container(CONTAINER, PartitionKey("/customer"))
            (place,) = data.rglob("container.sqlite")
            with Container(place.parent) as inside:
                fill(inside, changes)
            yield Feed(server, changes)
