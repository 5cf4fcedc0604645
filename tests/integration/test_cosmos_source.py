"""A processor over a local Cosmos DB: ranges that split and merge, trouble on purpose, containers that are deleted, and
what it costs to wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import HubReplaced, Manual, Misconfigured, Position
from evenflow.embedded.container.clock import wall_us
from evenflow.emulators.cosmos.faults import CosmosFaultOptions, CosmosFaults
from evenflow.errors import EvenflowError
from evenflow.model import MICROSECONDS
from evenflow.ports import Vanishing
from evenflow.signals import Ended, Gone, PartitionStarted, Trouble
from evenflow.stores.memory import MemoryStore
from evenflow.testing.cosmos import Cosmos, cosmos
from tests.integration.cosmos_scene import LONG_S, MUCH, Orders, Run, ordering, served, until

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
    "faults",
    [CosmosFaultOptions(throttle=400.0), CosmosFaultOptions(busy=0.2, gone=0.2, delay_s=0.01)],
    ids=["429", "503 and 410"],
)
def test_the_service_may_say_that_it_cannot_now(faults: CosmosFaultOptions) -> None:
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
    assert "from the beginning on. Azure Cosmos DB returns all versions and deletes only from now on" in told


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
    monkeypatch.setattr(CosmosFaults, "spent", lambda self, charge: charged.append(charge))
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
