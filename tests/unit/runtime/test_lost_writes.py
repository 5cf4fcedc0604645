"""What becomes of partitions when the store has lost writes, was unreachable for long, or the group was deleted."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, Processor
from evenflow.model import Member, epoch_parts
from evenflow.signals import HistoryLost, Left, PartitionStarted, PartitionStopped, PositionLost
from tests.unit.runtime.stage import EVERYTHING, GROUP, Seen, Stage, at, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition
    from evenflow.model import Checkpoint, Group, Outcome
    from evenflow.testing.simulated.timeline import ProcessLoop

HEARTBEAT_S, TTL_S = 2.0, 8.0
SELDOM = Every(seconds=10_000.0)
SOON = Every(events=1)


def serve(stage: Stage, handler: Any, name: str, **options: Any) -> tuple[ProcessLoop, Processor]:
    """An instance in a process of its own."""
    process = stage.new_process()
    processor = stage.processor(handler, loop=process, instance_id=name, **options)
    process.start(processor.serve())
    return process, processor


async def two(stage: Stage, seen: Seen, **options: Any) -> list[tuple[ProcessLoop, Processor]]:
    """Two instances with one partition each, both of which have handled something."""
    both = [serve(stage, seen, name, **options) for name in ("a", "b")]
    await until(lambda: all(len(processor.owned) == 1 for _, processor in both))
    stage.fill(5)
    await until(lambda: len(seen) == 10)
    await asyncio.sleep(HEARTBEAT_S + 1.0)
    return both


# --- an emptied store
@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_each_owner_has_its_partition_back_at_once_in_an_emptied_store(stage: Stage, start: str) -> None:
    seen = Seen()
    both = await two(stage, seen, start=start, checkpoint=SELDOM)
    before = [set(processor.owned) for _, processor in both]
    stage.store.empty()
    emptied_s = stage.now_s
    stage.fill(5)
    await until(lambda: len(stage.told(HistoryLost)) == 2)
    await until(lambda: all(len(processor.owned) == 1 for _, processor in both))
    assert stage.now_s - emptied_s < HEARTBEAT_S + 1.0, "others would wait for longest_ttl_s"
    assert [set(processor.owned) for _, processor in both] == before
    assert all(epoch_parts(epoch)[0] == 1 for _, processor in both for epoch in processor.owned.values())
    stage.fill(5)
    await until(lambda: len(seen) == 30)
    for partition in "01":
        assert seen.of(partition) == list(range(15)), "nothing is lost, and nothing comes twice"


async def test_a_checkpoint_that_is_refused_tells_of_lost_writes_too(stage: Stage) -> None:
    """It comes before the heartbeat, and the owner has stopped already when the heartbeat says why it was refused."""
    seen = Seen()
    async with stage.processor(seen, start="latest", checkpoint=SOON) as processor:
        await until(lambda: len(processor.owned) == 2)
        stage.fill(5)
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(0.5)
        stage.store.empty()
        stage.fill(5)
        emptied_s = stage.now_s
        await until(lambda: {one.reason for one in stage.told(PartitionStopped)} == {"lost"})
        await until(lambda: len(processor.owned) == 2)
        assert stage.now_s - emptied_s < 1.0
        await until(lambda: len(seen) == 20)
    assert seen.of("0") == seen.of("1") == list(range(10))


async def test_whoever_has_a_partition_back_waits_for_its_last_call(stage: Stage) -> None:
    began: list[float] = []

    async def slow(event: Event, partition: OwnedPartition) -> None:
        began.append(stage.now_s)
        await asyncio.sleep(5.0)

    stage.fill(3, "0")
    async with stage.processor(slow, checkpoint=SOON) as processor:
        await until(lambda: began)
        stage.store.empty()
        await until(lambda: len(began) == 3)
        assert [round(two - one, 1) for one, two in pairwise(began)] == [5.0, 5.0]
        await asyncio.sleep(6.0)
        assert len(processor.owned) == 2
    assert len(began) == 3, "the call that ran when the store was emptied counts"


async def test_nobody_else_has_what_an_instance_that_died_had_before_the_longest_time_to_live(stage: Stage) -> None:
    seen = Seen()
    (first, _), (_, other) = await two(stage, seen, longest_ttl_s=20.0, checkpoint=SOON)
    first.dead = True
    stage.store.empty()
    emptied_s = stage.now_s
    await until(lambda: len(other.owned) == 1 and epoch_parts(max(other.owned.values()))[0] == 1)
    await until(lambda: len(other.owned) == 2)
    assert 20.0 <= stage.now_s - emptied_s <= 20.0 + 2 * HEARTBEAT_S


async def test_what_an_instance_only_remembers_is_in_the_store_again_before_anybody_claims_it(stage: Stage) -> None:
    """It had the partition before it passed it on, and the new owner is dead."""
    seen = Seen()
    async with stage.processor(seen, instance_id="a", start="latest", checkpoint=SOON) as one:
        await until(lambda: len(one.owned) == 2)
        stage.fill(5)
        await until(lambda: len(seen) == 10)
        other, processor = serve(stage, Seen(), "b", start="latest", checkpoint=SOON)
        await until(lambda: len(processor.owned) == 1)
        (moved,) = processor.owned
        await asyncio.sleep(HEARTBEAT_S)
        other.dead = True
        stage.fill(5, moved)
        stage.store.empty()
        emptied_s = stage.now_s
        await until(lambda: stage.told(HistoryLost))
        await asyncio.sleep(0.1)
        assert (await stage.records())[moved].position == at(4)
        await until(lambda: len(one.owned) == 2)
        assert stage.now_s - emptied_s > 50.0
        await until(lambda: seen.of(moved) == list(range(10)))


async def test_what_is_remembered_goes_before_what_a_newcomer_took_for_the_start(stage: Stage) -> None:
    """Nobody has told the store that it has lost writes when the newcomer claims: it begins at the end of the log."""
    seen, others = Seen(), Seen()
    first, old = serve(stage, seen, "a", start="latest", checkpoint=SELDOM)
    await until(lambda: len(old.owned) == 2)
    stage.fill(1)
    await until(lambda: len(seen) == 2)
    await asyncio.sleep(0.5)
    first.stall()
    stage.store.empty()
    stage.fill(50)
    _, new = serve(stage, others, "b", start="latest", checkpoint=SOON)
    await until(lambda: len(new.owned) == 2)
    stage.fill(20)
    await until(lambda: len(others) == 40)
    first.resume()
    await until(lambda: len({*seen, *others}) == 2 * 71, within_s=100.0)
    for partition in "01":
        assert {*seen.of(partition), *others.of(partition)} == set(range(71))


async def test_whoever_had_no_heartbeat_answered_since_it_began_restores_what_it_remembers_too(stage: Stage) -> None:
    """It cannot tell whether it sealed the partitions before the store was emptied; but nobody had them before it."""
    seen, others = Seen(), Seen()
    stage.store.away = {"seal"}
    first, _ = serve(stage, seen, "a", start="latest", checkpoint=SELDOM)
    await until(lambda: stage.store.asked["seal"] >= 2)
    stage.store.away = {"heartbeat"}
    await until(lambda: len(stage.told(PartitionStarted)) == 2)
    stage.fill(3)
    await until(lambda: len(seen) == 6)
    first.stall()
    stage.store.empty()
    stage.store.away = set()
    stage.fill(50)
    _, new = serve(stage, others, "b", start="latest", checkpoint=SOON)
    await until(lambda: len(new.owned) == 2)
    await asyncio.sleep(0.5)
    stage.fill(20)
    await until(lambda: len(others) == 40)
    first.resume()
    await until(lambda: len({*seen, *others}) == 2 * 73, within_s=100.0)
    for partition in "01":
        assert {*seen.of(partition), *others.of(partition)} == set(range(73))


async def test_a_newcomer_that_was_first_takes_nothing_back_at_once(stage: Stage) -> None:
    """Those who were there before the store was emptied go first."""
    first, old = serve(stage, Seen(), "a")
    await until(lambda: len(old.owned) == 2)
    await asyncio.sleep(0.5)
    stage.store.empty()
    _, new = serve(stage, Seen(), "b")
    await until(lambda: len(new.owned) == 2)
    first.dead = True
    # Another one of those who were there before, which has nothing, says so.
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    old_cursor = type(ledger.cursor)("another", 0, 5)
    await stage.store.heartbeat(GROUP, Member(id="c", nonce="c", incarnation=7, ttl_s=TTL_S), old_cursor)
    noticed_s = stage.now_s
    await until(lambda: new.owned == {})
    await until(lambda: len(new.owned) == 2)
    assert stage.now_s - noticed_s >= 60.0


@pytest.mark.parametrize("call_s", [20.0, 9.0], ids=["while the call runs", "while it commits for the last time"])
async def test_a_fenced_owner_whose_store_is_emptied_restores_no_less_than_it_commits(
    stage: Stage, call_s: float
) -> None:
    """Its last commit may take effect in front of what it restores, which would then take it back."""
    sent: list[tuple[int, int]] = []
    commit, may_answer = stage.store.commit, asyncio.Event()

    async def watched(group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        sent.extend((epoch_parts(one.epoch)[0], one.ordinal) for one in checkpoints if one.partition == "0")
        if checkpoints[0].epoch == 1 and checkpoints[0].ordinal == 2:
            await may_answer.wait()
        return await commit(group, checkpoints)

    async def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 1:
            await asyncio.sleep(call_s)

    stage.store.commit = watched  # type: ignore[method-assign]
    async with stage.processor(handle, start="latest", checkpoint=SOON) as processor:
        await until(lambda: len(processor.owned) == 2)
        await asyncio.sleep(HEARTBEAT_S + 1.0)
        stage.fill(2, "0")
        await until(lambda: sent == [(0, 1)])
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(TTL_S + 4.0)
        stage.store.empty()
        stage.store.away = set()
        await until(lambda: stage.told(HistoryLost))
        may_answer.set()
        await until(lambda: (1, 2) in sent)
    assert sent == ([(0, 1), (1, 1), (1, 2)] if call_s == 20.0 else [(0, 1), (0, 2), (1, 2)])


async def test_whoever_leaves_has_written_what_it_remembers_before(stage: Stage) -> None:
    """It may not claim anything any more; whoever does, later, goes on from there."""
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=SELDOM) as processor:
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(0.5)
        stage.store.empty()
        stage.store.away = {"commit"}
        processor.stop()
        await asyncio.sleep(10.0)
        stage.store.away = set()
    assert await stage.positions() == {"0": 4, "1": 4}


async def test_whoever_still_has_to_write_what_it_remembers_stays_a_member(stage: Stage) -> None:
    """Operators see what it waits for."""
    seen = Seen()
    stage.fill(5)
    _, processor = serve(stage, seen, "a", checkpoint=SELDOM)
    await until(lambda: len(seen) == 10)
    await asyncio.sleep(0.5)
    stage.store.away = {"commit"}
    stage.store.empty()
    await until(lambda: stage.told(HistoryLost))
    await asyncio.sleep(1.0)
    processor.stop()
    await asyncio.sleep(10.0)
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    assert [member.retiring for member in ledger.members] == [True]
    stage.store.away = set()
    await until(lambda: stage.told(Left))
    assert await stage.positions() == {"0": 4, "1": 4}


# --- lost writes
async def test_after_a_failover_every_owner_goes_on_from_what_it_remembers(stage: Stage) -> None:
    seen = Seen()
    both = await two(stage, seen, checkpoint=SOON)
    snapshot = stage.store.snapshot()
    await asyncio.sleep(0.1)
    stage.fill(5)
    await until(lambda: len(seen) == 20)
    await asyncio.sleep(0.1)
    stage.store.restore(snapshot, noticed=False)
    lost_s = stage.now_s
    stage.fill(5)
    await until(lambda: len(seen) == 30)
    assert stage.now_s - lost_s <= 2 * HEARTBEAT_S
    assert seen.of("0") == seen.of("1") == list(range(15))
    assert all(len(processor.owned) == 1 for _, processor in both)


async def test_a_new_group_has_nothing_to_wait_for_in_a_store_that_has_lost_writes_before(stage: Stage) -> None:
    stage.store.restore(stage.store.snapshot())
    stage.fill(1)
    seen = Seen()
    async with stage.processor(seen, start="earliest") as processor:
        await until(lambda: len(seen) == 2)
        assert stage.now_s < 1.0
        assert {epoch_parts(epoch) for epoch in processor.owned.values()} == {(1, 1)}


# --- the store is unreachable
@pytest.mark.parametrize("call_s", [0.0, 6.0])
async def test_an_owner_that_stopped_goes_on_where_it_was(stage: Stage, call_s: float) -> None:
    """Nobody else has had the partition: what was handled while the store was unreachable is not handled again."""
    seen = Seen()

    async def handle(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        if event.sequence == 4:
            await asyncio.sleep(call_s)

    async with stage.processor(handle, checkpoint=SOON) as processor:
        stage.fill(4)
        await until(lambda: len(seen) == 8)
        await asyncio.sleep(1.0)
        stage.store.away = set(EVERYTHING)
        await asyncio.sleep(4.0)
        stage.fill(3)
        await asyncio.sleep(2 * TTL_S)
        assert processor.owned == {}
        stage.store.away = set()
        stage.fill(1)
        await until(lambda: seen.of("0")[-1:] == seen.of("1")[-1:] == [7])
    assert seen.of("0") == seen.of("1") == list(range(8))


async def test_what_another_owner_has_gone_beyond_counts_for_nothing(stage: Stage) -> None:
    """The store tells: it was sealed in between."""
    first, other = Seen(), Seen()
    stage.fill(5)
    process, one = serve(stage, first, "a", checkpoint=SELDOM)
    await until(lambda: len(first) == 10)
    process.stall()
    _, two = serve(stage, other, "b", checkpoint=SOON)
    await until(lambda: len(two.owned) == 2)
    await until(lambda: len(other) == 10)
    stage.fill(5)
    await until(lambda: len(other) == 20)
    process.resume()
    await until(lambda: len(one.owned) == len(two.owned) == 1)
    stage.fill(1)
    await until(lambda: {*first, *other} >= {("0", 10), ("1", 10)})
    assert sorted(first[10:] + other[20:]) == [("0", 10), ("1", 10)], "nothing of before comes again"


# --- a deleted group
async def test_a_group_that_is_deleted_while_it_runs_begins_anew(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=SOON) as processor:
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(0.5)
        await stage.store.delete(GROUP)
        await until(lambda: len(seen) == 20)
        assert min(processor.owned.values()) > 1, "no epoch is given twice"
    assert seen.of("0") == [*range(5), *range(5)]


async def test_an_owner_that_has_nothing_to_write_learns_from_its_heartbeat_that_the_group_was_deleted(
    stage: Stage,
) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 2)
        await asyncio.sleep(0.5)
        await stage.store.delete(GROUP)
        deleted_s = stage.now_s
        await until(lambda: len(processor.owned) == 2 and min(processor.owned.values()) > 1)
        assert stage.now_s - deleted_s < HEARTBEAT_S + 1.0


async def test_what_is_remembered_of_a_deleted_group_is_forgotten(stage: Stage) -> None:
    """The owner was stopped meanwhile; the group that was made again has another owner, which dies."""
    first, other = Seen(), Stuck(3)
    stage.fill(5)
    process, one = serve(stage, first, "a", checkpoint=SELDOM)
    await until(lambda: len(first) == 10)
    process.stall()
    await stage.store.delete(GROUP)
    second, two = serve(stage, other, "b", checkpoint=SOON)
    await until(lambda: len(other) == 6)
    await asyncio.sleep(0.5)
    second.dead = True
    process.resume()
    await until(lambda: len(one.owned) == 2 and min(one.owned.values()) > max(two.owned.values()))
    await until(lambda: len(first) == 14)
    assert first.of("0") == first.of("1") == [*range(5), 3, 4], "from where the new group is"


class Stuck(Seen):
    """Never done with what comes after so many events."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    async def __call__(self, event: Event, partition: OwnedPartition) -> None:
        if event.sequence == self.most:
            await asyncio.sleep(1e9)
        await super().__call__(event, partition)


# --- nobody remembers where it was
async def lost_position(stage: Stage, seen: Seen, **options: Any) -> Processor:
    """The owner of partition 0 dies with all that it knows, and another instance, which knows the store, goes on."""
    first, one = serve(stage, Seen(), "a", start="latest", longest_ttl_s=20.0, checkpoint=SOON)
    await until(lambda: len(one.owned) == 2)
    _, two = serve(stage, seen, "b", start="latest", longest_ttl_s=20.0, checkpoint=SOON, **options)
    await until(lambda: len(two.owned) == 1)
    stage.fill(5)
    await asyncio.sleep(HEARTBEAT_S)
    first.dead = True
    stage.store.empty()
    stage.fill(5)
    return two


async def test_the_end_of_the_log_is_no_start_where_a_checkpoint_was_lost(stage: Stage) -> None:
    seen = Seen()
    two = await lost_position(stage, seen)
    (mine,) = two.owned
    (other,) = {"0", "1"} - {mine}
    await until(lambda: len(seen) == 20)
    assert seen.of(mine) == seen.of(other) == list(range(10))
    assert [(one.partition, one.to, one.halted) for one in stage.told(PositionLost)] == [(other, at(-1), False)]
    await asyncio.sleep(HEARTBEAT_S)
    assert (await stage.records())[other].notes == {}


async def test_whoever_has_to_ask_stands_still_until_somebody_seeks(stage: Stage) -> None:
    seen = Seen()
    two = await lost_position(stage, seen, on_lost="stop")
    (mine,) = two.owned
    (other,) = {"0", "1"} - {mine}
    await until(lambda: stage.told(PositionLost))
    await until(lambda: len(seen) == 10)
    assert seen.of(other) == []
    assert [(one.partition, one.halted) for one in stage.told(PositionLost)] == [(other, True)]

    _, three = serve(stage, seen, "c", start="latest", longest_ttl_s=20.0, checkpoint=SOON, on_lost="stop")
    await until(lambda: len(three.owned) == 1)
    two.stop()
    await until(lambda: len(three.owned) == 2)
    await until(lambda: len(stage.told(PositionLost)) >= 2)
    assert seen.of(other) == [], "the next owner stands still, too"
    stage.loop.create_task(three.seek(at(6), [other]))
    await until(lambda: seen.of(other) == [7, 8, 9])
    assert (await stage.records())[other].notes == {}


async def test_a_record_that_is_there_is_not_lost(stage: Stage) -> None:
    """Only its lease is."""
    seen = Seen()
    async with stage.processor(seen, start="latest", checkpoint=SOON) as processor:
        await until(lambda: len(processor.owned) == 2)
    records = await stage.records()
    stage.store.restore(stage.store.snapshot())
    stage.fill(1)
    async with stage.processor(seen, start="latest", checkpoint=SOON, longest_ttl_s=10.0):
        await until(lambda: len(seen) == 2)
    assert records["0"].position == at(-1)
    assert stage.told(PositionLost) == []


async def test_where_nobody_has_a_partition_its_start_is_written_down_for_the_group_that_was_made_again_too(
    stage: Stage,
) -> None:
    async with stage.processor(Seen(), start="latest", max_partitions=1, checkpoint=SOON) as processor:
        await until(lambda: len(processor.owned) == 1)
        (mine,) = processor.owned
        (other,) = {"0", "1"} - {mine}
        await asyncio.sleep(0.5)
        assert (await stage.positions())[other] == -1
        stage.fill(3)
        await stage.store.delete(GROUP)
        await asyncio.sleep(2 * HEARTBEAT_S)
        assert (await stage.positions())[other] == 2
