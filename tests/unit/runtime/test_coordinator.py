"""What becomes of partitions when instances come, go, die and stall, and when the store is away or forgets."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, StoreUnavailable
from evenflow.model import epoch_parts
from evenflow.signals import Fenced, HistoryLost, PartitionStarted, PartitionStopped, Swapped, Trouble
from tests.unit.runtime.stage import EVERYTHING, GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition, Processor
    from evenflow.model import Change, Cursor, Group, Ledger, Member, Outcome
    from evenflow.testing.simulated.timeline import ProcessLoop

HEARTBEAT_S, TTL_S, PATIENCE_S = 2.0, 8.0, 7.0
SELDOM = Every(seconds=10_000.0)


class Log:
    """A handler that keeps when which call began, and may take its time."""

    def __init__(self, stage: Stage, call_s: float = 0.0) -> None:
        self.stage, self.call_s = stage, call_s
        self.begun: list[tuple[float, str, int]] = []
        self.running: set[str] = set()

    async def __call__(self, event: Event, partition: OwnedPartition) -> None:
        assert partition.id not in self.running
        self.running.add(partition.id)
        self.begun.append((self.stage.now_s, partition.id, event.sequence or 0))
        try:
            if self.call_s:
                await asyncio.sleep(self.call_s)
        finally:
            self.running.discard(partition.id)

    @property
    def sequences(self) -> list[tuple[str, int]]:
        return [(partition, sequence) for _, partition, sequence in self.begun]


def serve(stage: Stage, handler: Any, **options: Any) -> tuple[ProcessLoop, Processor]:
    """An instance in a process of its own."""
    process = stage.new_process()
    processor = stage.processor(handler, loop=process, **options)
    process.start(processor.serve())
    return process, processor


def reasons(stage: Stage) -> list[str]:
    return [one.reason for one in stage.told(Swapped) if one.ok]


# --- sharing
async def test_the_first_one_has_all_at_once(stage: Stage) -> None:
    stage.source.grow(6)
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 8)
        assert stage.now_s < 0.1
        assert set(processor.owned.values()) == {1}


async def test_a_newcomer_has_its_share_within_two_rounds(stage: Stage) -> None:
    stage.source.grow(6)
    async with stage.processor(Seen(), instance_id="a") as one:
        await until(lambda: len(one.owned) == 8)
        async with stage.processor(Seen(), instance_id="b") as other:
            came_s = stage.now_s
            await until(lambda: len(other.owned) == 4)
            assert stage.now_s - came_s <= 2 * HEARTBEAT_S + 0.1
            await asyncio.sleep(60.0)
            assert len(one.owned) == len(other.owned) == 4
            assert reasons(stage)[8:] == ["handed over: a had 8, its share is 4"] * 4, "and then nothing moves any more"


async def test_the_new_owner_is_woken_and_does_not_wait_for_its_next_heartbeat(stage: Stage) -> None:
    stage.source.grow(6)
    async with stage.processor(Seen(), instance_id="a") as one:
        await until(lambda: len(one.owned) == 8)
        async with stage.processor(Seen(), instance_id="b"):
            await until(lambda: len(stage.told(Swapped)) == 12)
            passed_s = stage.now_s
            await until(lambda: len(stage.told(PartitionStarted)) == 12)
            assert stage.now_s - passed_s < 0.1


async def test_a_planned_move_repeats_nothing(stage: Stage) -> None:
    stage.source.grow(6)
    first, second = Log(stage, 0.01), Log(stage, 0.01)
    stage.fill(1000)
    async with stage.processor(first, instance_id="a", checkpoint=SELDOM) as one:
        await until(lambda: len(one.owned) == 8)
        async with stage.processor(second, instance_id="b", checkpoint=SELDOM) as other:
            await until(lambda: len(other.owned) == 4)
            await until(lambda: len(first.begun) + len(second.begun) == 8000)
    assert len(second.begun) > 1000
    assert len({*first.sequences, *second.sequences}) == 8000


async def test_who_leaves_passes_on_and_nothing_stands_still(stage: Stage) -> None:
    stage.source.grow(6)
    first = stage.processor(Seen(), instance_id="a")
    serving = asyncio.create_task(first.serve())
    await until(lambda: len(first.owned) == 8)
    async with stage.processor(Seen(), instance_id="b") as other:
        await until(lambda: len(other.owned) == 4)
        await asyncio.sleep(5 * HEARTBEAT_S)
        first.stop()
        left_s = stage.now_s
        await until(lambda: len(other.owned) == 8)
        assert stage.now_s - left_s < 0.5
        await serving
        assert reasons(stage)[-4:] == ["handed over: a leaves"] * 4


async def test_what_it_passes_on_is_seen_no_sooner_than_that_it_leaves(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that is on its way when it is stopped does not say so; others would pass partitions back to it."""
    heartbeat, swap, retiring = stage.store.heartbeat, stage.store.swap, list[bool]()

    async def slow(group: Group, member: Member, since: Cursor | None) -> Ledger:
        await asyncio.sleep(0.3)
        return await heartbeat(group, member, since)

    async def watched(group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        if any(change.reason.endswith("a leaves") for change in changes):
            ledger = await stage.store.peek(GROUP)
            retiring.extend(row.retiring for row in (ledger.members if ledger is not None else ()) if row.id == "a")
        return await swap(group, changes)

    first = stage.processor(Seen(), instance_id="a")
    serving = asyncio.create_task(first.serve())
    await until(lambda: len(first.owned) == 2)
    async with stage.processor(Seen(), instance_id="b") as other:
        await until(lambda: len(other.owned) == 1)
        monkeypatch.setattr(stage.store, "heartbeat", slow)
        monkeypatch.setattr(stage.store, "swap", watched)
        asked = stage.store.asked["heartbeat"]
        await until(lambda: stage.store.asked["heartbeat"] > asked)
        coordinator = first._engine.coordinator  # type: ignore[union-attr]
        await until(lambda: coordinator._unanswered)
        first.stop()
        await serving
    assert retiring
    assert all(retiring)


async def test_who_is_alone_and_leaves_releases(stage: Stage) -> None:
    await stage.processor(Seen(), instance_id="a").serve(until="caught_up")
    assert reasons(stage)[-2:] == ["released: a has caught up"] * 2
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}


async def test_nobody_takes_more_than_it_may(stage: Stage) -> None:
    stage.source.grow(6)
    async with stage.processor(Seen(), instance_id="a", max_partitions=3) as one:
        await until(lambda: len(one.owned) == 3)
        await asyncio.sleep(30.0)
        assert len(one.owned) == 3
        async with stage.processor(Seen(), instance_id="b") as other:
            await until(lambda: len(other.owned) == 5)
            assert len(one.owned) == 3


async def test_shares_follow_weights(stage: Stage) -> None:
    stage.source.grow(7)
    async with (
        stage.processor(Seen(), instance_id="a", weight=2.0) as one,
        stage.processor(Seen(), instance_id="b") as other,
    ):
        await until(lambda: (len(one.owned), len(other.owned)) == (6, 3))


async def test_a_plan_that_changes_while_a_partition_drains_lets_it_be_kept(stage: Stage) -> None:
    """The newcomer dies before the long call has returned: the owner goes on, under a new epoch."""
    log = Log(stage, 30.0)
    stage.fill(1)
    async with stage.processor(log, instance_id="a") as one:
        await until(lambda: len(log.begun) == 2)
        process, _ = serve(stage, Seen(), instance_id="b")
        hold = one._engine.coordinator.holds  # type: ignore[union-attr]
        await until(lambda: any(held.stopping for held in hold.values()))
        process.dead = True
        await until(lambda: not log.running)
        await until(lambda: sorted(one.owned.values()) == [1, 2])
        (stopped,) = stage.told(PartitionStopped)
        assert (stopped.reason, stopped.handled) == ("kept", 1)
        assert not any(reason.startswith("handed over") for reason in reasons(stage))
        assert reasons(stage)[-1].startswith("taken again")
        stage.fill(1)
        await until(lambda: len(log.begun) == 4)
    assert log.sequences.count(("0", 0)) == log.sequences.count(("1", 0)) == 1


# --- the dead
async def test_what_a_dead_instance_had_goes_on_within_a_heartbeat_and_its_time_to_live(stage: Stage) -> None:
    seen = Seen()
    process, _ = serve(stage, seen, instance_id="a")
    stage.fill(10)
    await until(lambda: len(seen) == 20)
    async with stage.processor(Seen(), instance_id="b", checkpoint=Every(events=1)) as other:
        await until(lambda: len(other.owned) == 1)
        process.dead = True
        died_s = stage.now_s
        await until(lambda: len(other.owned) == 2)
        assert TTL_S - HEARTBEAT_S <= stage.now_s - died_s <= TTL_S + HEARTBEAT_S
        (takeover,) = [reason for reason in reasons(stage) if reason.startswith("taken over")]
        assert takeover.startswith("taken over: no heartbeat of a for 8.")
        assert sorted(other.owned.values()) == [2, 2]


async def test_a_takeover_goes_on_after_the_last_checkpoint(stage: Stage) -> None:
    first, second = Seen(), Seen()
    process, _ = serve(stage, first, checkpoint=Every(events=4))
    stage.fill(10, "0")
    await until(lambda: len(first) == 10)
    process.dead = True
    await stage.processor(second).serve(until="caught_up")
    assert second.of("0") == [8, 9]
    assert (await stage.records())["0"].ordinal == 10


async def test_a_stalled_instance_begins_no_call_when_it_wakes_up_too_late(stage: Stage) -> None:
    first, second = Log(stage, 0.1), Log(stage)
    process, _ = serve(stage, first, instance_id="a", checkpoint=Every(events=1))
    stage.fill(1000, "0")
    await until(lambda: len(first.begun) > 10)
    process.stall()
    stalled_s = stage.now_s
    async with stage.processor(second, instance_id="b"):
        await until(lambda: len(second.begun) > 10)
        assert stage.now_s - stalled_s >= TTL_S - HEARTBEAT_S
        begun = len(first.begun)
        process.resume()
        await asyncio.sleep(0.5)
        late = [one for one in first.begun[begun:] if one[1] == "0"]
        assert late == []
    assert [(fenced.partition, fenced.epoch) for fenced in stage.told(Fenced) if fenced.partition == "0"] == [("0", 1)]


# --- the store is away
async def test_no_call_begins_once_the_store_has_been_silent_for_too_long(stage: Stage) -> None:
    log = Log(stage, 0.05)
    stage.fill(10_000, "0")
    async with stage.processor(log) as processor:
        await until(lambda: len(log.begun) > 100)
        sent_s = processor._engine.coordinator._heartbeat_sent_s  # type: ignore[union-attr]
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(20.0)
        last_s = log.begun[-1][0]
        assert sent_s + PATIENCE_S - 0.1 <= last_s < sent_s + PATIENCE_S
        assert processor.owned == {}
        stage.store.away = set()
        begun = len(log.begun)
        await until(lambda: len(log.begun) > begun)
        assert set(processor.owned.values()) == {2}
        assert log.sequences[begun][1] == log.sequences[begun - 1][1] + 1, "and what was handled is not repeated"


async def test_a_short_outage_is_nothing(stage: Stage) -> None:
    log = Log(stage, 0.05)
    stage.fill(10_000, "0")
    async with stage.processor(log) as processor:
        await until(lambda: len(log.begun) > 100)
        stage.store.away = set(EVERYTHING)
        await asyncio.sleep(4.0)
        stage.store.away = set()
        await asyncio.sleep(60.0)
        assert processor.owned == {"0": 1, "1": 1}
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(log.begun)]
    assert max(gaps) < 0.2


async def test_a_heartbeat_without_an_answer_is_tried_again_soon(stage: Stage) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: processor.owned)
        stage.store.away = {"heartbeat"}
        asked = stage.store.asked["heartbeat"]
        await asyncio.sleep(5.0)
        assert 5 <= stage.store.asked["heartbeat"] - asked <= 12
        told = [one for one in stage.told(Trouble) if one.where == "store"]
        assert [one.attempt for one in told] == list(range(1, len(told) + 1))
        stage.store.away = set()


async def test_a_store_that_never_answers_is_given_half_of_an_instances_patience(stage: Stage) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: processor.owned)

        async def heartbeat(group: Group, member: Member, since: Cursor | None) -> Ledger:
            await asyncio.sleep(1_000.0)
            return await answering(group, member, since)

        answering = stage.store.heartbeat
        stage.store.heartbeat = heartbeat  # type: ignore[method-assign]
        await until(lambda: stage.told(Trouble))
        stage.store.heartbeat = answering  # type: ignore[method-assign]
    (trouble, *_) = stage.told(Trouble)
    assert str(trouble.error).startswith(f"The store has not answered for {PATIENCE_S / 2} s. It will be tried again")


async def test_a_quiet_group_costs_one_heartbeat_a_round(stage: Stage) -> None:
    async with stage.processor(Seen(), instance_id="a") as one, stage.processor(Seen(), instance_id="b") as other:
        await until(lambda: one.owned and other.owned)
        await asyncio.sleep(20.0)
        before = dict(stage.store.asked)
        await asyncio.sleep(100.0)
        assert stage.store.asked["heartbeat"] - before["heartbeat"] in range(98, 104)
        assert stage.store.asked["swap"] == before["swap"]


async def test_while_a_call_of_a_fenced_partition_runs_it_is_not_claimed_again(stage: Stage) -> None:
    log = Log(stage, 60.0)
    stage.fill(1, "0")
    async with stage.processor(log, stop_s=200.0) as processor:
        await until(lambda: log.running)
        stage.store.away = {"heartbeat"}
        await until(lambda: not processor.owned)
        stage.store.away = set()
        await until(lambda: processor.owned == {"1": 2})
        await asyncio.sleep(20.0)
        assert log.running == {"0"}
        assert processor.owned == {"1": 2}
        await until(lambda: not log.running)
        ended_s = stage.now_s
        await until(lambda: processor.owned == {"0": 2, "1": 2})
        assert stage.now_s - ended_s < 0.5, "and then at once"
    assert log.sequences == [("0", 0)], "the fenced call was committed in its last try"


# --- swaps without an answer
async def test_a_handoff_without_an_answer_counts_as_done(stage: Stage) -> None:
    log, other_log = Log(stage, 0.1), Log(stage, 0.1)
    stage.fill(1000)
    async with stage.processor(log, instance_id="a") as one:
        await until(lambda: len(one.owned) == 2)
        lose_one_reply(stage)
        async with stage.processor(other_log, instance_id="b") as other:
            await until(lambda: other.owned)
            (moved,) = other.owned
            await asyncio.sleep(60.0)
            assert len(one.owned) == len(other.owned) == 1
            assert other.owned == {moved: 2}
    assert len([*log.sequences, *other_log.sequences]) == len({*log.sequences, *other_log.sequences})


async def test_a_claim_without_an_answer_is_made_again_under_a_new_epoch_or_adopted(stage: Stage) -> None:
    lose_one_reply(stage)
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 2)
        assert set(processor.owned.values()) <= {1, 2}
    assert [type(one.error) for one in stage.told(Trouble)] == [StoreUnavailable]


def lose_one_reply(stage: Stage) -> None:
    """The next swap takes effect, and nobody learns of it."""
    swap = stage.store.swap

    async def lost(group: Any, changes: Sequence[Change]) -> Sequence[Outcome]:
        stage.store.swap = swap  # type: ignore[method-assign]
        await swap(group, changes)
        raise StoreUnavailable("the reply was lost")

    stage.store.swap = lost  # type: ignore[method-assign]


async def test_a_commit_that_is_refused_loses_the_partition_and_it_is_taken_again(stage: Stage) -> None:
    seen = Seen()
    stage.fill(3, "0")
    async with stage.processor(seen, checkpoint=Every(seconds=5.0)) as processor:
        await until(lambda: len(seen) == 3)
        record = (await stage.records())["0"]
        await stage.store.seal(GROUP, "0", 7, record)
        await until(lambda: processor.owned.get("0", 0) > 6)
        stopped = stage.told(PartitionStopped)[0]
        assert (stopped.partition, stopped.epoch, stopped.reason) == ("0", 1, "lost")
        await until(lambda: len(seen) == 6)


# --- the store forgets
async def test_a_store_that_lost_writes_makes_everybody_start_anew_from_memory(stage: Stage) -> None:
    first = Seen()
    stage.fill(5)
    async with stage.processor(first, checkpoint=Every(events=1), longest_ttl_s=20.0) as processor:
        await until(lambda: len(first) == 10)
        snapshot = stage.store.snapshot()
        stage.fill(5)
        await until(lambda: len(first) == 20)
        await asyncio.sleep(1.0)
        stage.store.restore(snapshot)
        lost_s = stage.now_s
        await until(lambda: stage.told(HistoryLost))
        await until(lambda: len(processor.owned) == 2)
        assert stage.now_s - lost_s <= 2 * HEARTBEAT_S, "it had them within its deadline"
        assert {epoch_parts(epoch)[0] for epoch in processor.owned.values()} == {1}
        stage.fill(1)
        await until(lambda: len(first) == 22)
    assert first.of("0") == list(range(11)), "what it remembers to have handled is not handled again"
    assert (await stage.records())["0"].ordinal == 11


async def test_an_emptied_store_is_a_lost_history_too(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=Every(events=1), longest_ttl_s=20.0) as processor:
        await until(lambda: len(seen) == 10)
        await asyncio.sleep(1.0)
        stage.store.__init__(wall=lambda: stage.now_s)  # type: ignore[misc]
        await until(lambda: stage.told(HistoryLost))
        await until(lambda: len(processor.owned) == 2)
        stage.fill(1)
        await until(lambda: len(seen) == 12)
    assert seen.of("0") == list(range(6))


async def test_what_a_fence_saves_is_written_by_its_last_try(stage: Stage) -> None:
    """Heartbeats do not come through, commits do: nobody has sealed since, so nothing need be repeated."""
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=SELDOM):
        await until(lambda: len(seen) == 10)
        stage.store.away = {"heartbeat"}
        await until(lambda: len(stage.told(PartitionStopped)) == 2)
        assert await stage.positions() == {"0": 4, "1": 4}
        stage.store.away = set()


@pytest.mark.parametrize("kind", sorted(EVERYTHING))
async def test_whatever_is_away_for_a_while_it_settles_and_nothing_is_lost(stage: Stage, kind: str) -> None:
    seen = Seen()
    async with stage.processor(seen, instance_id="a") as one:
        stage.fill(5)
        await until(lambda: len(seen) == 10)
        stage.store.away = {kind}
        async with stage.processor(seen, instance_id="b") as other:
            stage.fill(5)
            await asyncio.sleep(15.0)
            stage.store.away = set()
            await until(lambda: len(one.owned) == len(other.owned) == 1)
            stage.fill(5)
            await until(lambda: set(seen.of("0")) == set(seen.of("1")) == set(range(15)))
