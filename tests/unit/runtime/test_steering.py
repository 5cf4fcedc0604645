"""What becomes of partitions and instances when people pause, resume and retire, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, LeaseLost, PartitionHalted
from evenflow.model import EVERYTHING, Action, GroupState, Steering
from evenflow.signals import PartitionStopped, Paused, Resumed, Retiring, Swapped
from tests.unit.runtime.stage import EVERYTHING as ALL_REQUESTS
from tests.unit.runtime.stage import GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition, Processor
    from evenflow.model import Owner

HEARTBEAT_S, TTL_S = 2.0, 8.0
AT_ONCE_S = 0.5
"""Less than a heartbeat: it was woken."""


async def steer(stage: Stage, kind: str, *partitions: str, by: str = "anna", retire: Owner | None = None) -> GroupState:
    named: dict[str, Any] = {kind: (retire,) if retire is not None else partitions or (EVERYTHING,)}
    return await stage.store.steer(GROUP, Steering(**named), Action(kind=kind, by=by, why="disk", what=""))


def reasons(stage: Stage) -> list[str]:
    return [one.reason for one in stage.told(Swapped) if one.ok]


async def test_a_paused_partition_is_drained_released_and_told_of(stage: Stage) -> None:
    hooks: list[tuple[str, str]] = []
    processor = stage.processor(Seen(), checkpoint=Every(seconds=10_000.0))
    processor.on_partition_stop(_keep(hooks))
    stage.fill(5)
    async with processor:
        await until(lambda: len(processor.owned) == 2)
        await until(lambda: stage.now_s > 1.0)
        asked_s = stage.now_s
        await steer(stage, "pause", "0")
        await until(lambda: set(processor.owned) == {"1"})
        assert stage.now_s - asked_s < AT_ONCE_S, "it takes effect on wake-up, not at the next heartbeat"
        assert hooks == [("0", "paused")]
        assert [one.reason for one in stage.told(PartitionStopped)] == ["paused"]
        assert reasons(stage)[-1] == "released: paused by anna: disk"
        lease = (await stage.leases())["0"]
        assert (lease.owner, lease.reason) == (None, "released: paused by anna: disk")
        assert (await stage.positions())["0"] == 4, "drained and committed, whatever the policy is"
        (told,) = stage.told(Paused)
        assert (told.partition, told.by, told.why) == ("0", "anna", "disk")
        await asyncio.sleep(60.0)
        assert set(processor.owned) == {"1"}
        assert len(reasons(stage)) == 3, "and then nothing moves any more"


async def test_nothing_is_handled_while_paused_and_all_of_it_once_afterwards(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=Every(seconds=10_000.0)) as processor:
        await until(lambda: len(seen) == 10)
        await steer(stage, "pause")
        await until(lambda: not processor.owned)
        stage.fill(5)
        await asyncio.sleep(100.0)
        assert len(seen) == 10
        asked_s = stage.now_s
        await steer(stage, "resume")
        await until(lambda: len(seen) == 20)
        assert stage.now_s - asked_s < AT_ONCE_S
        assert len(set(seen)) == 20, "planned: nothing is handled twice"
        assert [one.partition for one in stage.told(Paused)] == [None]
        assert [one.partition for one in stage.told(Resumed)] == [None]


async def test_a_running_call_is_finished_first(stage: Stage) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    ended: list[int] = []

    async def slow(event: Event, partition: OwnedPartition) -> None:
        began.set()
        await may_end.wait()
        ended.append(event.sequence or 0)

    stage.fill(3, "0")
    async with stage.processor(slow) as processor:
        await began.wait()
        await steer(stage, "pause", "0")
        await asyncio.sleep(3 * TTL_S)
        assert set(processor.owned) == {"0", "1"}
        may_end.set()
        await until(lambda: set(processor.owned) == {"1"})
        assert ended == [0]
        assert (await stage.positions())["0"] == 0


async def test_a_pause_that_ends_during_the_drain_keeps_it_here(stage: Stage) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def slow(event: Event, partition: OwnedPartition) -> None:
        began.set()
        await may_end.wait()
        seen.append(event.sequence or 0)

    stage.fill(3, "0")
    async with stage.processor(slow):
        await began.wait()
        await steer(stage, "pause", "0")
        await asyncio.sleep(3 * HEARTBEAT_S)
        await steer(stage, "resume", "0")
        await asyncio.sleep(3 * HEARTBEAT_S)
        may_end.set()
        await until(lambda: len(seen) == 3)
        assert seen == [0, 1, 2]
        assert [one.reason for one in stage.told(PartitionStopped)] == ["kept"]


async def test_shares_are_even_over_what_is_not_paused(stage: Stage) -> None:
    stage.source.grow(6)
    async with stage.processor(Seen(), instance_id="a") as one, stage.processor(Seen(), instance_id="b") as two:
        await until(lambda: len(one.owned) == len(two.owned) == 4)
        await steer(stage, "pause", *one.owned)
        await until(lambda: len(one.owned) == len(two.owned) == 2)
        await steer(stage, "resume")
        await until(lambda: len(one.owned) == len(two.owned) == 4)


async def test_a_pause_outlives_everybody(stage: Stage) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: len(processor.owned) == 2)
        await steer(stage, "pause", "0")
        await until(lambda: len(processor.owned) == 1)
    stage.fill(3)
    seen = Seen()
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 3)
        await asyncio.sleep(60.0)
        assert set(processor.owned) == {"1"}
        assert {partition for partition, _ in seen} == {"1"}


async def test_a_pause_during_an_outage_of_the_store_is_obeyed_afterwards(stage: Stage) -> None:
    seen = Seen()
    async with stage.processor(seen) as processor:
        await until(lambda: len(processor.owned) == 2)
        stage.store.away = ALL_REQUESTS
        await asyncio.sleep(2 * TTL_S)
        assert not processor.owned, "it stopped itself"
        await steer(stage, "pause", "0")
        stage.fill(3)
        stage.store.away = set()
        await until(lambda: set(processor.owned) == {"1"})
        await asyncio.sleep(60.0)
        assert {partition for partition, _ in seen} == {"1"}
        assert (await stage.leases())["0"].reason == "released: paused by anna: disk"


async def test_a_job_that_runs_until_it_has_caught_up_does_not_wait_for_what_is_paused(stage: Stage) -> None:
    first = stage.processor(Seen())
    await first.serve(until="caught_up")
    await steer(stage, "pause", "0")
    stage.fill(3)
    seen = Seen()
    async with asyncio.timeout(60.0):
        with pytest.raises(PartitionHalted, match="partition 0 paused by anna: disk"):
            await stage.processor(seen).serve(until="caught_up")
    assert seen == [("1", 0), ("1", 1), ("1", 2)]
    assert [str(one) for one in stage.told(Paused)] == [
        "partition 0 was paused by anna: disk (its events wait until it is resumed)"
    ]
    await steer(stage, "pause")
    async with asyncio.timeout(60.0):
        with pytest.raises(PartitionHalted):
            await stage.processor(seen).serve(until="caught_up")
    assert len(seen) == 3


async def test_nor_for_what_is_paused_and_belongs_to_somebody_who_was_killed(stage: Stage) -> None:
    process = stage.new_process()
    killed = stage.processor(Seen(), loop=process)
    process.start(killed.serve())
    await until(lambda: len(killed.owned) == 2)
    process.dead = True
    await steer(stage, "pause")
    began_s = stage.now_s
    async with asyncio.timeout(60.0):
        with pytest.raises(PartitionHalted):
            await stage.processor(Seen()).serve(until="caught_up")
    assert stage.now_s - began_s < TTL_S


# --- seeks
async def test_a_seek_of_a_paused_partition_says_so(stage: Stage) -> None:
    stage.fill(3)
    seen = Seen()
    async with stage.processor(seen) as processor:
        await until(lambda: len(seen) == 6)
        await steer(stage, "pause", "0")
        await until(lambda: len(processor.owned) == 1)
        with pytest.raises(LeaseLost, match=r"partition 0 is paused.*Resume it first"):
            await processor.seek("earliest", ["0", "1"])
        assert set(await processor.seek("earliest")) == {"1"}


@pytest.mark.parametrize("late", [False, True])
async def test_a_pause_in_the_middle_of_a_seek_ends_in_one_or_the_other(stage: Stage, late: bool) -> None:
    """While the last call runs, or while the lease is swapped: the seek fails, and nothing was moved."""
    stage.fill(3, "0")
    may_end = asyncio.Event()

    async def slow(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 2:
            await may_end.wait()

    async with stage.processor(slow) as processor:
        await until(lambda: len(processor.owned) == 2)
        await asyncio.sleep(5.0)
        seeking = asyncio.create_task(processor.seek("earliest", ["0"]))
        await asyncio.sleep(0)
        if late:
            _steer_before_the_answer(stage, processor)
        else:
            await steer(stage, "pause", "0")
            await asyncio.sleep(HEARTBEAT_S)
        may_end.set()
        with pytest.raises(LeaseLost, match=r"partition 0 is paused by anna: disk.*Resume it first"):
            await seeking
        await until(lambda: set(processor.owned) == {"1"})
        await asyncio.sleep(HEARTBEAT_S)
        assert (await stage.leases())["0"].owner is None
        assert (await stage.positions())["0"] == 2
        assert [one.reason for one in stage.told(PartitionStopped)] == ["seek" if late else "paused"]


def _steer_before_the_answer(stage: Stage, processor: Processor) -> None:
    """The pause comes with a heartbeat that is answered while the swap of the seek is under way."""
    swap = stage.store.swap

    async def slowly(group: Any, changes: Any) -> Any:
        outcomes = await swap(group, changes)
        if changes[0].reason.startswith("seek"):
            await steer(stage, "pause", "0")
            await until(lambda: stage.told(Paused))
        return outcomes

    stage.store.swap = slowly  # type: ignore[method-assign]


async def test_a_claim_that_is_answered_after_the_pause_begins_nothing(stage: Stage) -> None:
    stage.fill(3)
    seen = Seen()
    swap = stage.store.swap

    async def slowly(group: Any, changes: Any) -> Any:
        outcomes = await swap(group, changes)
        if not stage.told(Paused):
            await steer(stage, "pause")
            await until(lambda: stage.told(Paused))
        return outcomes

    stage.store.swap = slowly  # type: ignore[method-assign]
    async with stage.processor(seen) as processor:
        await asyncio.sleep(30.0)
        assert (seen, processor.owned) == ([], {})
        assert {lease.owner for lease in (await stage.leases()).values()} == {None}


# --- retire
async def test_who_is_asked_to_retire_passes_on_leaves_and_returns(stage: Stage) -> None:
    stage.source.grow(6)
    first = stage.processor(Seen(), instance_id="a")
    serving = asyncio.create_task(first.serve())
    await until(lambda: len(first.owned) == 8)
    async with stage.processor(Seen(), instance_id="b") as other:
        await until(lambda: len(other.owned) == 4)
        await asyncio.sleep(5 * HEARTBEAT_S)
        asked_s = stage.now_s
        await steer(stage, "retire", retire=await _owner(stage, "a"))
        await until(lambda: len(other.owned) == 8)
        assert stage.now_s - asked_s < AT_ONCE_S
        await serving
        assert [str(one) for one in stage.told(Retiring)] == ["a is retiring, as requested by anna: disk"]
        assert reasons(stage)[-4:] == ["handed over: a leaves"] * 4
        ledger = await stage.store.peek(GROUP)
        assert ledger is not None
        assert ledger.state.retired == {}
        async with stage.processor(Seen(), instance_id="a") as again:
            await until(lambda: len(again.owned) == 4)
            await asyncio.sleep(10 * HEARTBEAT_S)
            assert len(again.owned) == 4, "a newer start was not meant"


async def test_a_wish_to_retire_outlasts_an_outage(stage: Stage) -> None:
    processor = stage.processor(Seen(), instance_id="a")
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(processor.owned) == 2)
    stage.store.away = ALL_REQUESTS
    await steer(stage, "retire", retire=await _owner(stage, "a"))
    await asyncio.sleep(2 * TTL_S)
    assert not serving.done()
    stage.store.away = set()
    await serving
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}


async def test_the_last_one_may_retire_too_also_while_all_is_paused(stage: Stage) -> None:
    processor = stage.processor(Seen(), instance_id="a")
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(processor.owned) == 2)
    await steer(stage, "pause", "0")
    await steer(stage, "retire", retire=await _owner(stage, "a"))
    await serving
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    assert (ledger.members, set(ledger.state.pauses)) == ((), {"0"})


async def _owner(stage: Stage, name: str) -> Owner:
    ledger = await stage.store.peek(GROUP)
    assert ledger is not None
    return next(member.owner for member in ledger.members if member.id == name)


def _keep(hooks: list[tuple[str, str]]) -> Any:
    async def stopped(partition: OwnedPartition, reason: str) -> None:
        if reason != "leaving":
            hooks.append((partition.id, reason))

    return stopped
