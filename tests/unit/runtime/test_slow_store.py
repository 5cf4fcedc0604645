"""A store that takes checkpoints one by one, slowly: all are written in turn, and a planned stop comes to its end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every
from evenflow.runtime.parts import SEALS_AT_ONCE
from evenflow.signals import Left, PartitionStarted, Trouble
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Change, Checkpoint, Group, Outcome

PARTITIONS = 200
EACH_S = 0.025


class SlowStore(MemoryStore):
    """Takes some kinds of requests one by one, `each_s` an item. It works on what nobody waits for any more, too."""

    def __init__(self, **each_s: float) -> None:
        super().__init__(wall=lambda: 0.0)
        self.each_s = each_s
        self.asked: defaultdict[str, list[int]] = defaultdict(list)
        """How many items each request of a kind had."""
        self.written_s: defaultdict[str, list[float]] = defaultdict(list)
        """When each partition was checkpointed."""
        self.at_once: defaultdict[str, int] = defaultdict(int)
        self.most_at_once: defaultdict[str, int] = defaultdict(int)
        self._free_s = 0.0

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        await self._take("swap", len(changes))
        return await super().swap(group, changes)

    async def seal(
        self, group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        await self._take("seal", 1)
        return await super().seal(group, partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        await self._take("commit", len(checkpoints))
        for checkpoint in checkpoints:
            self.written_s[checkpoint.partition].append(asyncio.get_running_loop().time())
        return await super().commit(group, checkpoints)

    async def _take(self, kind: str, items: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self.asked[kind].append(items)
        self._free_s = max(now_s, self._free_s) + items * self.each_s.get(kind, 0.0)
        self.at_once[kind] += 1
        self.most_at_once[kind] = max(self.most_at_once[kind], self.at_once[kind])
        try:
            await asyncio.sleep(self._free_s - now_s)
        finally:
            self.at_once[kind] -= 1


async def produce(stage: Stage, every_s: float) -> None:
    while True:
        stage.fill(1)
        await asyncio.sleep(every_s)


def big(stage: Stage, store: SlowStore, handler: Any, **options: Any) -> Any:
    stage.source = FakeSource(PARTITIONS, wall_us=lambda: 0)
    return stage.processor(handler, store=store, **options)


async def started(stage: Stage) -> None:
    await until(lambda: len(stage.told(PartitionStarted)) == PARTITIONS)


# --- commits
async def test_every_partition_is_checkpointed_again_and_again(stage: Stage) -> None:
    store, seen = SlowStore(commit=EACH_S), Seen()
    async with big(stage, store, seen, checkpoint=Every(seconds=1.0)):
        await started(stage)
        producing = asyncio.create_task(produce(stage, 0.5))
        await asyncio.sleep(60.0)
        producing.cancel()
    assert len(store.written_s) == PARTITIONS
    assert all(len(times) > 5 for times in store.written_s.values())
    gaps_s = [later - earlier for times in store.written_s.values() for earlier, later in pairwise(times)]
    assert max(gaps_s) < 2.5 * PARTITIONS * EACH_S
    assert stage.told(Trouble) == []


async def test_a_planned_stop_writes_all_and_leaves_in_time(stage: Stage) -> None:
    store, seen = SlowStore(commit=EACH_S), Seen()
    async with big(stage, store, seen, checkpoint=Every(seconds=1.0)):
        await started(stage)
        producing = asyncio.create_task(produce(stage, 0.2))
        await asyncio.sleep(20.0)
        asked_s = stage.now_s
    producing.cancel()
    assert stage.now_s - asked_s < PARTITIONS * EACH_S + 3.0
    assert len(stage.told(Left)) == 1
    records = {record.partition: record for record in await store.checkpoints(GROUP)}
    handled = {name: max(seen.of(name)) for name in stage.source.partition_ids}
    assert {name: record.position.sequence for name, record in records.items()} == handled
    assert len(seen) == len(set(seen))
    ledger = await store.peek(GROUP)
    assert ledger is not None
    assert {lease.owner for lease in ledger.leases} == {None}


async def test_what_is_not_sealed_yet_takes_no_turn(stage: Stage) -> None:
    """While an instance starts, it seals some partitions and checkpoints others, which then come again in turn."""
    store, seen = SlowStore(commit=EACH_S, seal=3 * EACH_S), Seen()
    async with big(stage, store, seen, checkpoint=Every(seconds=1.0)):
        producing = asyncio.create_task(produce(stage, 0.5))
        await started(stage)
        await asyncio.sleep(20.0)
        producing.cancel()
    gaps_s = [later - earlier for times in store.written_s.values() for earlier, later in pairwise(times)]
    assert max(gaps_s) < 2.5 * PARTITIONS * EACH_S


async def test_a_store_that_is_quick_takes_all_in_one_request(stage: Stage) -> None:
    store, seen = SlowStore(commit=0.0001), Seen()
    async with big(stage, store, seen, checkpoint=Every(seconds=1.0)):
        await started(stage)
        await asyncio.sleep(0.5)  # between two rounds
        for _ in range(4):
            stage.fill(1)
            await asyncio.sleep(1.0)
    assert store.asked["commit"] == [128, PARTITIONS - 128, PARTITIONS, PARTITIONS, PARTITIONS]


async def test_one_that_a_caller_waits_for_does_not_wait_for_all_the_others(stage: Stage) -> None:
    store, waits_s = SlowStore(commit=3 * EACH_S), list[float]()

    async def handle(event: Any, partition: Any) -> None:
        if partition.id == "7" and event.sequence % 10 == 9:
            asked_s = stage.now_s
            await partition.checkpoint()
            waits_s.append(stage.now_s - asked_s)

    async with big(stage, store, handle, checkpoint=Every(seconds=1.0)):
        await started(stage)
        producing = asyncio.create_task(produce(stage, 0.2))
        await asyncio.sleep(40.0)
        producing.cancel()
        settled = waits_s[1:]  # during the first, the size of a request was still to be found
    assert len(settled) > 3
    assert max(settled) < 4.0, "it is in the request after the one under way"


async def test_the_rest_of_a_round_is_written_though_one_request_was_not_answered(stage: Stage) -> None:
    class Forgetful(SlowStore):
        async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
            if len(self.asked["commit"]) == 1:
                self.asked["commit"].append(len(checkpoints))
                await asyncio.sleep(1e6)
            return await super().commit(group, checkpoints)

    store, seen = Forgetful(commit=0.0001), Seen()
    stage.source = FakeSource(PARTITIONS, wall_us=lambda: 0)
    stage.fill(1)
    async with stage.processor(seen, store=store, checkpoint=Every(seconds=1.0)):
        await until(lambda: stage.told(Trouble))
        assert len(store.written_s) == 128, "what was answered before is kept"
        await until(lambda: len(store.written_s) == PARTITIONS)
    assert store.asked["commit"] == [128, PARTITIONS - 128, 18, PARTITIONS - 128 - 18]


# --- seals and swaps
async def test_seals_take_turns(stage: Stage) -> None:
    store, seen = SlowStore(seal=EACH_S), Seen()
    async with big(stage, store, seen):
        await started(stage)
    assert store.most_at_once["seal"] == SEALS_AT_ONCE
    assert store.asked["seal"] == [1] * PARTITIONS
    assert stage.told(Trouble) == []


async def test_seals_come_through_a_store_that_would_answer_none_of_so_many(stage: Stage) -> None:
    """It works on those that were given up, too: tried again as many at a time, none would ever be answered."""
    store, seen = SlowStore(seal=0.3), Seen()
    stage.source = FakeSource(40, wall_us=lambda: 0)
    async with stage.processor(seen, store=store):
        await until(lambda: len(stage.told(PartitionStarted)) == 40, 100.0)
    assert len(store.asked["seal"]) < 40 + 2 * SEALS_AT_ONCE


async def test_one_that_gives_up_its_turn_leaves_it_to_the_next(stage: Stage) -> None:
    parts, order = stage.parts(), list[str]()

    async def seal(name: str) -> None:
        async with parts.sealing():
            order.append(name)
            await asyncio.sleep(1.0)

    first = [asyncio.create_task(seal("first")) for _ in range(SEALS_AT_ONCE)]
    await asyncio.sleep(0.5)
    late = [asyncio.create_task(seal(name)) for name in ("given up", "second", "given up at its turn", "third")]
    await asyncio.sleep(0.1)
    late[0].cancel()
    for task in first[1:]:
        task.cancel()
    await asyncio.sleep(0)
    late[2].cancel()
    await asyncio.wait([*first, *late])
    assert order[SEALS_AT_ONCE:] == ["second", "third"]
    assert parts.seals._under_way == 0


async def test_a_stop_does_not_wait_for_seals_that_have_not_begun(stage: Stage) -> None:
    store, seen = SlowStore(seal=0.05), Seen()
    async with big(stage, store, seen):
        await until(lambda: store.asked["seal"])
        asked_s = stage.now_s
    assert stage.now_s - asked_s < 2 * SEALS_AT_ONCE * 0.05 + 0.5
    assert len(store.asked["seal"]) < PARTITIONS


@pytest.mark.parametrize("each_s", [0.0, EACH_S, 0.1])
async def test_claims_and_releases_are_made_as_the_store_bears(stage: Stage, each_s: float) -> None:
    store, seen = SlowStore(swap=each_s), Seen()
    async with big(stage, store, seen, stop_s=60.0):
        began_s = stage.now_s
        await started(stage)
        assert stage.now_s - began_s < 2 * PARTITIONS * each_s + 10.0
        asked_s = stage.now_s
    assert stage.now_s - asked_s < 2 * PARTITIONS * each_s + 10.0
    assert len(stage.told(Left)) == 1
    ledger = await store.peek(GROUP)
    assert ledger is not None
    assert {lease.owner for lease in ledger.leases} == {None}
    assert max(store.asked["swap"]) == 128 if each_s else PARTITIONS
