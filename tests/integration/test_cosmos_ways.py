"""What reading a local Cosmos DB costs, how far behind a group is, and the clients and URLs by which it is reached."""

from __future__ import annotations

import asyncio
import gc
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncClient

from evenflow import Manual, Misconfigured, Processor
from evenflow.drivers.cosmos.positions import place_of
from evenflow.emulators.cosmos.faults import CosmosFaultOptions
from evenflow.model import Group
from evenflow.operate.inspect.ownership import PartitionContext
from evenflow.operate.inspect.survey import survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher
from evenflow.ports import Charged, Dated
from evenflow.signals import PartitionStarted, Trouble
from evenflow.sources.cosmos.source import CosmosSource
from evenflow.stores.memory import MemoryStore
from evenflow.testing.cosmos import Cosmos, cosmos
from evenflow.urls import open_source
from tests.integration.cosmos_scene import LONG_S, MUCH, POLL_S, Orders, Run, ordering, served, until
from tests.leaks import remaining
from tests.servers.cosmos import shared_vercel_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow import OwnedPartition

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server() -> Iterator[Cosmos]:
    with served() as server:
        yield server


@pytest.fixture
def orders(server: Cosmos) -> Iterator[Orders]:
    with ordering(server) as scene:
        yield scene


# --- what it costs, and how far behind it is
def test_a_range_that_is_quiet_is_asked_once_a_poll(orders: Orders) -> None:
    orders.write(*range(10))

    async def main() -> None:
        async with orders.source(poll_s=0.4) as source:
            assert isinstance(source, Charged)
            reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
            loop = asyncio.get_running_loop()
            while not (await reader.read(100, MUCH, 0.01)).events:
                pass
            began_s, before = loop.time(), source.charges()["read feed"]
            while source.charges()["read feed"] - before < 5:  # an answer without changes costs one unit
                assert not (await reader.read(100, MUCH, 0.05)).events
            assert loop.time() - began_s >= 4 * 0.4, "a poll lies between two of them"
            assert set(source.charges()) == {"read container", "read feed", "read ranges"}
            await reader.aclose()

    asyncio.run(main())


def test_how_far_behind_a_group_is(orders: Orders) -> None:
    orders.write(*range(20))

    async def main() -> None:
        async with orders.source() as source:
            assert isinstance(source, Dated)
            identity = await source.identity()
            group = Group(identity.namespace, identity.hub, "group")
            store = MemoryStore()
            await Run(source, store).caught_up()
            looked = await survey(store, group, source)
            assert [row.lag for row in looked.partition_rows()] == [0, 0]
            began = datetime.now(UTC) - timedelta(seconds=5)
            orders.write(*range(20, 30))
            looked = await survey(store, group, source)
            assert sum(row.lag or 0 for row in looked.partition_rows()) == 10
            assert all(began < since for since in looked.waiting.values())
            assert len(looked.waiting) == sum(1 for row in looked.partition_rows() if row.lag)
            everything = await source.bounds(["0", "1"])
            assert all(one.oldest is not None and one.oldest.sequence == 1 for one in everything.values())

    asyncio.run(main())


def test_a_child_that_has_nothing_new_is_not_behind(orders: Orders) -> None:
    """Its LSNs go on from its parent's, whose changes may all be the other child's."""
    orders.write(*range(20))

    async def main() -> None:
        async with orders.source() as source:
            identity = await source.identity()
            store = MemoryStore()
            await Run(source, store).caught_up()
            before = {one.id: one.lsn for one in orders.inside.ranges()}
            orders.write(*[20] * 5)
            (parent,) = (one.id for one in orders.inside.ranges() if one.lsn > before[one.id])
            children = [one.id for one in orders.inside.split(parent)]
            looked = await survey(store, Group(identity.namespace, identity.hub, "group"), source)
            rows = {
                row.partition: row
                for row in looked.partition_rows(PartitionContext(wall_s=datetime.now(UTC).timestamp()))
            }
            assert sorted(rows[name].lag or 0 for name in children) == [0, 5]
            assert all(rows[name].lag_s is not None for name in children)

    asyncio.run(main())


def test_what_nobody_will_be_given_is_no_lag_behind_a_manual_checkpoint(orders: Orders) -> None:
    """Deletes count in LSNs, and so does what the other parent of a merged range did."""
    orders.write(*range(20), *[20] * 5)

    async def mark(partition: OwnedPartition) -> None:
        await partition.checkpoint()

    async def main() -> None:
        async with orders.source() as source:
            identity = await source.identity()
            run = Run(source, then=mark, checkpoint=Manual(), ttl_s=60.0)
            watcher = GroupWatcher()

            async def look(now_s: float) -> GroupSnapshot:
                found = await survey(run.store, Group(identity.namespace, identity.hub, "group"), source)
                return watcher.observe(found, now_s, datetime.now(UTC).timestamp())

            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) == 21)
            orders.inside.delete("i20", "k20")
            for now_s in (0.0, 10.0):
                looked = await look(now_s)
                assert (looked.status, looked.lag, looked.lag_s) == ("ok", 0, 0.0)
            merged = orders.inside.merge("0", "1").id
            await until(lambda: [one.partition for one in run.told(PartitionStarted)][2:] == [merged])
            for now_s in (20.0, 30.0):
                looked = await look(now_s)
                assert (looked.status, looked.lag, looked.lag_s) == ("ok", 0, 0.0)
            (record,) = (one for one in await run.store.checkpoints(looked.group) if one.partition == merged)
            assert len(place_of(record.position).pieces) == 2, "it has not moved"
            run.processor.stop()
            await serving

    asyncio.run(main())


# --- ways in
def test_a_container_of_the_client_can_be_given(orders: Orders) -> None:
    orders.write(*range(10))
    where = orders.server.url, orders.server.key

    async def main() -> None:
        async with AsyncClient(*where) as client:
            container = client.get_database_client(orders.database).get_container_client("orders")
            assert sorted(await Run(container).caught_up()) == list(range(10))
            assert (await container.read())["id"] == "orders", "it is not closed"
        with CosmosClient(*where) as plain:
            database = plain.get_database_client(orders.database)
            assert sorted(await Run(database.get_container_client("orders")).caught_up()) == list(range(10))
            with pytest.raises(Misconfigured, match="a container"):
                open_source(database)
        with pytest.raises(Misconfigured, match="remove credential="):
            CosmosSource(container, credential="x")

    asyncio.run(main())


def test_a_given_client_keeps_its_own_patience(orders: Orders) -> None:
    """It waits by itself when it is told to come later; here it is just not asked again meanwhile."""

    async def main(orders: Orders) -> None:
        async with AsyncClient(orders.server.url, orders.server.key) as client:
            container = client.get_database_client(orders.database).get_container_client("orders")
            run = Run(CosmosSource(container, poll_s=POLL_S, max_items=20))
            assert sorted(await run.caught_up()) == list(range(100))
            assert run.told(Trouble) == []

    with cosmos(ranges=2, faults=CosmosFaultOptions(throttle=200.0)) as server:
        slow = Orders(server)
        slow.write(*range(100))
        asyncio.run(main(slow))


def test_an_async_container_that_another_loop_has_used_is_refused(orders: Orders) -> None:
    client = AsyncClient(orders.server.url, orders.server.key)
    source = CosmosSource(client.get_database_client(orders.database).get_container_client("orders"))

    async def again() -> None:
        with pytest.raises(
            Misconfigured, match=r"belongs to another event loop .* or pass a container of the synchronous client"
        ):
            await source.identity()
        await client.close()

    asyncio.run(source.identity())
    asyncio.run(again())
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # of what the first loop left open


def test_wrong_settings_are_told_and_no_key_is(orders: Orders) -> None:
    key = "c2VjcmV0c2VjcmV0c2VjcmV0"

    async def refused(url: str) -> str:
        async def serve() -> None:
            processor = Processor(url, MemoryStore(), "group")
            processor.on_event(lambda event, partition: None)
            await asyncio.wait_for(processor.serve(), LONG_S)

        with pytest.raises(Misconfigured) as told:
            await serve()
        return str(told.value)

    async def main() -> None:
        told = await refused(f"{orders.url}?key={key}")
        assert ("401" in told, key in told) == (True, False)
        assert "no container 'nothing'" in await refused(orders.url.replace("orders", "nothing"))
        assert "no option 'pol_s' (did you mean poll_s?)" in await refused(f"{orders.url}?pol_s=3")
        assert "mode='every'" in await refused(f"{orders.url}?mode=every")
        assert "poll_s='soon'" in await refused(f"{orders.url}?poll_s=soon")
        assert "max_items='0'" in await refused(f"{orders.url}?max_items=0")
        assert key not in repr(CosmosSource(f"{orders.url}?key={key}"))

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_server_without_a_change_feed_is_told_apart() -> None:
    """@vercel/cosmosdb-server answers, but its feed has no LSNs."""
    server = shared_vercel_or_skip()
    with CosmosClient(server.url, server.key, **server.options) as client:
        container = client.create_database("stub").create_container("orders", PartitionKey("/k"))
        container.upsert_item({"id": "a", "k": "x"})

    async def main() -> None:
        before = remaining()
        source = CosmosSource(f"cosmos://127.0.0.1:{server.port}/stub/orders?tls=on")
        assert (await source.identity()).hub == "stub/orders"
        (range,) = await source.partitions()
        with pytest.raises(Misconfigured, match="not a change feed of Cosmos DB"):
            await source.open(range.id, await source.resolve(range.id, "earliest"), epoch=1)
        await source.aclose()
        # This server ends each connection with its answer. The driver closes its side in the background, which takes
        # an answer of the server with TLS, and does not wait for it when it is closed itself.
        await until(lambda: not [one for one in remaining() - before if "socket" in one])

    asyncio.run(main())
