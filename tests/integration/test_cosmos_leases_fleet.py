"""A mixed fleet on one lease container: ours beside hosts that behave as .NET's do, on a local Cosmos DB.

Shares become even, nothing is lost, each goes on from the other's continuation, and who dies is taken over by the other
make. No .NET runtime is needed: its hosts are played by `dotnet_host`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from evenflow import Processor
from evenflow.errors import RangeGone
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.testing.cosmos import cosmos
from tests.integration.cosmos_leases_worker import GROUP, HEARTBEAT_S, TTL_S
from tests.integration.dotnet_host import DotNetHost, Gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from evenflow import Event, OwnedPartition
    from evenflow.testing.cosmos import Cosmos

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

RANGES = 4
EXPIRY_S = 6.0
PATIENCE_S = 120.0


class Call(NamedTuple):
    at_s: float
    who: str
    document: str


class Fleet:
    def __init__(self, server: Cosmos, client: CosmosClient) -> None:
        self.server = server
        self._database = client.get_database_client("shop")
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.also_handled: set[str] = set()
        """By others, elsewhere."""
        self.written = 0
        self.kill: Callable[[], None] = lambda: None

    @property
    def leases(self) -> Any:
        return self._database.get_container_client("leases")

    @property
    def orders(self) -> Any:
        return self._database.get_container_client("orders")

    async def handle(self, who: str, partition: str, document: str) -> None:
        await asyncio.sleep(0.001)
        self.calls[partition].append(Call(monotonic(), who, document))

    @property
    def source(self) -> str:
        return f"cosmos://127.0.0.1:{self.server.port}/shop/orders?poll_s=0.1"

    @property
    def store(self) -> str:
        return f"cosmos-leases://127.0.0.1:{self.server.port}/shop/leases?peer_expiry_s={EXPIRY_S}"

    async def dotnet(self, name: str, **options: Any) -> DotNetHost:
        source = CosmosSource(self.orders)
        convention = await source.convention(GROUP)

        async def handle(who: str, partition: str, document: dict[str, Any]) -> None:
            await self.handle(who, partition, document["id"])

        ranges = dict(convention.spans)
        return DotNetHost(name, convention.prefix, self.leases, self.page, ranges, handle, expiry_s=EXPIRY_S, **options)

    def page(self, token: str, continuation: str | None) -> tuple[list[dict[str, Any]], str]:
        after = int(continuation.strip('"')) if continuation else None
        container = self.server.container("shop", "orders")
        try:
            page = container.feed(token, after, max_items=50)
        except RangeGone as gone:
            there = {one.id: (one.min, one.max) for one in container.ranges()}
            raise Gone({child: there[child] for child in gone.children if child in there}) from gone
        return [json.loads(change.body or b"") for change in page.changes], f'"{page.after}"'

    def ours(self, name: str) -> Processor:
        processor = Processor(self.source, self.store, GROUP, instance_id=name, heartbeat_s=HEARTBEAT_S, ttl_s=TTL_S)

        @processor.on_event
        async def handle(event: Event, partition: OwnedPartition) -> None:
            await self.handle(name, partition.id, str(json.loads(event.body)["id"]))

        return processor

    @contextmanager
    def our_process(self, name: str, folder: Path) -> Iterator[Path]:
        """One of ours that is killed in the end, at the latest; its diary."""
        diary = folder / f"{name}.diary"
        orders = [self.source, self.store, name, str(diary)]
        with (folder / f"{name}.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.cosmos_leases_worker", *orders], stdout=log, stderr=log
            )
        diary.touch()
        self.kill = worker.kill
        try:
            yield diary
        finally:
            worker.kill()
            worker.wait()

    # --- documents
    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        async def write() -> None:
            while True:
                number = self.written
                await self.orders.create_item({"id": f"o{number}", "customer": f"c{number % 97}"})
                self.written += 1
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write())
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    def handled(self) -> set[str]:
        return self.also_handled.union(call.document for calls in self.calls.values() for call in calls)

    def all_handled(self) -> bool:
        return len(self.handled()) == self.written

    def repeats(self) -> int:
        return sum(map(len, self.calls.values())) - len(self.handled())

    # --- leases
    async def owners(self) -> dict[str, str | None]:
        query = "SELECT * FROM c WHERE CONTAINS(c.id, '..')"
        return {one["LeaseToken"]: one["Owner"] async for one in self.leases.query_items(query)}

    async def shares(self) -> dict[str | None, int]:
        found: dict[str | None, int] = defaultdict(int)
        for owner in (await self.owners()).values():
            found[owner] += 1
        return dict(found)

    async def until_shares(self, **wanted: int) -> dict[str | None, int]:
        """Returns the most that each had on the way."""
        most: dict[str | None, int] = {}

        async def are() -> bool:
            shares = await self.shares()
            most.update({name: max(count, most.get(name, 0)) for name, count in shares.items()})
            return shares == wanted

        await until(are, f"shares {wanted}", self.shares)
        return most

    async def until_nothing_is_lost(self) -> None:
        """Of all that is written by now."""
        wanted = {f"o{number}" for number in range(self.written)}

        async def missing() -> object:
            return sorted(wanted - self.handled())[:10]

        await until(lambda: wanted <= self.handled(), "everything handled", missing)


async def until(
    is_so: Callable[[], Awaitable[bool] | bool], what: str, instead: Callable[[], Awaitable[object]] | None = None
) -> None:
    ends_s = monotonic() + PATIENCE_S
    while monotonic() < ends_s:
        found = is_so()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not in {PATIENCE_S} s: {what}; instead {await instead() if instead else '?'}")


@pytest.fixture
def server() -> Iterator[Cosmos]:
    with cosmos(ranges=RANGES) as found:
        yield found


@asynccontextmanager
async def fleet(server: Cosmos) -> AsyncIterator[Fleet]:
    async with CosmosClient(server.url, server.key) as client:
        database = await client.create_database("shop")
        await database.create_container("orders", PartitionKey("/customer"))
        await database.create_container("leases", PartitionKey("/id"))
        yield Fleet(server, client)


def test_shares_become_even_and_each_goes_on_from_the_other(server: Cosmos) -> None:
    async def play() -> None:
        async with fleet(server) as play, play.load():
            dotnet = await play.dotnet("dotnet")
            async with dotnet.running():
                await play.until_shares(dotnet=RANGES)
                await until(lambda: len(play.handled()) > 100, "documents handled by .NET")
                async with play.ours("python"):
                    await play.until_shares(dotnet=RANGES // 2, python=RANGES // 2)
                    mine = len([c for calls in play.calls.values() for c in calls if c.who == "python"])
                    await until(lambda: _count(play, "python") > mine + 50, "documents handled by ours")
                await play.until_shares(dotnet=RANGES)
                seen = _count(play, "dotnet")
                await until(lambda: _count(play, "dotnet") > seen + 50, "documents handled by .NET again")
            async with play.ours("python"):
                await play.until_shares(python=RANGES)
                seen = _count(play, "python")
                await until(lambda: _count(play, "python") > seen + 50, "documents handled by ours again")
                await play.until_nothing_is_lost()
        assert play.repeats() < play.written / 4, "each went on where the other was"

    asyncio.run(play())


def test_who_dies_is_taken_over_by_the_other_make(server: Cosmos, tmp_path: Path) -> None:
    async def play() -> None:
        async with fleet(server) as play, play.load():
            dotnet = await play.dotnet("dotnet")
            async with dotnet.running():
                await play.until_shares(dotnet=RANGES)
                await until(lambda: len(play.handled()) > 50, "documents handled by .NET")
                dotnet.kill()
            with play.our_process("python", tmp_path) as diary:
                await play.until_shares(python=RANGES)
                await until(lambda: len(diary.read_text().split()) > 100, "documents handled by ours")
                peer = await play.dotnet("another", keeps_properties=True)
                async with peer.running():
                    most = await play.until_shares(python=RANGES // 2, another=RANGES // 2)
                    assert most["another"] == RANGES // 2, "it took our host for alive from the first"
                    play.kill()
                    await play.until_shares(another=RANGES)
                    play.also_handled |= set(diary.read_text().split()[1::2])
                    await play.until_nothing_is_lost()

    asyncio.run(play())


def test_a_range_splits_whoever_has_it(server: Cosmos) -> None:
    async def play() -> None:
        async with fleet(server) as play, play.load():
            dotnet = await play.dotnet("dotnet")
            async with dotnet.running(), play.ours("python"):
                await play.until_shares(dotnet=RANGES // 2, python=RANGES // 2)
                owners = await play.owners()
                for name in ("dotnet", "python"):
                    token = next(token for token, owner in owners.items() if owner == name)
                    server.container("shop", "orders").split(token)
                await play.until_shares(dotnet=RANGES // 2 + 1, python=RANGES // 2 + 1)
                await play.until_nothing_is_lost()

    asyncio.run(play())


def _count(play: Fleet, who: str) -> int:
    return sum(call.who == who for calls in play.calls.values() for call in calls)
