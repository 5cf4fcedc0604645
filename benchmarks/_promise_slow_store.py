"""A thousand partitions on a store that takes checkpoints one by one, 25 ms each: a planned stop under load.

It takes seals as it does checkpoints, since both write the same record. Heartbeats and swaps are as quick as ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.harness import Result, at_least, at_most, figure, say
from evenflow import Event, OwnedPartition, Processor
from evenflow.model import Group
from evenflow.runtime.settings import Settings
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Checkpoint, Outcome

PARTITIONS = 1_000
EACH_S = 0.025
RUNS_S = 90.0
"""From when all partitions have started until the stop begins."""
GAP_S = 1.0
"""Between two events of one partition."""
GAP_MOST_S = 60.0
GROUP = Group("fake", "fake", "bench")
STOP_S = Settings(group="bench").stop_s


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.each_s = EACH_S
        self.written_s: defaultdict[str, list[float]] = defaultdict(list)
        self.asked: Counter[str] = Counter()
        self._desk = asyncio.Lock()

    async def seal(
        self, group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        await self._write(1)
        self.written_s[partition].append(perf_counter())
        return await super().seal(group, partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        self.asked["commit"] += 1
        await self._write(len(checkpoints))
        self.asked["answered"] += 1
        for checkpoint in checkpoints:
            self.written_s[checkpoint.partition].append(perf_counter())
        return await super().commit(group, checkpoints)

    async def _write(self, checkpoints: int) -> None:
        async with self._desk:
            await asyncio.sleep(checkpoints * self.each_s)


class Seen:
    def __init__(self) -> None:
        self.times: Counter[tuple[str, int]] = Counter()
        self.started: set[str] = set()
        self.all_started = asyncio.Event()

    async def handle(self, event: Event, partition: OwnedPartition) -> None:
        assert event.sequence is not None
        self.times[partition.id, event.sequence] += 1

    async def start(self, partition: OwnedPartition) -> None:
        self.started.add(partition.id)
        if len(self.started) == PARTITIONS:
            self.all_started.set()

    def processor(self, source: FakeSource, store: MemoryStore) -> Processor:
        processor = Processor(source, store, "bench")
        processor.on_event(self.handle)
        processor.on_partition_start(self.start)
        return processor


def measure() -> Result:
    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(_measure())
    finally:
        logging.disable(logging.NOTSET)


async def _measure() -> Result:
    source, store, seen = FakeSource(PARTITIONS), SlowStore(), Seen()
    producing = asyncio.create_task(_produce(source))
    began_s = perf_counter()
    async with seen.processor(source, store):
        await seen.all_started.wait()
        say(f"all partitions have started after {perf_counter() - began_s:.0f} s")
        await asyncio.sleep(RUNS_S)
        asked_s = perf_counter()
        say(f"stopping; {store.asked['answered']} of {store.asked['commit']} requests were answered")
    stop_s = perf_counter() - asked_s
    producing.cancel()
    ledger = await store.peek(GROUP)
    owned = sum(lease.owner is not None for lease in ledger.leases) if ledger is not None else PARTITIONS
    gaps_s = [later - earlier for times in store.written_s.values() for earlier, later in pairwise(times)]
    store.each_s = 0.0
    await seen.processor(source, store).serve(until="caught_up", give_up_s=60.0)
    sent = sum(source.newest(name) + 1 for name in source.partition_ids)
    return Result(
        [
            figure("slow_store: planned stop", [stop_s], "s"),
            figure("slow_store: between two checkpoints of a partition", gaps_s, "s"),
            figure("slow_store: commit requests, answered", [store.asked["answered"]], "requests"),
            figure("slow_store: events", [sent], "events"),
        ],
        [
            at_most("slow_store: planned stop, s", stop_s, STOP_S),
            at_most("slow_store: repeats", sum(seen.times.values()) - len(seen.times), 0),
            at_most("slow_store: lost", sent - len(seen.times), 0),
            at_most("slow_store: partitions still owned after the stop", owned, 0),
            at_least("slow_store: partitions checkpointed", len(store.written_s), PARTITIONS),
            at_most("slow_store: longest between two checkpoints, s", max(gaps_s), GAP_MOST_S),
            at_most("slow_store: unanswered requests", store.asked["commit"] - store.asked["answered"], 3),
        ],
    )


async def _produce(source: FakeSource) -> None:
    while True:
        for name in source.partition_ids:
            source.append(name, b"x")
        await asyncio.sleep(GAP_S)
