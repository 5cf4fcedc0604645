"""Seeks from outside: what would change, and the change, in groups that run, that do not, and that were killed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from evenflow import (
    HubReplaced,
    Misconfigured,
    PositionGone,
    PositionOutOfRange,
    StoreUnavailable,
    Transient,
)
from evenflow.core.notes import Notes, Stopped
from evenflow.model import EVERYTHING, Action, Change, Checkpoint, Group, Member, Steering
from evenflow.operate.inspect.survey import survey
from evenflow.operate.steer import FromGroup, Operator, PartitionSeek, Shift, pause, plan_seek, seek
from evenflow.runtime.clock import system_clock
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import GROUP, Seen, Stage, at, until

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow import Event, OwnedPartition
    from evenflow.model import GroupState

ANNA = Operator("anna", "a wrong price")
TTL_S = 8.0


def to(partition: str, place: int) -> PartitionSeek:
    return PartitionSeek(
        partition=partition, to=at(place), before=None, after=at(place), lag_before=None, lag_after=None
    )


async def state(stage: Stage) -> GroupState:
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    return ledger.state


async def kinds(stage: Stage) -> list[str]:
    """Of what people did, the oldest first."""
    return [action.kind for action in await stage.store.actions(GROUP)][::-1]


async def handle_all(stage: Stage, count: int = 5) -> None:
    """The group has run, and everything in both partitions is handled."""
    stage.fill(count)
    await stage.processor(Seen()).serve(until="caught_up")


class Stuck:
    """A handler whose call in one partition returns when it may."""

    def __init__(self, partition: str = "0") -> None:
        self._partition = partition
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, event: Event, partition: OwnedPartition) -> None:
        if partition.id == self._partition:
            self.began.set()
            await self.may_end.wait()


# --- what would change
@pytest.mark.parametrize(
    ("target", "after"),
    [
        ("earliest", -1),
        ("latest", 4),
        (at(2), 2),
        (Shift(-2), 2),
        (Shift(-1_000), -1),
        (Shift(1_000), 4),
        (Shift(0), 4),
        (datetime(1970, 1, 1, tzinfo=UTC), -1),
    ],
)
async def test_each_kind_of_place(stage: Stage, target: Any, after: int) -> None:
    await handle_all(stage)
    plans = await plan_seek(stage.store, stage.source, GROUP, target, None)
    assert [one.partition for one in plans] == ["0", "1"]
    for one in plans:
        assert (one.before, one.after) == (at(4), at(after))
        assert (one.lag_before, one.lag_after) == (0, 4 - after)
    assert await stage.positions() == {"0": 4, "1": 4}, "nothing was changed"


async def test_where_another_group_stands(stage: Stage) -> None:
    await handle_all(stage)
    other = Group("fake", "fake", "other")
    await stage.store.heartbeat(other, Member(id="x", nonce="x", ttl_s=8.0), None)
    with pytest.raises(Misconfigured, match=r"'other' has no checkpoint of partition 0.*none yet"):
        await plan_seek(stage.store, stage.source, GROUP, FromGroup("other"), None)
    record = (await stage.records())["0"]
    await stage.store.seal(other, "0", 1, replace(record, position=at(1)))
    (plan,) = await plan_seek(stage.store, stage.source, GROUP, FromGroup("other"), ["0"])
    assert plan.after == at(1)
    with pytest.raises(Misconfigured, match="has no group fake/fake/missing"):
        await plan_seek(stage.store, stage.source, GROUP, FromGroup("missing"), None)


async def test_a_place_outside_the_log_names_the_oldest_there_is(stage: Stage) -> None:
    await handle_all(stage)
    stage.source.trim("0", 3)
    with pytest.raises(PositionGone, match=r"Partition 0: 1 is not in the log\. Its oldest event is at position 3"):
        await plan_seek(stage.store, stage.source, GROUP, at(1), ["0"])
    with pytest.raises(PositionOutOfRange, match="its newest at 4"):
        await plan_seek(stage.store, stage.source, GROUP, at(77), ["0"])
    (plan,) = await plan_seek(stage.store, stage.source, GROUP, Shift(-1_000), ["0"])
    assert (plan.after, plan.lag_after) == (at(2), 2)


async def test_what_makes_no_sense_is_refused(stage: Stage) -> None:
    with pytest.raises(Misconfigured, match="has no group"):
        await plan_seek(stage.store, stage.source, GROUP, "earliest", None)
    await stage.store.heartbeat(GROUP, Member(id="x", nonce="x", ttl_s=8.0), None)
    with pytest.raises(Misconfigured, match="no checkpoint to count from"):
        await plan_seek(stage.store, stage.source, GROUP, Shift(-1), None)
    with pytest.raises(Misconfigured, match=r"no partition 9\. There are: 0, 1"):
        await plan_seek(stage.store, stage.source, GROUP, "earliest", ["0", "9"])
    with pytest.raises(Misconfigured, match="does not read hub fake/another"):
        await plan_seek(stage.store, FakeSource(name="another"), GROUP, "earliest", None)
    await handle_all(stage)
    stage.source.remake()
    with pytest.raises(HubReplaced):
        await plan_seek(stage.store, stage.source, GROUP, "earliest", None)


# --- the change
async def test_a_group_that_does_not_run_is_moved_and_nothing_is_paused(stage: Stage) -> None:
    await handle_all(stage)
    shown: list[str] = []
    plans = await plan_seek(stage.store, stage.source, GROUP, at(1), ["0"])
    await seek(stage.store, stage.source, GROUP, plans, ANNA, stage.clock(), shown.append)
    assert shown == []
    records, leases = await stage.records(), await stage.leases()
    assert (records["0"].position, records["0"].ordinal) == (at(1), 6)
    assert (leases["0"].owner, leases["0"].reason) == (None, "seek: to 1 by anna")
    assert records["0"].epoch == leases["0"].epoch
    assert [(one.kind, one.by, one.why, one.what) for one in await stage.store.actions(GROUP)] == [
        ("seek", "anna", "a wrong price", "partition 0: 4 -> 1")
    ]
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert seen == [("0", 2), ("0", 3), ("0", 4)]


async def test_a_running_group_pauses_just_these_and_goes_on_elsewhere(stage: Stage) -> None:
    seen, shown = Seen(), list[str]()
    stage.fill(5)
    async with stage.processor(seen, instance_id="a") as processor:
        await until(lambda: len(seen) == 10)
        epochs = processor.owned
        await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock(), shown.append)
        assert (await state(stage)).pauses == {}
        await until(lambda: len(seen) == 13)
        assert seen[10:] == [("0", 2), ("0", 3), ("0", 4)], "exactly once more"
        assert processor.owned["1"] == epochs["1"], "the other one did not notice"
        await asyncio.sleep(60.0)
        assert len(seen) == 13
    assert (shown[0], shown[-1]) == ("paused partition 0 for the seek", "resumed partition 0 for the seek")
    assert await kinds(stage) == ["pause for seek", "resume for seek", "seek"]


@pytest.mark.parametrize(("target", "after"), [(Shift(1), 9), (Shift(-2), 7), ("latest", 9), (FromGroup("other"), 6)])
async def test_a_running_group_has_gone_on_since_it_was_planned(stage: Stage, target: Any, after: int) -> None:
    """What was asked for is counted from where it is when it stands still, and that is reported and recorded."""
    other = Group("fake", "fake", "other")
    await stage.store.heartbeat(other, Member(id="x", nonce="x", ttl_s=8.0), None)
    await stage.store.seal(other, "0", 1, Checkpoint(partition="0", epoch=1, position=at(0), ordinal=1))
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen):
        await until(lambda: len(seen) == 10)
        await until(lambda: stage.now_s > 5.0)
        plans = await plan_seek(stage.store, stage.source, GROUP, target, ["0"])
        assert plans[0].before == at(4)
        stage.fill(5, "0")
        await until(lambda: len(seen) == 15)
        await stage.store.commit(other, [Checkpoint(partition="0", epoch=1, position=at(6), ordinal=7)])
        (done,) = await seek(stage.store, stage.source, GROUP, plans, ANNA, stage.clock())
        assert (done.before, done.after, done.lag_before, done.lag_after) == (at(9), at(after), 0, 9 - after)
        assert (await stage.store.actions(GROUP))[0].what == f"partition 0: 9 -> {after}"
        await asyncio.sleep(60.0)
        assert seen.of("0")[10:] == list(range(after + 1, 10))


async def test_a_shift_beyond_the_end_passes_over_nothing_that_comes_meanwhile(stage: Stage) -> None:
    await handle_all(stage)
    await seek(stage.store, stage.source, GROUP, [to("0", 3)], ANNA, stage.clock())
    bounds = stage.source.bounds

    async def late(partitions: Any) -> Any:
        found = await bounds(partitions)
        stage.fill(5, "0")
        return found

    plans = await plan_seek(stage.store, stage.source, GROUP, Shift(1), ["0"])
    stage.source.bounds = late  # type: ignore[method-assign]
    (done,) = await seek(stage.store, stage.source, GROUP, plans, ANNA, stage.clock())
    assert (done.before, done.after) == (at(3), at(4))


async def test_a_shift_whose_commit_had_no_answer_is_not_made_twice(stage: Stage) -> None:
    await handle_all(stage)
    plans = await plan_seek(stage.store, stage.source, GROUP, Shift(-1), ["0"])
    commit, answers = stage.store.commit, [1, 1]

    async def unanswered(group: Any, checkpoints: Any) -> Any:
        outcomes = await commit(group, checkpoints)
        if answers:
            answers.pop()
            raise StoreUnavailable("no answer")
        return outcomes

    stage.store.commit = unanswered  # type: ignore[method-assign]
    (done,) = await seek(stage.store, stage.source, GROUP, plans, ANNA, stage.clock())
    assert (done.before, done.after) == (at(4), at(3))
    assert (await stage.positions())["0"] == 3


async def test_what_was_paused_before_stays_paused(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 10)
        before = await pause(stage.store, GROUP, ["0"], Operator("bert", "wait"))
        await until(lambda: len(processor.owned) == 1)
        await seek(stage.store, stage.source, GROUP, [to("0", 1), to("1", 1)], ANNA, stage.clock())
        assert (await state(stage)).pauses == before.pauses
        await until(lambda: len(seen) == 13)
        assert {partition for partition, _ in seen[10:]} == {"1"}
        assert (await stage.positions())["0"] == 1


async def test_what_an_operator_pauses_at_the_same_moment_stays_paused(stage: Stage) -> None:
    stage.fill(5)
    steer = stage.store.steer

    async def overtaken(group: Group, steering: Steering, action: Action) -> GroupState:
        if action.by == "anna" and steering.pause:
            await steer(group, Steering(pause=("0",)), Action(kind="pause", by="bert", why="wait", what=""))
        return await steer(group, steering, action)

    seen = Seen()
    async with stage.processor(seen):
        await until(lambda: len(seen) == 10)
        stage.store.steer = overtaken  # type: ignore[method-assign]
        await seek(stage.store, stage.source, GROUP, [to("0", 1), to("1", 1)], ANNA, stage.clock())
        assert {name: wish.by for name, wish in (await state(stage)).pauses.items()} == {"0": "bert"}


async def test_a_group_that_is_paused_meanwhile_stays_so(stage: Stage) -> None:
    """An operator pauses the whole group while the last call of a partition runs."""
    stuck = Stuck()
    stage.fill(1, "0")
    shown: list[str] = []
    async with stage.processor(stuck) as processor:
        await stuck.began.wait()
        seeking = asyncio.create_task(
            seek(stage.store, stage.source, GROUP, [to("0", -1)], ANNA, stage.clock(), shown.append)
        )
        await asyncio.sleep(2.0)
        await pause(stage.store, GROUP, None, Operator("bert", "wait"))
        stuck.may_end.set()
        await seeking
        assert EVERYTHING in (await state(stage)).pauses
        assert not processor.owned
        assert "the whole group was paused meanwhile" in shown[-1]


async def test_what_a_person_pauses_meanwhile_stays_paused(stage: Stage) -> None:
    """Also when it is the same person, with the same words: the seek's own pause gives way."""
    stuck = Stuck()
    stage.fill(5)
    shown: list[str] = []
    async with stage.processor(stuck) as processor:
        await stuck.began.wait()
        both = [to("0", 1), to("1", 1)]
        seeking = asyncio.create_task(seek(stage.store, stage.source, GROUP, both, ANNA, stage.clock(), shown.append))
        await asyncio.sleep(2.0)
        wish = (await state(stage)).pauses["0"]
        assert (wish.by, wish.why, bool(wish.visit)) == ("anna", "for a seek: a wrong price", True)
        await pause(stage.store, GROUP, ["0"], Operator("anna", wish.why))
        stuck.may_end.set()
        await seeking
        assert {name: one.visit for name, one in (await state(stage)).pauses.items()} == {"0": ""}
        assert shown[-2:] == [
            "resumed partition 1 for the seek",
            "partition 0 was paused by anna meanwhile: not resumed",
        ]
        await until(lambda: set(processor.owned) == {"1"})
        await asyncio.sleep(60.0)
        assert set(processor.owned) == {"1"}


async def test_owners_that_do_not_let_go_end_it_and_nothing_stays_paused(stage: Stage) -> None:
    stuck = Stuck()
    stage.fill(5)
    async with stage.processor(stuck, instance_id="a"):
        await stuck.began.wait()
        await until(lambda: stage.now_s > 2.0)
        began_s = stage.now_s
        with pytest.raises(Transient, match=r"Gave up on partitions 0, 1 .*for a to release.*Nothing was changed"):
            await seek(stage.store, stage.source, GROUP, [to("0", 1), to("1", 1)], ANNA, stage.clock())
        assert stage.now_s - began_s < 60.0
        assert (await state(stage)).pauses == {}
        assert (await stage.positions())["1"] == 4, "none is touched before all are free"
        assert await kinds(stage) == ["pause for seek", "resume for seek"]
        stuck.may_end.set()


async def test_one_that_is_interrupted_leaves_nothing_paused(stage: Stage) -> None:
    stuck = Stuck()
    stage.fill(5)
    async with stage.processor(stuck):
        await stuck.began.wait()
        seeking = asyncio.create_task(seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock()))
        await asyncio.sleep(3.0)
        assert set((await state(stage)).pauses) == {"0"}
        seeking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await seeking
        assert (await state(stage)).pauses == {}
        stuck.may_end.set()


async def test_a_dead_owner_is_waited_for_and_then_passed_over(stage: Stage) -> None:
    stage.fill(5)
    process = stage.new_process()
    seen = Seen()
    killed = stage.processor(seen, loop=process, instance_id="a")
    process.start(killed.serve())
    await until(lambda: len(seen) == 10)
    await asyncio.sleep(3.0)
    process.dead = True
    shown: list[str] = []
    began_s = stage.now_s
    await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock(), shown.append)
    assert TTL_S <= stage.now_s - began_s < TTL_S + 2.0
    assert "waiting for a to release partition 0" in shown
    assert (await stage.leases())["0"].owner is None
    assert (await stage.positions())["0"] == 1
    assert (await state(stage)).pauses == {}


async def test_a_silent_owner_that_heartbeats_at_the_last_moment_keeps_it(stage: Stage) -> None:
    ledger = await stage.store.heartbeat(GROUP, Member(id="a", nonce="1", ttl_s=TTL_S), None)
    assert ledger.me is not None
    me, claim = ledger.me, {"partition": "0", "revision": 0, "history": 0, "epoch": 1, "ttl_s": TTL_S}
    await stage.store.swap(GROUP, [Change(owner=me.owner, **claim)])  # type: ignore[arg-type]
    swap, whys = stage.store.swap, list[str]()

    async def overtaken(group: Any, changes: Any) -> Any:
        if not whys:
            await stage.store.heartbeat(GROUP, me, None)
        outcomes = await swap(group, changes)
        whys.append(outcomes[0].why)
        return outcomes

    stage.store.swap = overtaken  # type: ignore[method-assign]
    await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock())
    assert whys == ["mark", ""], "and only after another time-to-live it had no owner"
    assert stage.now_s >= 2 * TTL_S


async def test_a_stalled_owner_that_comes_back_cannot_undo_it(stage: Stage) -> None:
    stage.fill(5)
    process = stage.new_process()
    seen = Seen()
    stalled = stage.processor(seen, loop=process, instance_id="a")
    process.start(stalled.serve())
    await until(lambda: len(seen) == 10)
    await asyncio.sleep(3.0)
    process.stall()
    await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock())
    process.resume()
    await until(lambda: seen.of("0")[5:] == [2, 3, 4])
    assert seen.of("1") == [0, 1, 2, 3, 4]


async def test_a_partition_that_was_never_sealed_can_be_moved(stage: Stage) -> None:
    await handle_all(stage)
    stage.source.grow(1)
    stage.fill(4, "2")
    plans = await plan_seek(stage.store, stage.source, GROUP, at(1), ["2"])
    assert plans[0].before is None
    await seek(stage.store, stage.source, GROUP, plans, ANNA, stage.clock())
    assert (await stage.store.actions(GROUP))[0].what == "partition 2: no checkpoint -> 1"
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert seen == [("2", 2), ("2", 3)]


async def test_what_failed_where_it_was_is_forgotten_but_not_what_is_parked(stage: Stage) -> None:
    await handle_all(stage)
    record = (await stage.records())["0"]
    notes = Notes(stopped=Stopped(5, at(5), "boom"), parked={"k": 0}, redriven=2)
    await stage.store.commit(GROUP, [replace(record, notes=notes.as_dict(), event_at=7.0, effects=True)])
    await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock())
    after = (await stage.records())["0"]
    assert (after.notes, after.event_at) == ({"parked": {"k": 0}, "redriven": 2}, 0.0)
    assert after.effects, "an application's effects are still there"


async def test_a_faster_instance_is_detected_and_the_snapshot_taken_again(stage: Stage) -> None:
    """An instance starts in the middle: it claims, and the seek goes through it after all."""
    await handle_all(stage)
    seen = Seen()
    processor = stage.processor(seen)
    swap, serving = stage.store.swap, list[asyncio.Task[bool]]()

    async def overtaken(group: Any, changes: Any) -> Any:
        if changes[0].reason.startswith("seek") and not serving:
            serving.append(asyncio.create_task(processor.serve()))
            await until(lambda: len(processor.owned) == 2)
        return await swap(group, changes)

    stage.store.swap = overtaken  # type: ignore[method-assign]
    await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock())
    await until(lambda: len(seen) == 3)
    assert seen == [("0", 2), ("0", 3), ("0", 4)]
    assert (await state(stage)).pauses == {}
    processor.stop()
    await serving[0]


async def test_a_store_that_is_away_for_a_while_is_waited_for(stage: Stage) -> None:
    await handle_all(stage)
    stage.store.away = {"seal"}
    shown: list[str] = []
    seeking = asyncio.create_task(
        seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock(), shown.append)
    )
    await asyncio.sleep(5.0)
    stage.store.away = set()
    await seeking
    assert (await stage.positions())["0"] == 1
    assert shown == ["the store does not answer (no seal for now)"]
    stage.store.away = {"commit"}
    with pytest.raises(Transient, match="Gave up on partition 0"):
        await seek(stage.store, stage.source, GROUP, [to("0", 0)], ANNA, stage.clock())


async def test_a_resume_that_meets_an_outage_is_tried_again(stage: Stage) -> None:
    stage.fill(5)
    steer, failures = stage.store.steer, [1, 1, 1]

    async def patchy(group: Group, steering: Steering, action: Action) -> GroupState:
        if steering.resume and failures:
            failures.pop()
            raise StoreUnavailable("away")
        return await steer(group, steering, action)

    stage.store.steer = patchy  # type: ignore[method-assign]
    seen = Seen()
    async with stage.processor(seen):
        await until(lambda: len(seen) == 10)
        await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock())
        assert (await state(stage)).pauses == {}
        assert failures == []


async def test_after_lost_writes_one_waits_for_the_longest_time_to_live(stage: Stage) -> None:
    """An instance may still act on a lease that the store has forgotten."""
    await handle_all(stage)
    stage.store.restore(stage.store.snapshot())
    began_s, shown = stage.now_s, list[str]()
    await seek(stage.store, stage.source, GROUP, [to("0", 1)], ANNA, stage.clock(), shown.append)
    assert 60.0 <= stage.now_s - began_s < 62.0
    assert shown == ["waiting until no earlier owner of partition 0 can still be active"]
    assert (await stage.records())["0"].epoch >> 32 == 1


# --- with files
def test_on_a_sqlite_store(tmp_path: Path) -> None:
    async def main() -> None:
        store, other = SQLiteStore(tmp_path), SQLiteStore(tmp_path)
        await store.heartbeat(GROUP, Member(id="a", nonce="1", ttl_s=0.5, heartbeat_s=0.1), None)
        await store.seal(GROUP, "0", 1, Checkpoint(partition="0", epoch=1, position=at(4), ordinal=5))
        await seek(other, FakeSource(2), GROUP, [to("0", 1), to("1", 2)], ANNA, system_clock())
        records = {record.partition: record for record in await store.checkpoints(GROUP)}
        assert (records["0"].position, records["0"].ordinal) == (at(1), 6)
        assert (records["1"].position, records["1"].ordinal) == (at(2), 0)
        ledger = await store.peek(GROUP)
        assert ledger is not None
        assert ledger.state.pauses == {}
        actions = await store.actions(GROUP)
        assert [one.kind for one in actions] == ["seek", "resume for seek", "pause for seek"]
        assert actions[0].what == "2 partitions: partition 0: 4 -> 1, partition 1: no checkpoint -> 2"
        (shown,) = (await survey(store, GROUP, None, actions=10)).actions
        assert shown.kind == "seek", "its steps are not what the operator requested"
        await store.aclose()
        await other.aclose()

    asyncio.run(main())
