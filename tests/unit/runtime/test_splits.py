"""Partitions that end: their children begin when all of them is handled, wherever that happens, and nothing is lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from evenflow import Every, LeaseLost, Manual, PartitionHalted, Retry
from evenflow.core.filed import fold
from evenflow.model import Action, Position, Steering
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.signals import Ended, EndUnmarked
from evenflow.testing.fakes import FakeFeed, FakeSource
from tests.unit.runtime.stage import GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow import Event, OwnedPartition, Processor
    from evenflow.model import Batch, Partition, PartitionId
    from evenflow.ports import Reader

SELDOM = Every(seconds=10_000.0)


@asynccontextmanager
async def served(*processors: Processor) -> AsyncIterator[None]:
    serving = [asyncio.create_task(processor.serve()) for processor in processors]
    try:
        yield
    finally:
        for processor in processors:
            processor.stop()
        await asyncio.gather(*serving)


def halves(child: Partition, event: Event) -> bool:
    """Even numbers go to the left, odd ones to the right; a merged one takes all."""
    number = int(event.body)
    return not child.id.endswith(("left", "right")) or (number % 2 == 0) == child.id.endswith("left")


class Bodies(list[tuple[str, int]]):
    async def __call__(self, event: Event, partition: OwnedPartition) -> None:
        self.append((partition.id, int(event.body)))

    def of(self, *partitions: str) -> list[int]:
        return [number for name, number in self if name in partitions]


# --- the parent can be read to its end
async def test_children_begin_when_all_of_their_parent_is_handled(stage: Stage) -> None:
    stage.source = FakeSource(1)
    seen = Seen()

    async def slowly(event: Event, partition: OwnedPartition) -> None:
        await asyncio.sleep(0.5)
        await seen(event, partition)

    stage.fill(10, "0")
    stage.source.end("0", ["left", "right"])
    stage.fill(3, "left", "right")
    async with served(stage.processor(slowly, instance_id="a"), stage.processor(slowly, instance_id="b")):
        await until(lambda: len(seen) == 16)
        leases = await stage.leases()
    assert seen[:10] == [("0", number) for number in range(10)]
    assert seen.of("left") == seen.of("right") == [0, 1, 2]
    assert leases["0"].ended
    assert leases["0"].owner is None
    assert leases["0"].reason == "ended: split into left, right"
    assert {str(leases[name].owner)[0] for name in ("left", "right")} == {"a", "b"}
    assert (await stage.positions())["0"] == 9


async def test_a_merged_child_waits_for_each_of_its_parents(stage: Stage) -> None:
    seen, gate = Seen(), asyncio.Event()

    async def handler(event: Event, partition: OwnedPartition) -> None:
        if partition.id == "1":
            await gate.wait()
        await seen(event, partition)

    stage.fill(3)
    stage.source.merge(["0", "1"], "merged")
    stage.fill(2, "merged")
    async with served(stage.processor(handler)):
        await until(lambda: stage.told(Ended))
        await asyncio.sleep(60.0)
        assert seen == [("0", 0), ("0", 1), ("0", 2)]
        gate.set()
        await until(lambda: len(seen) == 8)
    assert seen[3:] == [("1", 0), ("1", 1), ("1", 2), ("merged", 0), ("merged", 1)]
    assert [one.reason for one in (await stage.leases()).values() if one.ended] == ["ended: merged into merged"] * 2


async def test_the_end_outlives_everybody(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(3, "0")
    stage.source.end("0", ["left"])
    first = Seen()
    async with served(stage.processor(first)):
        await until(lambda: stage.told(Ended))
    stage.fill(2, "left")
    again = Seen()
    async with served(stage.processor(again)):
        await until(lambda: again.of("left") == [0, 1])
    assert again.of("0") == []


@pytest.mark.parametrize("away", ["swap", "commit"])
async def test_who_dies_between_the_last_checkpoint_and_the_end_leaves_it_to_the_next(stage: Stage, away: str) -> None:
    stage.source = FakeSource(1)
    loop, seen = stage.new_process(), Seen()
    stage.fill(3, "0")
    loop.start(stage.processor(Seen(), loop=loop, instance_id="dies", checkpoint=SELDOM).serve())
    await asyncio.sleep(5.0)
    stage.store.away = {away}
    stage.source.end("0", ["left"])
    stage.fill(2, "left")
    await asyncio.sleep(2.0)
    loop.dead = True
    stage.store.away = set()
    assert not (await stage.leases())["0"].ended
    async with served(stage.processor(seen, instance_id="next")):
        await until(lambda: seen.of("left") == [0, 1])
    assert seen.of("0") == ([] if away == "swap" else [0, 1, 2])
    assert (await stage.leases())["0"].ended


async def test_a_late_end_of_somebody_who_was_taken_over_changes_nothing(stage: Stage) -> None:
    """The swap goes by the lease's revision."""
    stage.source = FakeSource(1)
    seen, gate = Seen(), asyncio.Event()
    stage.fill(1, "0")

    async def waits(event: Event, partition: OwnedPartition) -> None:
        await gate.wait()

    loop = stage.new_process()
    loop.start(stage.processor(Seen(), loop=loop, instance_id="stalls").serve())
    await asyncio.sleep(5.0)
    loop.stall()
    stage.source.append("0", b"x")
    stage.source.end("0", ["left"])
    async with served(stage.processor(waits, instance_id="next")):
        await asyncio.sleep(30.0)
        loop.resume()
        await asyncio.sleep(30.0)
        lease = (await stage.leases())["0"]
        assert not lease.ended
        assert lease.owner is not None
        assert lease.owner.id == "next"
        gate.set()
        await until(lambda: stage.told(Ended))
    assert seen == []


async def test_a_group_that_begins_on_what_was_split_long_ago_reads_what_is_there(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(3, "0")
    stage.source.end("0", ["left"])
    stage.fill(2, "left")
    del stage.source._logs["0"]  # it has expired
    seen = Seen()
    async with served(stage.processor(seen)):
        await until(lambda: seen == [("left", 0), ("left", 1)])


async def test_a_parent_that_expired_before_it_was_handled_keeps_nobody_waiting(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(3, "0")
    async with served(stage.processor(Seen())):
        await until(lambda: stage.store.asked["seal"])
    stage.source.end("0", ["left"])
    stage.fill(2, "left")
    del stage.source._logs["0"]
    seen = Seen()
    with pytest.raises(Exception, match="no partition '0'"):
        await stage.processor(seen).serve()
    assert seen.of("left") == [0, 1]


async def test_latest_holds_for_what_was_there_and_children_begin_at_their_beginning(stage: Stage) -> None:
    stage.source = FakeSource(2)
    stage.fill(3)
    stage.source.end("0", ["old"])
    stage.fill(3, "old")
    seen = Seen()
    async with served(stage.processor(seen, start="latest")):
        await until(lambda: len(stage.told(Ended)) == 1)
        await asyncio.sleep(10.0)
        stage.source.append("1", b"x")
        stage.source.end("1", ["new"])
        stage.fill(2, "new", "old")
        await until(lambda: len(seen) == 5)
    assert sorted(seen) == [("1", 3), ("new", 0), ("new", 1), ("old", 3), ("old", 4)]


async def test_a_run_until_caught_up_goes_on_into_the_children(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(5, "0")
    stage.source.end("0", ["left", "right"])
    stage.source.end("left", ["leaf"])
    stage.fill(3, "right", "leaf")
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert sorted(seen) == sorted(
        [("0", n) for n in range(5)] + [(name, n) for name in ("right", "leaf") for n in range(3)]
    )


async def test_a_run_until_caught_up_goes_on_when_the_split_comes_in_between(stage: Stage) -> None:
    stage.source = FakeSource(1)
    seen = Seen()

    async def handler(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        if (partition.id, event.sequence) == ("0", 3):
            stage.source.end("0", ["left", "right"])
            stage.fill(3, "left", "right")
        await asyncio.sleep(1.0)

    stage.fill(5, "0")
    await stage.processor(handler, refresh_s=1_000.0, prefetch_events=1).serve(until="caught_up")
    assert seen.of("left") == seen.of("right") == [0, 1, 2]


class Leisurely(FakeSource):
    """Its readers tell late that their partition has ended, or it takes its time to list what is new."""

    def __init__(self, *, lists_late: bool) -> None:
        super().__init__(1)
        self._lists_late = lists_late

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        reader = await super().open(partition, after, epoch=epoch)
        return reader if self._lists_late else LeisurelyReader(reader)

    async def partitions(self) -> Sequence[Partition]:
        found = await super().partitions()
        if len(found) > 1 and self._lists_late:
            await asyncio.sleep(5.0)
        return found


class LeisurelyReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        if batch.events:
            return replace(batch, ended=None)
        if batch.ended is not None:
            await asyncio.sleep(5.0)
        return batch

    async def aclose(self) -> None:
        await self._reader.aclose()


async def test_a_run_until_caught_up_waits_for_the_end_where_children_are_known(stage: Stage) -> None:
    stage.source = Leisurely(lists_late=False)
    stage.fill(5, "0")
    stage.source.end("0", ["left", "right"])
    stage.fill(3, "left", "right")
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert seen.of("left") == seen.of("right") == [0, 1, 2]


async def test_a_run_until_caught_up_waits_until_the_children_are_known(stage: Stage) -> None:
    stage.source = Leisurely(lists_late=True)
    seen = Seen()

    async def handler(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        if (partition.id, event.sequence) == ("0", 3):
            stage.source.end("0", ["left", "right"])
            stage.fill(3, "left", "right")
        await asyncio.sleep(1.0)

    stage.fill(5, "0")
    await stage.processor(handler, refresh_s=1_000.0, prefetch_events=1).serve(until="caught_up")
    assert seen.of("left") == seen.of("right") == [0, 1, 2]


async def test_what_is_paused_does_not_end_and_its_children_wait(stage: Stage) -> None:
    stage.source = FakeSource(1)
    seen = Seen()
    async with served(stage.processor(seen)):
        await until(lambda: stage.store.asked["seal"])
        await stage.store.steer(GROUP, Steering(pause=("0",)), Action(kind="pause", by="anna", why="", what=""))
        await asyncio.sleep(5.0)
        stage.fill(2, "0")
        stage.source.end("0", ["left"])
        stage.fill(2, "left")
        await asyncio.sleep(60.0)
        assert seen == []
        await stage.store.steer(GROUP, Steering(resume=("0",)), Action(kind="resume", by="anna", why="", what=""))
        await until(lambda: len(seen) == 4)
    assert seen == [("0", 0), ("0", 1), ("left", 0), ("left", 1)]


async def test_somebody_who_knows_of_a_child_by_its_lease_alone_asks_the_source_first(stage: Stage) -> None:
    """It may follow somebody."""
    seen, gate = Seen(), asyncio.Event()
    stage.source = FakeSource(1)
    stage.fill(1, "0")

    async def handler(event: Event, partition: OwnedPartition) -> None:
        if partition.id == "0":
            await gate.wait()
        await seen(event, partition)

    early = stage.processor(handler, instance_id="early", refresh_s=10_000.0)
    async with early:
        pass
    old = asyncio.create_task(early.serve())
    await asyncio.sleep(1.0)
    stage.source.end("0", ["left"])
    stage.fill(1, "left")
    async with served(stage.processor(handler, instance_id="later")):
        await asyncio.sleep(60.0)
        assert seen == []
        gate.set()
        await until(lambda: seen == [("0", 0), ("left", 0)])
    early.stop()
    await old


async def test_hooks_hear_that_it_ended(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(1, "0")
    stage.source.end("0", ["left"])
    told: list[tuple[str, str]] = []
    processor, seen = stage.processor(), Seen()
    processor.on_event(seen)

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        told.append((partition.id, reason))

    stage.fill(1, "left")
    async with served(processor):
        await until(lambda: seen.of("left"))
    assert told == [("0", "ended"), ("left", "leaving")]


async def test_nobody_can_seek_in_what_has_ended(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.source.end("0", ["left"])
    processor = stage.processor(Seen())
    async with served(processor):
        await until(lambda: stage.told(Ended))
        with pytest.raises(LeaseLost, match=r"partition 0 has ended.*Seek in those"):
            await processor.seek("earliest", ["0"])


# --- manual checkpoints
async def test_a_manual_end_counts_when_all_of_it_is_marked(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(3, "0")
    stage.source.end("0", ["left"])
    stage.fill(1, "left")
    seen = Seen()
    processor = stage.processor(seen, checkpoint=Manual())

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        if reason == "ended":
            await partition.checkpoint()

    async with served(processor):
        await until(lambda: len(seen) == 4)
    assert seen == [("0", 0), ("0", 1), ("0", 2), ("left", 0)]
    assert (await stage.positions())["0"] == 2


async def test_an_end_that_nobody_marks_is_told_and_children_wait(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(3, "0")
    stage.source.end("0", ["left"])
    stage.fill(1, "left")
    seen = Seen()
    last: list[OwnedPartition] = []

    async def handler(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        last[:] = [partition]

    stops: list[str] = []
    processor = stage.processor(handler, checkpoint=Manual())

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        stops.append(reason)

    async with served(processor):
        await until(lambda: stage.told(EndUnmarked))
        await asyncio.sleep(60.0)
        assert len(seen) == 3
        assert "3 events were handled and not checkpointed" in str(stage.told(EndUnmarked)[0])
        await last[0].checkpoint()  # from somewhere else
        await until(lambda: len(seen) == 4)
    assert stops == ["ended", "leaving"]
    assert len(stage.told(EndUnmarked)) == 1


async def test_an_end_that_nobody_marks_is_repeated_by_the_next_run_and_said_by_this_one(stage: Stage) -> None:
    stage.source = FakeSource(1)
    stage.fill(3, "0")
    stage.source.end("0", ["left"])
    for _ in range(2):
        seen = Seen()
        with pytest.raises(PartitionHalted, match="at its end, which the application has not checkpointed"):
            await stage.processor(seen, checkpoint=Manual()).serve(until="caught_up")
        assert seen == [("0", 0), ("0", 1), ("0", 2)]


# --- the parent is gone at once
def a_feed(stage: Stage, partitions: int = 1) -> FakeFeed:
    stage.source = feed = FakeFeed(partitions, takes=halves)
    return feed


def number(feed: FakeFeed, start: int, stop: int, *partitions: str) -> None:
    for one in range(start, stop):
        feed.append(partitions[one % len(partitions)], b"%d" % one)


async def test_children_go_on_from_the_checkpoint_of_a_parent_that_is_gone(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()
    number(feed, 0, 6, "0")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 6)
    number(feed, 6, 10, "0")
    feed.end("0", ["0left", "0right"])
    number(feed, 10, 12, "0left", "0right")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 12)
    assert seen.of("0") == list(range(6))
    assert seen.of("0left") == [6, 8, 10]
    assert seen.of("0right") == [7, 9, 11]
    assert (await stage.leases())["0"].ended


async def test_what_was_read_of_it_is_handled_before_its_children_begin(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()

    async def slowly(event: Event, partition: OwnedPartition) -> None:
        await asyncio.sleep(1.0)
        await seen(event, partition)

    number(feed, 0, 6, "0")
    async with served(stage.processor(slowly, instance_id="a"), stage.processor(slowly, instance_id="b")):
        await until(lambda: seen)
        feed.end("0", ["0left", "0right"])
        number(feed, 6, 10, "0left", "0right")
        await until(lambda: len(seen) == 10)
    assert [body for _, body in seen[:6]] == list(range(6))
    assert sorted(body for _, body in seen) == list(range(10))


async def test_with_manual_checkpoints_children_repeat_what_was_not_marked(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()

    async def handler(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        if event.body == b"3":
            await partition.checkpoint()

    number(feed, 0, 8, "0")
    async with served(stage.processor(handler, checkpoint=Manual())):
        await until(lambda: len(seen) == 8)
        feed.end("0", ["0left", "0right"])
        await until(lambda: len(seen) == 12)
        await asyncio.sleep(10.0)
    assert seen.of("0left") == [4, 6]
    assert seen.of("0right") == [5, 7]


async def test_a_merge_of_what_is_gone_leaves_out_what_each_parent_had_handled(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()
    number(feed, 0, 4, "0")
    feed.end("0", ["0left", "0right"])
    number(feed, 4, 8, "0left", "0right")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 8)
    number(feed, 8, 12, "0left", "0right")
    feed.merge(["0left", "0right"], "merged")
    number(feed, 12, 14, "merged")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 14)
    assert sorted(body for _, body in seen) == list(range(14))
    assert sorted(seen.of("merged")) == list(range(8, 14))


async def test_a_generation_that_nobody_ever_saw_is_passed_through(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()
    number(feed, 0, 4, "0")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 4)
    number(feed, 4, 6, "0")
    feed.end("0", ["0left", "0right"])
    feed.end("0left", ["leaf"])
    number(feed, 6, 8, "leaf", "0right")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 8)
        await asyncio.sleep(10.0)
    assert sorted(body for _, body in seen) == list(range(8))


async def test_a_late_commit_of_the_parent_is_refused_once_a_child_has_begun(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()
    number(feed, 0, 4, "0")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 4)
        feed.end("0", ["0left", "0right"])
        await until(lambda: stage.told(Ended))
        await asyncio.sleep(10.0)
    record, lease = (await stage.records())["0"], (await stage.leases())["0"]
    assert record.epoch == lease.epoch
    late: Any = record.__class__(partition="0", epoch=lease.epoch - 1, position=Position("3", 3), ordinal=99)
    (outcome,) = await stage.store.commit(GROUP, [late])
    assert not outcome.ok


async def test_children_begin_also_where_the_store_has_lost_the_checkpoint_of_what_ended(stage: Stage) -> None:
    """Nobody remembers it: they begin at the beginning, and what their parent had handled comes again."""
    feed, seen = a_feed(stage), Bodies()
    number(feed, 0, 4, "0")
    async with served(stage.processor(seen)):
        await until(lambda: len(seen) == 4)
        feed.end("0", ["0left", "0right"])
        await until(lambda: stage.told(Ended))
    stage.store.restore(stage.store.snapshot())
    del stage.store._records[GROUP]["0"]
    for child in ("0left", "0right"):
        stage.store._records[GROUP].pop(child, None)
    again = Bodies()
    async with served(stage.processor(again, longest_ttl_s=10.0)):
        await until(lambda: len(again) == 4)
    assert sorted(body for _, body in again) == [0, 1, 2, 3]


# --- dead letters
async def test_dead_letters_of_what_has_ended_are_redriven_by_the_owner_of_a_child(stage: Stage) -> None:
    stage.source = FakeSource(1)
    dead_letters, seen, poison = MemoryDeadLetters(), Bodies(), {1, 3, 11}

    async def handler(event: Event, partition: OwnedPartition) -> None:
        if int(event.body) in poison:
            raise ValueError("poison")
        await seen(event, partition)

    def state_of(partition: str) -> dict[int, str]:
        return {int(one.dead_letter.event.body): one.state for one in fold(dead_letters.records(GROUP, partition))}

    for one in range(5):
        stage.source.append("0", b"%d" % one, key=f"home-{one % 2}")
    stage.source.end("0", ["left", "right"])
    stage.source.append("left", b"11", key="home-1")
    options: dict[str, Any] = {"dead_letter": dead_letters, "retry": Retry(attempts=1), "breaker": None}
    async with served(*(stage.processor(handler, instance_id=name, **options) for name in ("a", "b"))):
        await until(lambda: len(dead_letters.records(GROUP)) == 3)
        poison -= {1, 11}
        for filed in fold(dead_letters.records(GROUP)):
            await dead_letters.file(GROUP, filed.dead_letter.partition, [filed.asked(by="ada", why="mended", at=0.0)])
        await stage.store.steer(
            GROUP, Steering(redrive=("0", "left")), Action(kind="redrive", by="ada", why="mended", what="all")
        )
        await until(lambda: "again" not in {*state_of("0").values(), *state_of("left").values()})
        await asyncio.sleep(30.0)
    assert state_of("0") == {1: "redriven", 3: "dead"}
    assert state_of("left") == {11: "redriven"}
    assert seen.of("left") == [1, 11]
    assert seen.of("0", "right") == [0, 2, 4]


async def test_whoever_comes_and_finds_a_lease_that_the_source_does_not_list_asks_at_once(stage: Stage) -> None:
    feed, seen = a_feed(stage), Bodies()
    number(feed, 0, 4, "0")
    async with served(stage.processor(Bodies())):
        await until(lambda: stage.store.asked["commit"])
    feed.end("0", ["0left", "0right"])
    number(feed, 4, 6, "0left", "0right")
    began_s = stage.now_s
    async with served(stage.processor(seen, refresh_s=1_000.0)):
        await until(lambda: len(seen) == 2)
    assert stage.now_s - began_s < 10.0
