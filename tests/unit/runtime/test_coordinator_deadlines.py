"""From when deadlines and silence count, and what is begun, where requests to the store take their time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec.structs import replace

from evenflow import Every, StoreUnavailable
from evenflow.core.decide import TAKEN_OVER
from evenflow.core.liveness import Sighting
from evenflow.errors import EvenflowError, HubReplaced
from evenflow.model import Owner
from evenflow.signals import HistoryLost, PartitionStopped, Swapped
from tests.unit.runtime.stage import GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Processor
    from evenflow.model import Change, Checkpoint, Cursor, Group, Ledger, Member, Outcome
    from evenflow.runtime.coordinator import Coordinator

HEARTBEAT_S, TTL_S, PATIENCE_S = 2.0, 8.0, 7.0


class Heartbeat(NamedTuple):
    sent_s: float
    took_effect_s: float
    answered_s: float


class Wire:
    """What one instance sees of the stage's store: each kind of request takes so long to get there and back."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._store = stage, stage.store
        self.there: Counter[str] = Counter()
        self.back: Counter[str] = Counter()
        self.cut: set[str] = set()
        self.heartbeats: list[Heartbeat] = []
        self.swapped: list[Change] = []
        self.committed: list[Checkpoint] = []
        """All that was ever asked for."""

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        sent_s = self._stage.now_s
        await self._there("heartbeat")
        took_effect_s, ledger = self._stage.now_s, await self._store.heartbeat(group, member, since)
        await asyncio.sleep(self.back["heartbeat"])
        self.heartbeats.append(Heartbeat(sent_s, took_effect_s, self._stage.now_s))
        return ledger

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        self.swapped += changes
        await self._there("swap")
        outcomes = await self._store.swap(group, changes)
        await asyncio.sleep(self.back["swap"])
        return outcomes

    async def seal(
        self, group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        await self._there("seal")
        return await self._store.seal(group, partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        self.committed += checkpoints
        await self._there("commit")
        return await self._store.commit(group, checkpoints)

    async def aclose(self) -> None:
        pass

    async def _there(self, kind: str) -> None:
        if kind in self.cut:
            raise StoreUnavailable(f"no {kind} gets through")
        await asyncio.sleep(self.there[kind])


class Calls:
    """A handler that keeps when its calls began."""

    def __init__(self, stage: Stage, call_s: float = 0.05) -> None:
        self._stage, self._call_s = stage, call_s
        self.begun_s: list[float] = []

    async def __call__(self, event: object, partition: object) -> None:
        self.begun_s.append(self._stage.now_s)
        await asyncio.sleep(self._call_s)


async def test_silence_counts_from_the_answer_that_first_showed_the_mark(stage: Stage) -> None:
    """Not from its sending: the owner may have beaten while the request was on its way."""
    near, far = Wire(stage), Wire(stage)
    far.there["heartbeat"] = 1  # the heartbeat sees what was written a second after it was sent
    process = stage.new_process()
    process.start(stage.processor(Seen(), loop=process, store=near, instance_id="a").serve())
    await until(lambda: near.heartbeats)
    async with stage.processor(Seen(), store=far, instance_id="b") as other:
        await until(lambda: len(other.owned) == 1)
        await asyncio.sleep(20.0)
        heartbeats = len(near.heartbeats)
        await until(lambda: len(near.heartbeats) > heartbeats)
        process.dead = True
        await until(lambda: len(other.owned) == 2)
        first = next(
            heartbeat for heartbeat in far.heartbeats if heartbeat.took_effect_s > near.heartbeats[-1].took_effect_s
        )
        assert far.heartbeats[-1].sent_s - first.answered_s >= TTL_S


async def test_a_deadline_counts_from_the_sending_of_the_heartbeat(stage: Stage) -> None:
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    wire.there["heartbeat"] = wire.back["heartbeat"] = 1
    async with stage.processor(calls, store=wire):
        await until(lambda: len(calls.begun_s) > 100)
        wire.cut = {"heartbeat"}
        await asyncio.sleep(20.0)
        assert (
            wire.heartbeats[-1].sent_s + PATIENCE_S - 0.1 <= calls.begun_s[-1] < wire.heartbeats[-1].sent_s + PATIENCE_S
        )


async def test_a_claims_deadline_counts_from_the_last_heartbeat_that_was_answered_before_it_was_sent(
    stage: Stage,
) -> None:
    """Heartbeats that are answered while a claim is on its way do not show it."""
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    wire.there["swap"] = 3
    async with stage.processor(calls, store=wire):
        await until(lambda: len(wire.heartbeats) == 2)
        wire.cut = {"heartbeat"}
        await asyncio.sleep(20.0)
        assert (
            wire.heartbeats[0].sent_s + PATIENCE_S - 0.1 <= calls.begun_s[-1] < wire.heartbeats[0].sent_s + PATIENCE_S
        )


async def test_a_seeks_deadline_counts_from_the_last_heartbeat_that_was_answered_before_its_swap(stage: Stage) -> None:
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    async with stage.processor(calls, store=wire) as processor:
        await until(lambda: len(calls.begun_s) > 100)
        wire.there["swap"] = 3
        heartbeats = len(wire.heartbeats)
        seeking = asyncio.create_task(processor.seek("earliest", ["0"]))
        await until(lambda: len(wire.heartbeats) > heartbeats)
        wire.cut = {"heartbeat"}
        await seeking
        await asyncio.sleep(20.0)
        before = wire.heartbeats[heartbeats - 1].sent_s
        assert before + PATIENCE_S - 0.1 <= calls.begun_s[-1] < before + PATIENCE_S


# --- what a heartbeat must show
@pytest.mark.parametrize("facts", [{"owner": Owner("other", 1)}, {"epoch": 2}], ids=["another owner", "another epoch"])
async def test_a_deadline_moves_only_where_the_ledger_shows_me_in_my_epoch(stage: Stage, facts: dict[str, Any]) -> None:
    """A store that lost writes without a sign may give an epoch to another owner."""
    async with stage.processor(Seen()) as processor:
        await until(lambda: processor.owned == {"0": 1, "1": 1})
        give_away(stage, "0", **facts)
        await until(lambda: any(stop.partition == "0" for stop in stage.told(PartitionStopped)), 2 * HEARTBEAT_S)
        assert processor.owned.get("0") != 1
        assert processor.owned["1"] == 1


async def test_what_another_instance_has_is_not_committed_any_more(stage: Stage) -> None:
    stage.fill(5)
    wire, calls = Wire(stage), Calls(stage)
    async with stage.processor(calls, store=wire, checkpoint=Every(seconds=10_000.0)):
        await until(lambda: len(calls.begun_s) == 10)
        give_away(stage, "0", owner=Owner("other", 1), epoch=2)
        await until(lambda: stage.told(PartitionStopped))
        await asyncio.sleep(1.0)
        assert wire.committed == []


async def test_what_was_answered_after_its_deadline_is_adopted_by_the_next_heartbeat_and_not_begun_before(
    stage: Stage,
) -> None:
    """A seek that took so long: the lease is mine under its new epoch, and nothing was begun in it yet."""
    stage.fill(5, "0")
    wire, calls = Wire(stage), Calls(stage)
    async with stage.processor(calls, store=wire) as processor:
        await until(lambda: len(calls.begun_s) == 5)
        wire.there["heartbeat"] = wire.there["swap"] = 3
        heartbeats = len(wire.heartbeats)
        await until(lambda: len(wire.heartbeats) == heartbeats + 2)
        await asyncio.sleep(2.5)  # the last answered heartbeat was sent long ago
        seeking = asyncio.create_task(processor.seek("earliest", ["0"]))
        with pytest.raises(EvenflowError):
            await seeking
        wire.there.clear()
        await until(lambda: "0" in processor.owned)
        assert processor.owned["0"] == 2


async def test_the_answer_to_a_swap_is_no_heartbeat(stage: Stage) -> None:
    """A heartbeat that took effect before the claim, and is answered after it, does not show it."""
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    wire.there["swap"] = 3
    async with stage.processor(calls, store=wire):
        await until(lambda: len(wire.heartbeats) == 1)
        wire.back["heartbeat"] = 2
        await until(lambda: stage.now_s > 2.5)
        wire.cut = {"heartbeat"}
        await until(lambda: len(wire.heartbeats) == 2)
        assert wire.heartbeats[1].took_effect_s < 3 < wire.heartbeats[1].answered_s
        await asyncio.sleep(20.0)
        assert (
            wire.heartbeats[0].sent_s + PATIENCE_S - 0.1 <= calls.begun_s[-1] < wire.heartbeats[0].sent_s + PATIENCE_S
        )


# --- what is watched, and for how long
async def test_after_an_outage_no_owner_is_dead_before_it_was_watched_for_its_whole_time_to_live(stage: Stage) -> None:
    async with stage.processor(Seen(), instance_id="a") as one, stage.processor(Seen(), instance_id="b") as other:
        await until(lambda: len(one.owned) == len(other.owned) == 1)
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(30.0)
        assert one.owned == other.owned == {}
        stage.store.away = set()
        await until(lambda: len(one.owned) == len(other.owned) == 1)
    assert not [swap.reason for swap in stage.told(Swapped) if swap.reason.startswith(TAKEN_OVER)]


async def test_marks_of_before_a_loss_are_not_compared_with_those_since(stage: Stage) -> None:
    """The store gives them again: an owner that is alive would look as if it had stood still since then."""
    async with stage.processor(Seen(), instance_id="a") as one, stage.processor(Seen(), instance_id="b") as other:
        await until(lambda: len(one.owned) == len(other.owned) == 1)
        coordinator, silent = coordinator_of(one), coordinator_of(other).me.owner
        lost_s = stage.now_s
        stage.store.restore(stage.store.snapshot())
        ledger = await stage.store.peek(GROUP)
        assert ledger is not None
        (mark,) = (member.mark for member in ledger.members if member.owner == silent)
        coordinator._sightings = {silent: Sighting(mark, lost_s - TTL_S, moved=True)}
        assert await coordinator._heartbeat(leaving=False)
        assert stage.told(HistoryLost)
        assert coordinator._sightings[silent] == Sighting(mark, lost_s, moved=False)


async def test_an_outage_begins_the_wait_for_an_older_history_anew(stage: Stage) -> None:
    """Owners of that history may have been cut off as this instance was: it cannot know what they did meanwhile."""
    async with stage.processor(Seen(), instance_id="a") as former:
        await until(lambda: len(former.owned) == 2)
        snapshot = stage.store.snapshot()
    stage.store.restore(snapshot)
    async with stage.processor(Seen(), instance_id="b", longest_ttl_s=20.0) as processor:
        await asyncio.sleep(10.0)
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(10.0)
        stage.store.away = set()
        healed_s = stage.now_s
        await until(lambda: len(processor.owned) == 2)
        assert 20.0 <= stage.now_s - healed_s <= 20.0 + 2 * HEARTBEAT_S


async def test_a_claim_of_an_older_history_is_not_begun(stage: Stage) -> None:
    """The store lost writes while its answer was on its way, and a heartbeat has said so."""
    wire = Wire(stage)
    wire.back["swap"] = 3
    async with stage.processor(Seen(), store=wire):
        await until(lambda: wire.heartbeats)
        snapshot = stage.store.snapshot()
        await until(lambda: stage.now_s > 1)
        stage.store.restore(snapshot)
        await asyncio.sleep(4.0)
        assert stage.told(HistoryLost)
        assert stage.store.asked["seal"] == 0


# --- what is asked for, and begun, once
async def test_what_is_asked_for_is_not_asked_for_again_meanwhile(stage: Stage) -> None:
    wire = Wire(stage)
    wire.there["swap"] = 3
    async with stage.processor(Seen(), store=wire) as processor:
        await until(lambda: len(processor.owned) == 2)
        assert len(wire.heartbeats) > 1
        assert sorted(change.partition for change in wire.swapped) == ["0", "1"]


async def test_while_a_call_runs_its_partition_is_neither_claimed_nor_begun_again(stage: Stage) -> None:
    stage.fill(1, "0")
    wire, calls = Wire(stage), Calls(stage, 60.0)
    async with stage.processor(calls, store=wire, stop_s=200.0) as processor:
        await until(lambda: calls.begun_s)
        wire.cut = {"heartbeat"}
        await until(lambda: not processor.owned)
        wire.cut = set()
        await until(lambda: processor.owned == {"1": 2})
        await asyncio.sleep(20.0)
        lease = (await stage.leases())["0"]
        assert lease.epoch == 1
        begun = coordinator_of(processor)._begin(replace(lease, epoch=9), stage.now_s + PATIENCE_S)
        assert not begun
        assert len(calls.begun_s) == 1
        await until(lambda: processor.owned == {"0": 2, "1": 2})


async def test_an_epoch_begins_once(stage: Stage) -> None:
    wire = Wire(stage)
    async with stage.processor(Seen(), store=wire) as processor:
        await until(lambda: len(processor.owned) == 2)
        lease, coordinator = (await stage.leases())["0"], coordinator_of(processor)
        wire.cut = {"heartbeat"}
        coordinator.lost(coordinator.holds["0"])
        await until(lambda: "0" not in coordinator._occupied())
        assert not coordinator._begin(lease, stage.now_s + PATIENCE_S)
        wire.cut = set()
        await until(lambda: processor.owned.get("0") == 2)


async def test_what_is_too_late_is_not_begun(stage: Stage) -> None:
    async with stage.processor(Seen(), max_partitions=1) as processor:
        await until(lambda: processor.owned)
        (free,) = {"0", "1"} - set(processor.owned)
        lease, coordinator = (await stage.leases())[free], coordinator_of(processor)
        assert not coordinator._begin(replace(lease, epoch=9), stage.now_s)
        assert free not in processor.owned


async def test_a_seek_whose_swap_is_refused_begins_nothing(stage: Stage) -> None:
    """Another instance has the partition by now: the answer shows its lease, and that is not to be begun here."""
    wire = Wire(stage)
    async with stage.processor(Seen(), store=wire) as processor:
        await until(lambda: len(processor.owned) == 2)
        wire.there["swap"] = 1
        seeking = asyncio.create_task(processor.seek("earliest", ["0"]))
        await until(lambda: len(wire.swapped) == 3)
        give_away(stage, "0", owner=Owner("other", 1), epoch=7)
        with pytest.raises(StoreUnavailable, match="did not happen"):
            await seeking
        await asyncio.sleep(1.0)
        assert processor.owned == {"1": 1}


async def test_a_store_that_takes_nothing_back_is_asked_no_more_often_the_longer_it_takes(stage: Stage) -> None:
    stage.fill(5)
    wire, calls = Wire(stage), Calls(stage)
    async with stage.processor(calls, store=wire, checkpoint=Every(seconds=10_000.0)) as processor:
        await until(lambda: len(calls.begun_s) == 10)
        await asyncio.sleep(HEARTBEAT_S)
        wire.cut = {"commit"}
        stage.store.empty()
        await until(lambda: stage.told(HistoryLost))
        asked = []
        for _ in range(2):
            wire.committed.clear()
            await asyncio.sleep(20.0)
            asked.append(len(wire.committed))
        assert 0 < asked[1] < 1.5 * asked[0]
        wire.cut = set()
        await until(lambda: len(processor.owned) == 2)


async def test_whoever_stops_in_the_end_leaves_no_request_behind(stage: Stage) -> None:
    wire = Wire(stage)
    wire.there["swap"] = 3
    before = asyncio.all_tasks()
    async with stage.processor(Seen(), store=wire, stop_s=0.5):
        await until(lambda: wire.swapped)
    assert asyncio.all_tasks() == before


async def test_a_heartbeat_tells_that_the_group_belongs_to_another_hub_by_now(stage: Stage) -> None:
    """It was deleted, and began anew on a hub of the same name."""
    processor = stage.processor(Seen())
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(processor.owned) == 2)
    room = stage.store._stored[GROUP]
    room.state = replace(room.state, source="made-later")
    with pytest.raises(HubReplaced, match="deleted and made again"):
        await serving


def give_away(stage: Stage, partition: str, **facts: Any) -> None:
    """The store has another lease than this instance knows."""
    room = stage.store._stored[GROUP]
    room.revision += 1
    room.leases[partition] = replace(room.leases.pop(partition), revision=room.revision, **facts)


def coordinator_of(processor: Processor) -> Coordinator:
    assert processor._engine is not None
    return processor._engine.coordinator
