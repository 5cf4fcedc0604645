"""From when deadlines and silence count, where requests to the store take their time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec.structs import replace

from evenflow import StoreUnavailable
from evenflow.errors import EvenflowError
from evenflow.model import Owner
from evenflow.observe.happenings import PartitionStopped
from tests.unit.runtime.stage import GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Change, Checkpoint, Cursor, Group, Ledger, Member, Outcome

BEAT_S, TTL_S, PATIENCE_S = 2.0, 8.0, 7.0


class Beat(NamedTuple):
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
        self.beats: list[Beat] = []

    async def beat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        sent_s = self._stage.now_s
        await self._there("beat")
        took_effect_s, ledger = self._stage.now_s, await self._store.beat(group, member, since)
        await asyncio.sleep(self.back["beat"])
        self.beats.append(Beat(sent_s, took_effect_s, self._stage.now_s))
        return ledger

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        await self._there("swap")
        return await self._store.swap(group, changes)

    async def seal(
        self, group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        await self._there("seal")
        return await self._store.seal(group, partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
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
    far.there["beat"] = 1  # the beat sees what was written a second after it was sent
    process = stage.new_process()
    process.start(stage.processor(Seen(), loop=process, store=near, instance_id="a").serve())
    await until(lambda: near.beats)
    async with stage.processor(Seen(), store=far, instance_id="b") as other:
        await until(lambda: len(other.owned) == 1)
        await asyncio.sleep(20.0)
        beats = len(near.beats)
        await until(lambda: len(near.beats) > beats)
        process.dead = True
        await until(lambda: len(other.owned) == 2)
        first = next(beat for beat in far.beats if beat.took_effect_s > near.beats[-1].took_effect_s)
        assert far.beats[-1].sent_s - first.answered_s >= TTL_S


async def test_a_deadline_counts_from_the_sending_of_the_beat(stage: Stage) -> None:
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    wire.there["beat"] = wire.back["beat"] = 1
    async with stage.processor(calls, store=wire):
        await until(lambda: len(calls.begun_s) > 100)
        wire.cut = {"beat"}
        await asyncio.sleep(20.0)
        assert wire.beats[-1].sent_s + PATIENCE_S - 0.1 <= calls.begun_s[-1] < wire.beats[-1].sent_s + PATIENCE_S


async def test_a_claims_deadline_counts_from_the_last_beat_that_was_answered_before_it_was_sent(stage: Stage) -> None:
    """Beats that are answered while a claim is on its way do not show it."""
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    wire.there["swap"] = 3
    async with stage.processor(calls, store=wire):
        await until(lambda: len(wire.beats) == 2)
        wire.cut = {"beat"}
        await asyncio.sleep(20.0)
        assert wire.beats[0].sent_s + PATIENCE_S - 0.1 <= calls.begun_s[-1] < wire.beats[0].sent_s + PATIENCE_S


async def test_a_seeks_deadline_counts_from_the_last_beat_that_was_answered_before_its_swap(stage: Stage) -> None:
    stage.fill(10_000, "0")
    wire, calls = Wire(stage), Calls(stage)
    async with stage.processor(calls, store=wire) as processor:
        await until(lambda: len(calls.begun_s) > 100)
        wire.there["swap"] = 3
        beats = len(wire.beats)
        seeking = asyncio.create_task(processor.seek("earliest", ["0"]))
        await until(lambda: len(wire.beats) > beats)
        wire.cut = {"beat"}
        await seeking
        await asyncio.sleep(20.0)
        before = wire.beats[beats - 1].sent_s
        assert before + PATIENCE_S - 0.1 <= calls.begun_s[-1] < before + PATIENCE_S


# --- what a beat must show
@pytest.mark.parametrize("facts", [{"owner": Owner("other", 1)}, {"epoch": 2}], ids=["another owner", "another epoch"])
async def test_a_deadline_moves_only_where_the_ledger_shows_me_in_my_epoch(stage: Stage, facts: dict[str, Any]) -> None:
    """A store that lost writes without a sign may give an epoch to another owner."""
    async with stage.processor(Seen()) as processor:
        await until(lambda: processor.owned == {"0": 1, "1": 1})
        room = stage.store._rooms[GROUP]
        room.revision += 1
        room.leases["0"] = replace(room.leases.pop("0"), revision=room.revision, **facts)
        await until(lambda: any(stop.partition == "0" for stop in stage.told(PartitionStopped)), 2 * BEAT_S)
        assert processor.owned.get("0") != 1
        assert processor.owned["1"] == 1


async def test_what_was_answered_after_its_deadline_is_adopted_by_the_next_beat_and_not_begun_before(
    stage: Stage,
) -> None:
    """A seek that took so long: the lease is mine under its new epoch, and nothing was begun in it yet."""
    stage.fill(5, "0")
    wire, calls = Wire(stage), Calls(stage)
    async with stage.processor(calls, store=wire) as processor:
        await until(lambda: len(calls.begun_s) == 5)
        wire.there["beat"] = wire.there["swap"] = 3
        beats = len(wire.beats)
        await until(lambda: len(wire.beats) == beats + 2)
        await asyncio.sleep(2.5)  # the last answered beat was sent long ago
        seeking = asyncio.create_task(processor.seek("earliest", ["0"]))
        with pytest.raises(EvenflowError):
            await seeking
        wire.there.clear()
        await until(lambda: "0" in processor.owned)
        assert processor.owned["0"] == 2
