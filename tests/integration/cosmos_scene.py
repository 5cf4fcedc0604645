"""A container of a local Cosmos DB, hands that change it from the inside, and processors that read it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from evenflow import Processor
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.stores.memory import MemoryStore
from tests.servers.cosmos import in_this_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from evenflow import Event, OwnedPartition
    from evenflow.embedded.container import Container
    from evenflow.signals import Signal
    from evenflow.testing.cosmos import Cosmos

LONG_S = 60.0
MUCH = 1 << 20
POLL_S = 0.1

_names = count()


served = partial(in_this_process, ranges=2)


@contextmanager
def ordering(server: Cosmos, *, leases: bool = False) -> Iterator[Orders]:
    """A scene whose database is deleted afterwards: the server would keep its files open."""
    scene = Orders(server)
    if leases:
        scene.make_leases()
    try:
        yield scene
    finally:
        server.account.delete_database(scene.database)


class Orders:
    """A container with as many ranges as the server makes."""

    def __init__(self, server: Cosmos) -> None:
        self.server = server
        self.database = f"scene{next(_names)}"
        server.account.create_database(self.database)
        self.make()

    def make(self) -> None:
        self.server.account.create_container(self.database, {"id": "orders", "partitionKey": {"paths": ["/k"]}})

    def make_leases(self) -> None:
        self.server.account.create_container(self.database, {"id": "leases", "partitionKey": {"paths": ["/id"]}})

    def delete(self) -> None:
        self.server.account.delete_container(self.database, "orders")

    @property
    def url(self) -> str:
        return f"cosmos://127.0.0.1:{self.server.port}/{self.database}/orders"

    @property
    def leases(self) -> str:
        """A container beside it, for those who make one."""
        return f"cosmos-leases://127.0.0.1:{self.server.port}/{self.database}/leases"

    def at(self, **options: Any) -> str:
        """For a processor, which closes what it opened."""
        return f"{self.url}?{urlencode({'poll_s': POLL_S} | options)}"

    @property
    def inside(self) -> Container:
        return self.server.container(self.database, "orders")

    def write(self, *numbers: int) -> None:
        self.inside.upsert_many([{"id": f"i{number}", "k": f"k{number}", "n": number} for number in numbers])

    @asynccontextmanager
    async def source(self, **options: Any) -> AsyncIterator[CosmosSource]:
        opened = CosmosSource(self.at(**options))
        try:
            yield opened
        finally:
            await opened.aclose()


class Run:
    """A processor in this process, and what it handled."""

    def __init__(
        self,
        source: Any,
        store: MemoryStore | None = None,
        then: Callable[[OwnedPartition], Awaitable[object]] | None = None,
        **options: Any,
    ) -> None:
        """`then` is done after each event."""
        self._then = then
        self.store = store or MemoryStore()
        self.handled: list[tuple[str, int]] = []
        self.signals: list[Signal] = []
        times: dict[str, Any] = {"refresh_s": 0.5, "heartbeat_s": 0.3, "ttl_s": 5.0, "start": "earliest"}
        self.processor = Processor(source, self.store, "group", **times | options)
        self.processor.on_event(self._handle)
        self.processor.listen(self.signals.append)

    async def _handle(self, event: Event, partition: OwnedPartition) -> None:
        body = msgspec.json.decode(event.body)
        self.handled.append((partition.id, body.get("current", body)["n"]))
        if self._then is not None:
            await self._then(partition)

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.handled]

    def told(self, kind: type[Signal]) -> list[Any]:
        return [one for one in self.signals if isinstance(one, kind)]

    async def caught_up(self) -> list[int]:
        async with asyncio.timeout(LONG_S):
            await self.processor.serve(until="caught_up")
        return self.numbers


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not look():  # noqa: ASYNC110 - some of what is looked at is in other threads
            await asyncio.sleep(0.02)
