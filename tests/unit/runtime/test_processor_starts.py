"""Where a group begins, what wins over that, and how one goes elsewhere."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import LeaseLost, Manual, Misconfigured, Position, PositionOutOfRange, Processor, StoreUnavailable
from evenflow.signals import PartitionStarted
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import Seen, Stage, at, until

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition


async def first_of_0(stage: Stage, **options: Any) -> int:
    """The first event of partition 0 that a new group handles, when one more comes after it has started."""
    seen = Seen()
    started = len(stage.told(PartitionStarted))
    async with stage.processor(seen, **options):
        await until(lambda: len(stage.told(PartitionStarted)) == started + len(stage.source.partition_ids))
        stage.fill(1)
        await until(lambda: stage.source.newest("0") in seen.of("0"))
    assert seen.of("0") == list(range(seen.of("0")[0], stage.source.newest("0") + 1))
    return seen.of("0")[0]


async def test_earliest_is_the_oldest_that_is_kept(stage: Stage) -> None:
    stage.fill(10)
    stage.source.trim("0", 4)
    assert await first_of_0(stage, start="earliest") == 4


async def test_latest_is_what_comes_after_the_start(stage: Stage) -> None:
    stage.fill(10)
    assert await first_of_0(stage, start="latest") == 10


async def test_a_time_is_the_first_event_at_or_after_it(stage: Stage) -> None:
    for _ in range(10):
        stage.fill(1)
        await asyncio.sleep(1.0)
    assert await first_of_0(stage, start=datetime.fromtimestamp(3.0, UTC)) == 3
    assert await first_of_0(stage, start=datetime.fromtimestamp(3.5, UTC), group="other") == 4


async def test_a_position_is_gone_on_after(stage: Stage) -> None:
    stage.fill(10)
    assert await first_of_0(stage, start=Position("6", 6)) == 7


async def test_each_partition_may_have_its_own_start(stage: Stage) -> None:
    stage.source.grow(1)
    stage.fill(10)
    seen = Seen()
    async with stage.processor(seen, start={"0": "latest", "1": Position("6", 6)}):
        await until(lambda: len(stage.told(PartitionStarted)) == 3)
        stage.fill(1)
        await until(lambda: len(seen) == 1 + 4 + 11)
    assert (seen.of("0")[0], seen.of("1")[0], seen.of("2")[0]) == (10, 7, 0)


@pytest.mark.parametrize("start", ["earliest", "latest", Position("1", 1)])
async def test_a_checkpoint_wins_over_the_start(stage: Stage, start: Any) -> None:
    stage.fill(5)
    await stage.processor(Seen()).serve(until="caught_up")
    stage.fill(5)
    assert await first_of_0(stage, start=start) == 5


async def test_a_start_at_latest_is_fixed_before_the_first_event(stage: Stage) -> None:
    """Its owner dies before it has handled anything: what came meanwhile is not lost."""
    stage.fill(5)
    process = stage.new_process()
    process.start(stage.processor(Seen(), start="latest", loop=process).serve())
    await until(lambda: len(stage.told(PartitionStarted)) == 2)
    process.dead = True
    stage.fill(3)
    seen = Seen()
    await stage.processor(seen, start="latest").serve(until="caught_up")
    assert seen.of("0") == [5, 6, 7]


async def test_a_position_outside_the_log_ends_it_with_an_error_that_says_so(stage: Stage) -> None:
    stage.fill(3)
    with pytest.raises(PositionOutOfRange, match="Position 99 is beyond the end of partition"):
        await stage.processor(Seen(), start=Position("99", 99)).serve()
    assert await stage.records() == {}


@pytest.mark.parametrize("start", ["latest", "earliest", datetime.fromtimestamp(1e6, UTC)])
async def test_partitions_that_appear_later_start_at_their_beginning(stage: Stage, start: Any) -> None:
    stage.fill(5)
    seen = Seen()
    async with stage.processor(seen, start=start, refresh_s=10.0) as processor:
        await until(lambda: len(processor.owned) == 2)
        stage.source.grow(1)
        stage.fill(5, "2")
        appeared_s = stage.now_s
        await until(lambda: len(seen.of("2")) == 5)
        assert stage.now_s - appeared_s <= 10.0 + 2.1
    assert seen.of("2") == list(range(5))


async def test_partitions_that_appear_while_nobody_runs_start_at_their_beginning_too(stage: Stage) -> None:
    await stage.processor(Seen(), start="latest").serve(until="caught_up")
    stage.source.grow(1)
    stage.fill(5, "2")
    seen = Seen()
    await stage.processor(seen, start="latest").serve(until="caught_up")
    assert seen.of("2") == list(range(5))


async def test_the_partitions_of_the_first_start_are_not_late_whoever_claims_them(stage: Stage) -> None:
    """Who came first could have only one; the other one still starts at latest."""
    stage.fill(5)
    first, second = Seen(), Seen()
    async with stage.processor(first, start="latest", max_partitions=1) as one:
        await until(lambda: len(one.owned) == 1)
        async with stage.processor(second, start="latest") as other:
            await until(lambda: len(other.owned) == 1 and len(stage.told(PartitionStarted)) == 2)
            stage.fill(1)
            await until(lambda: len(first) + len(second) == 2)
    assert sorted([*first, *second]) == [("0", 5), ("1", 5)]


async def test_latest_is_when_the_group_began_also_where_nobody_could_have_it(stage: Stage) -> None:
    """Its start is written down though it has no owner; also when the store does not answer at first."""
    stage.fill(5)
    seen = Seen()
    stage.store.away = {"seal"}
    async with stage.processor(seen, start="latest", max_partitions=1):
        await asyncio.sleep(5.0)
        stage.store.away = set()
        await asyncio.sleep(10.0)
        assert await stage.positions() == {"0": 4, "1": 4}
        stage.fill(3)
        await until(lambda: len(seen) == 3)
        async with stage.processor(seen, start="latest", instance_id="other"):
            await until(lambda: len(seen) == 6)
    assert seen.of("0") == seen.of("1") == [5, 6, 7]


# --- seek
async def test_a_seek_goes_back_under_a_new_epoch(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 10)
        assert processor.owned == {"0": 1, "1": 1}
        assert await processor.seek(Position("2", 2)) == {"0": at(2), "1": at(2)}
        assert processor.owned == {"0": 2, "1": 2}
        assert await stage.positions() == {"0": 2, "1": 2}, "it is durable when seek returns"
        await until(lambda: len(seen) == 14)
        assert seen.of("0") == [0, 1, 2, 3, 4, 3, 4]
    assert await stage.positions() == {"0": 4, "1": 4}


async def test_a_seek_goes_ahead(stage: Stage) -> None:
    seen = Seen()
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        await asyncio.sleep(1.0)
        await seen(event, partition)

    stage.fill(1000)
    async with processor:
        await until(lambda: len(seen.of("0")) == 3)
        assert (await processor.seek("latest"))["0"] == at(999)
        stage.fill(1)
        await until(lambda: 1000 in seen.of("0"))
    assert seen.of("0")[-1] == 1000
    assert len(seen.of("0")) <= 5


async def test_a_seek_of_one_partition_leaves_the_others(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 10)
        assert await processor.seek("earliest", ["1"]) == {"1": at(-1)}
        await until(lambda: len(seen) == 15)
        assert processor.owned == {"0": 1, "1": 2}
    assert seen.of("0") == list(range(5))


async def test_one_partition_is_named_by_its_id_and_twice_is_once(stage: Stage) -> None:
    stage.source.grow(9)
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 11)
        assert await processor.seek("earliest", "10") == {"10": at(-1)}
        assert [name for name, epoch in processor.owned.items() if epoch == 2] == ["10"]
        assert await processor.seek("earliest", ["3", "3"]) == {"3": at(-1)}


async def test_a_seek_waits_for_the_call_that_runs(stage: Stage) -> None:
    processor = stage.processor()
    lines: list[str] = []

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        lines.append(f"begin {event.sequence}")
        await asyncio.sleep(5.0)
        lines.append(f"end {event.sequence}")

    stage.fill(3, "0")
    async with processor:
        await until(lambda: lines == ["begin 0", "end 0", "begin 1"])
        await processor.seek("earliest", ["0"])
        assert lines == ["begin 0", "end 0", "begin 1", "end 1"]
        await until(lambda: len(lines) == 5)
        assert lines[4] == "begin 0"


async def test_a_seek_with_checkpoints_by_hand(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=Manual()) as processor:
        await until(lambda: len(seen) == 10)
        await processor.seek(Position("2", 2))
        assert await stage.positions() == {"0": 2, "1": 2}
        await until(lambda: len(seen) == 14)
    assert await stage.positions() == {"0": 2, "1": 2}


async def test_a_second_seek_wins_over_the_first(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 10)
        await processor.seek("earliest")
        await processor.seek(Position("3", 3))
        await until(lambda: seen.of("0")[-1:] == [4] and processor.owned == {"0": 3, "1": 3})
        assert await stage.positions() in ({"0": 3, "1": 3}, {"0": 4, "1": 4})


async def test_a_seek_of_a_partition_that_is_not_owned_is_refused(stage: Stage) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 2)
        with pytest.raises(LeaseLost, match="does not own partition 7, 8: a seek goes through the owner"):
            await processor.seek("earliest", ["0", "7", "8"])
        assert processor.owned == {"0": 1, "1": 1}


async def test_a_seek_before_the_start_is_refused(stage: Stage) -> None:
    processor = stage.processor(Seen())
    with pytest.raises(Misconfigured, match="needs a running processor; to begin elsewhere, give start= instead"):
        await processor.seek("earliest")
    await processor.serve(until="caught_up")
    with pytest.raises(Misconfigured, match="needs a running processor"):
        await processor.seek("earliest")


@pytest.mark.parametrize(
    ("to", "error"), [("first", Misconfigured), (7, Misconfigured), (Position("99", 99), PositionOutOfRange)]
)
async def test_a_seek_to_nowhere_is_refused_and_changes_nothing(stage: Stage, to: Any, error: type) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 10)
        with pytest.raises(error):
            await processor.seek(to)
        stage.fill(1)
        await until(lambda: len(seen) == 12)
        assert processor.owned == {"0": 1, "1": 1}


async def test_a_seek_that_the_store_does_not_answer_is_an_error_and_all_goes_on_where_it_was(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 10)
        stage.store.away = {"swap"}
        with pytest.raises(StoreUnavailable, match=r"the seek did not happen \(doubt\)"):
            await processor.seek("earliest")
        assert processor.owned == {}, "a swap without an answer counts as done"
        stage.store.away = set()
        stage.fill(1)
        await until(lambda: len(seen) == 12)
        assert processor.owned == {"0": 2, "1": 2}
    assert seen.of("0") == list(range(6))


async def test_a_seek_of_somebody_who_leaves_is_refused(stage: Stage) -> None:
    processor = stage.processor()
    begun = asyncio.Event()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        begun.set()
        await asyncio.sleep(5.0)

    stage.fill(1, "0")
    serving = asyncio.create_task(processor.serve())
    await until(begun.is_set)
    processor.stop()
    await asyncio.sleep(1.0)
    with pytest.raises(LeaseLost, match="partition 0 is being moved; try the seek again"):
        await processor.seek("earliest", ["0"])
    await serving


async def test_a_seek_on_a_real_loop() -> None:
    source, store, seen = FakeSource(2), MemoryStore(), Seen()
    for partition in "01":
        for _ in range(5):
            source.append(partition, b"x")
    processor = Processor(source, store, "group")
    processor.on_event(seen)
    async with processor:
        await until(lambda: len(seen) == 10, 10.0)
        await processor.seek("earliest")
        await until(lambda: len(seen) == 20, 10.0)
