"""A processor over a local Cosmos DB: ranges that split and merge, trouble on purpose, containers that are deleted, and
what it costs to wait."""

from __future__ import annotations

import asyncio
import gc
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncClient

from evenflow import HubReplaced, Manual, Misconfigured, Position, Processor
from evenflow.container.wall import wall_us
from evenflow.cosmos.faults import FaultOptions, Faults
from evenflow.drivers.cosmos_places import place_of
from evenflow.errors import EvenflowError
from evenflow.model import MICROSECONDS, Group
from evenflow.observe.happenings import Ended, Gone, PartitionStarted, Trouble
from evenflow.observe.ownership import Known
from evenflow.observe.survey import survey
from evenflow.observe.watcher import Look, Watcher
from evenflow.ports import Charged, Dated, Vanishing
from evenflow.sources.cosmos import CosmosSource
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


# --- ranges that split and merge
def test_a_run_goes_through_splits_and_merges(orders: Orders) -> None:
    orders.write(*range(40))

    async def main() -> None:
        async with orders.source() as source:
            first = Run(source)
            assert sorted(await first.caught_up()) == list(range(40))
            left, right = orders.inside.split("0")
            orders.write(*range(40, 60))
            second = Run(source, first.store)
            assert sorted(await second.caught_up()) == list(range(40, 60))
            assert {told.partition for told in second.told(Ended)} == {"0"}
            merged = orders.inside.merge(left.id, right.id)
            orders.write(*range(60, 80))
        # Who never saw the parents goes on in their children where they were, too.
        third = Run(orders.url, first.store)
        assert sorted(await third.caught_up()) == list(range(60, 80))
        assert {name for name, _ in third.handled} == {"1", merged.id}
        assert await Run(orders.url, first.store).caught_up() == []

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_ranges_split_and_merge_while_they_are_read(orders: Orders, mode: str) -> None:
    async def main() -> None:
        run = Run(orders.at(mode=mode), then=lambda partition: asyncio.sleep(0.001))
        serving = asyncio.create_task(run.processor.serve())
        for step in range(6):
            for start in range(step * 50, step * 50 + 50, 10):
                await asyncio.to_thread(orders.write, *range(start, start + 10))
            ranges = orders.inside.ranges()
            await until(lambda: ranges[0].id in run.processor.owned)  # noqa: B023 - it is over before the next step
            if step % 2:
                await asyncio.to_thread(orders.inside.merge, ranges[0].id, ranges[1].id)
            else:
                await asyncio.to_thread(orders.inside.split, ranges[0].id)
        await until(lambda: len(run.handled) >= 300)
        run.processor.stop()
        await serving
        assert sorted(run.numbers) == list(range(300)), "none is lost, and none comes twice"
        assert len(run.told(Ended)) >= 6

    asyncio.run(main())


def test_children_begin_where_their_parent_was_checkpointed_by_hand(orders: Orders) -> None:
    """Not where it was read to: what was handled and not marked comes again, and nothing is lost."""
    orders.write(*range(30))
    counts: dict[str, int] = {}

    async def main() -> None:
        async def mark(partition: OwnedPartition) -> None:
            counts[partition.id] = counts.get(partition.id, 0) + 1
            if partition.id in ("0", "1") and counts[partition.id] <= 5:
                await partition.checkpoint()

        run = Run(orders.at(), then=mark, checkpoint=Manual())
        serving = asyncio.create_task(run.processor.serve())
        await until(lambda: len(run.handled) >= 30)
        before = [number for name, number in run.handled if name == "0"]
        await asyncio.to_thread(orders.inside.split, "0")
        await until(lambda: len(run.handled) >= 30 + len(before) - 5)
        await asyncio.sleep(0.3)
        run.processor.stop()
        await serving
        after = [number for name, number in run.handled if name not in ("0", "1")]
        assert sorted(after) == sorted(before[5:])

    asyncio.run(main())


def test_a_range_that_was_rewound_and_then_split_goes_on_where_it_was_rewound_to(orders: Orders) -> None:
    """Though what it came from itself had come further, under a lease that is still there."""
    orders.write(*range(40))

    async def main() -> None:
        store = MemoryStore()
        await Run(orders.at(), store).caught_up()
        parent = orders.inside.split("0")[0].id
        assert await Run(orders.at(), store).caught_up() == []

        async def stop(partition: OwnedPartition) -> None:
            again.processor.stop()

        again = Run(orders.at(max_items=1), store, then=stop)
        serving = asyncio.create_task(again.processor.serve())
        await until(lambda: {one.partition for one in again.told(PartitionStarted)} >= {parent})
        await again.processor.seek("earliest", [parent])
        await serving
        children = orders.inside.split(parent)
        rest = await Run(orders.at(), store).caught_up()
        pages = [orders.inside.feed(child.id, max_items=100) for child in children]
        documents = [change.document or {} for page in pages for change in page.changes]
        assert sorted([*again.numbers, *rest]) == sorted(document["n"] for document in documents)
        assert len(rest) > 1

    asyncio.run(main())


def test_what_is_asked_of_a_range_that_is_gone_or_with_a_position_of_another_one(orders: Orders) -> None:
    orders.write(*range(20))
    children = {one.id for one in orders.inside.split("0")}

    async def main() -> None:
        async with orders.source() as source:
            assert isinstance(source, Vanishing)
            for start in ("earliest", "latest", datetime.now(UTC) - timedelta(hours=1)):
                position = await source.resolve("0", start)
                reader = await source.open("0", position, epoch=1)
                batch = await reader.read(10, MUCH, 1.0)
                assert ({one.id for one in batch.ended or ()}, batch.resume) == (children, position)
            assert (await source.bounds(["0"]))["0"].newest is None
            with pytest.raises(Misconfigured, match="no range '17'"):
                await source.open("17", Position("0", 0), epoch=1)
            latest = await source.resolve("0", "latest")
            with pytest.raises(EvenflowError, match="of another range"):
                await source.resolve("1", latest)
            with pytest.raises(EvenflowError, match="of another range"):
                await source.open("1", latest, epoch=1)
            plain = await source.resolve("1", Position("2", 2))
            assert (plain.offset.startswith("2@"), plain.sequence) == (True, 2)

    asyncio.run(main())


# --- trouble on purpose
@pytest.mark.parametrize(
    "faults", [FaultOptions(throttle=400.0), FaultOptions(busy=0.2, gone=0.2, delay_s=0.01)], ids=["429", "503 and 410"]
)
def test_the_service_may_say_that_it_cannot_now(faults: FaultOptions) -> None:
    """The request is made again when the service says, by the same owner, and nobody has to be told."""

    async def main(orders: Orders) -> None:
        async with orders.source(max_items=20) as source:
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) >= 300)
            orders.write(*range(300, 330))
            await until(lambda: len(run.handled) >= 330)
            run.processor.stop()
            await serving
            assert sorted(run.numbers) == list(range(330))
            assert run.told(Trouble) == []
            assert {told.epoch for told in run.told(PartitionStarted)} == {1}
            assert len(run.told(PartitionStarted)) == 2

    with cosmos(ranges=2, faults=faults) as server:
        orders = Orders(server)
        orders.write(*range(300))
        asyncio.run(main(orders))


def test_a_server_that_is_away_is_waited_for(tmp_path: Any) -> None:
    async def main() -> None:
        with cosmos(ranges=2, path=tmp_path / "data") as server:
            orders, port = Orders(server), server.port
            orders.write(*range(10))
            run = Run(orders.at())
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) == 10)
        await asyncio.sleep(0.5)
        with cosmos(ranges=2, path=tmp_path / "data", port=port) as server:
            orders.server = server
            orders.write(*range(10, 20))
            await until(lambda: len(run.handled) == 20)
            run.processor.stop()
            await serving
        assert sorted(run.numbers) == list(range(20))
        assert {told.epoch for told in run.told(PartitionStarted)} == {1}

    asyncio.run(main())


# --- containers that are deleted
def test_a_container_that_is_deleted_is_waited_for_and_another_one_in_its_place_is_refused(orders: Orders) -> None:
    orders.write(*range(10))

    async def main() -> None:
        run = Run(orders.at())
        serving = asyncio.create_task(run.processor.serve())
        await until(lambda: len(run.handled) == 10)
        await asyncio.to_thread(orders.delete)
        await until(lambda: any("it was deleted" in str(told.error) for told in run.told(Trouble)))
        await asyncio.to_thread(orders.make)
        orders.write(*range(100, 110))
        with pytest.raises(HubReplaced, match="deleted and made again"):
            await asyncio.wait_for(serving, LONG_S)
        assert sorted(run.numbers) == list(range(10)), "nothing of the new one"

    asyncio.run(main())


# --- positions
def test_changes_that_are_no_longer_kept_are_told() -> None:
    ahead = [0]

    async def main(orders: Orders) -> None:
        store = MemoryStore()
        async with orders.source(mode="all") as source:
            first = Run(source, store)
            await first.caught_up()
            orders.write(*range(10, 20))
            ahead[0] = 8 * 24 * 3600 * MICROSECONDS
            orders.inside.trim()
            ahead[0] = 0
            orders.write(*range(20, 25))
            halted = Run(source, store)
            serving = asyncio.create_task(halted.processor.serve())
            await until(lambda: len(halted.told(Gone)) == 2)
            assert "no longer kept" in str(halted.told(Gone)[0])
            halted.processor.stop()
            await serving
            assert halted.handled == []
            last = Run(source, store, on_gone="earliest")
            assert sorted(await last.caught_up()) == list(range(20, 25))

    with cosmos(ranges=2, wall_us=lambda: wall_us() + ahead[0]) as server:
        orders = Orders(server)
        orders.write(*range(10))
        asyncio.run(main(orders))


def test_all_versions_from_the_beginning_which_azure_does_not_give_are_warned_of_once(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with orders.source(mode="all") as source, orders.source() as latest:
            await latest.resolve("0", "earliest")
            await source.resolve("0", "latest")
            assert not caplog.records
            for partition in ("0", "1"):
                await source.resolve(partition, "earliest")

    with caplog.at_level("WARNING", "evenflow"):
        asyncio.run(main())
    (told,) = caplog.messages
    assert "from the beginning on: Azure Cosmos DB gives all versions and deletes from now on alone" in told


def test_where_a_group_begins(orders: Orders) -> None:
    orders.write(*range(10))

    async def main() -> None:
        now = Run(orders.at(), start="latest")
        serving = asyncio.create_task(now.processor.serve())
        await until(lambda: len(now.told(PartitionStarted)) == 2)
        orders.write(*range(10, 15))
        await until(lambda: len(now.handled) == 5)
        now.processor.stop()
        await serving
        assert sorted(now.numbers) == list(range(10, 15))
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert sorted(await Run(orders.at(), start=an_hour_ago).caught_up()) == list(range(15))
        soon = datetime.now(UTC) + timedelta(seconds=5)  # clocks differ
        assert await Run(orders.at(), start=soon).caught_up() == []

    asyncio.run(main())


def test_what_the_client_looks_up_by_itself_is_counted(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[float] = []
    monkeypatch.setattr(Faults, "spent", lambda self, charge: charged.append(charge))
    orders.write(*range(10))
    charged.clear()

    async def main() -> None:
        async with orders.source() as source:
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) == 10)
            orders.inside.split("0")
            orders.write(*range(10, 20))
            await until(lambda: len(run.handled) == 20)
            run.processor.stop()
            await serving
            assert source.charges()["client's own"] > 0
            assert sum(source.charges().values()) == pytest.approx(sum(charged))

    asyncio.run(main())


def test_a_time_is_a_second() -> None:
    """Azure leaves out the second that it is asked for, the local one does not."""
    noon_s = wall_us() // MICROSECONDS
    now_us = [noon_s * MICROSECONDS]

    async def main(orders: Orders) -> None:
        for second in (-1, 0, 1):
            now_us[0] = (noon_s + second) * MICROSECONDS + 500_000
            orders.write(*range(10 * second + 10, 10 * second + 20))
        for offset_s, first in ((-0.5, 0), (0.0, 10), (0.7, 10), (1.0, 20)):
            start = datetime.fromtimestamp(noon_s + offset_s, UTC)
            assert sorted(await Run(orders.at(), start=start).caught_up()) == list(range(first, 30))

    with cosmos(ranges=2, wall_us=lambda: now_us[0]) as server:
        asyncio.run(main(Orders(server)))


def test_a_time_is_one_in_a_merged_range_too() -> None:
    """One of its logs has changes from before that time, with LSNs above those of the other from after it."""
    noon_s = wall_us() // MICROSECONDS
    now_us = [noon_s * MICROSECONDS]

    async def main(orders: Orders) -> None:
        def is_in_first(number: int) -> bool:
            before = orders.inside.ranges()[0].lsn
            orders.write(number)
            return orders.inside.ranges()[0].lsn > before

        orders.write(*3 * [number for number in range(40) if is_in_first(number)])
        now_us[0] += MICROSECONDS
        orders.write(*range(40, 60))
        child = orders.inside.merge("0", "1")
        merged, end = child.id, child.lsn
        noon = datetime.fromtimestamp(noon_s + 1, UTC)
        assert sorted(await Run(orders.at(max_items=7), start=noon).caught_up()) == list(range(40, 60))

        async with orders.source() as source:
            start = await source.resolve(merged, noon)
            assert await source.resolve(merged, start) == start
            for lsn in range(start.sequence or 0, end, 3):
                after = Position(start.offset.replace(f"{start.sequence}@", f"{lsn}@"), lsn)
                assert await source.waiting_since({merged: after}) == {merged: noon}

        # Who stops on the way, and does not know the range that is split then, goes on in the same way.
        async def stop(partition: OwnedPartition) -> None:
            if len(first.handled) == 8:
                first.processor.stop()

        first = Run(orders.at(max_items=7), then=stop, start=noon)
        await first.processor.serve()
        orders.inside.split(merged)
        rest = await Run(orders.at(max_items=7), first.store).caught_up()
        assert len(rest) > 5
        assert sorted([*first.numbers, *rest]) == list(range(40, 60))

    with cosmos(ranges=2, wall_us=lambda: now_us[0]) as server:
        asyncio.run(main(Orders(server)))


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
            while loop.time() - began_s < 2.0:
                assert not (await reader.read(100, MUCH, 0.05)).events
            asked = source.charges()["read feed"] - before  # an answer without changes costs one unit
            assert 2 <= asked <= 6, source.charges()
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
            rows = {row.partition: row for row in looked.partition_rows(Known(wall_s=datetime.now(UTC).timestamp()))}
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
            watcher = Watcher()

            async def look(now_s: float) -> Look:
                found = await survey(run.store, Group(identity.namespace, identity.hub, "group"), source)
                return watcher.look(found, now_s, datetime.now(UTC).timestamp())

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
        with pytest.raises(Misconfigured, match="leave credential= out"):
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

    with cosmos(ranges=2, faults=FaultOptions(throttle=200.0)) as server:
        slow = Orders(server)
        slow.write(*range(100))
        asyncio.run(main(slow))


def test_an_async_container_that_another_loop_has_used_is_refused(orders: Orders) -> None:
    client = AsyncClient(orders.server.url, orders.server.key)
    source = CosmosSource(client.get_database_client(orders.database).get_container_client("orders"))

    async def again() -> None:
        with pytest.raises(Misconfigured, match=r"belongs to another event loop .* or give a container of the plain"):
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
        with pytest.raises(Misconfigured, match="not as that of Cosmos DB"):
            await source.open(range.id, await source.resolve(range.id, "earliest"), epoch=1)
        await source.aclose()
        # This server ends each connection with its answer. The driver closes its side in the background, which takes
        # an answer of the server with TLS, and does not wait for it when it is closed itself.
        await until(lambda: not [one for one in remaining() - before if "socket" in one])

    asyncio.run(main())
