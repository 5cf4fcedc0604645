"""What another interface on top of the processor needs of it: idle calls, marks of any time, again from the checkpoint,
and a stop hook for every start hook."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from evenflow import LeaseLost, Manual, Retry
from evenflow.signals import Skipped, Trouble
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import Stage, until

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition, Position
    from evenflow.model import Batch
    from evenflow.ports import Reader

IDLE_S = 5.0


async def test_who_wants_to_is_told_when_nothing_comes(stage: Stage) -> None:
    processor = stage.processor(store=stage.store)
    told_s: list[float] = []
    handled_s: list[float] = []

    async def idle(partition: OwnedPartition) -> None:
        if partition.id == "0":
            told_s.append(stage.now_s)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        handled_s.append(stage.now_s)

    processor._handlers.idle, processor._handlers.idle_s = idle, IDLE_S
    async with processor:
        await until(lambda: len(told_s) == 3)
        assert [round(after - before) for before, after in pairwise(told_s)] == [IDLE_S, IDLE_S]
        stage.fill(1, "0")
        await until(lambda: len(told_s) == 4)
    assert len(handled_s) == 1
    assert round(told_s[3] - handled_s[0]) == IDLE_S


async def test_a_batch_may_wait_for_more(stage: Stage) -> None:
    """Until it is full, or until so long after the last call; then it is called with what there is, or idle."""
    processor = stage.processor(store=stage.store, batch_events=4)
    told: list[tuple[float, int]] = []

    @processor.on_batch
    async def handle(events: list[Event], partition: OwnedPartition) -> None:
        told.append((stage.now_s, len(events)))

    async def idle(partition: OwnedPartition) -> None:
        if partition.id == "0":
            told.append((stage.now_s, 0))

    handlers = processor._handlers
    handlers.idle, handlers.idle_s, handlers.gathers = idle, IDLE_S, True
    async with processor:
        await until(lambda: len(told) == 1)
        for _ in range(3):
            await asyncio.sleep(1.0)
            stage.fill(1, "0")
        await until(lambda: len(told) == 2)
        stage.fill(9, "0")
        await until(lambda: len(told) == 5)
    assert [count for _, count in told] == [0, 3, 4, 4, 1]
    gaps = [round(after - before) for (before, _), (after, _) in pairwise(told)]
    assert gaps == [IDLE_S, 0, 0, IDLE_S]


async def test_each_failure_of_the_handler_is_told_where_one_outage_is_told_once(stage: Stage) -> None:
    told: list[str] = []
    processor = stage.processor(retry=Retry(attempts=3), on_poison="skip", breaker=None)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        raise ValueError("bad")

    @processor.on_error
    async def on_error(error: Exception, partition: OwnedPartition) -> None:
        if partition.id == "0":
            told.append(type(error).__name__)

    processor._handlers.errors_once = True
    stage.store.away = {"seal"}
    stage.fill(2, "0")
    async with processor:
        await until(lambda: stage.store.asked["seal"] > 6)
        stage.store.away = set()
        await until(lambda: len(stage.told(Skipped)) == 2)
    assert told == ["StoreUnavailable", *["ValueError"] * 6]


async def test_what_is_given_up_begins_again_after_its_checkpoint_under_a_new_epoch(stage: Stage) -> None:
    processor = stage.processor(checkpoint=Manual())
    seen: list[tuple[int, int]] = []
    kept: list[tuple[OwnedPartition, int, Event]] = []

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        assert event.sequence is not None
        seen.append((partition.epoch, event.sequence))
        kept.append((partition, partition.ordinal + 1, event))
        if event.sequence == 3 and partition.epoch == 1:
            owned, ordinal, earlier = kept[1]
            await owned.mark(ordinal, earlier)
            await partition.give_up(2.0)

    stage.fill(5, "0")
    async with processor:
        await until(lambda: bool(seen) and seen[-1] == (2, 4))
    assert seen == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)]
    assert not stage.told(Trouble)


class Robbed(FakeSource):
    """Its first reader of each partition is disconnected once it has read something."""

    robbed: set[str]

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        reader = await super().open(partition, after, epoch=epoch)
        return reader if epoch > 1 else RobbedReader(reader)


class RobbedReader:
    def __init__(self, reader: Reader) -> None:
        self._reader, self._reads = reader, 0

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        self._reads += 1
        if self._reads > 1:
            raise LeaseLost("somebody else reads it")
        return await self._reader.read(max_events, max_bytes, max_wait_s)

    async def aclose(self) -> None:
        await self._reader.aclose()


async def test_a_reader_that_is_robbed_ends_its_hold_with_the_stop_hook_and_it_is_taken_again(stage: Stage) -> None:
    stage.source = Robbed(2)
    stage.fill(3, "0")
    processor = stage.processor()
    lines: list[str] = []

    @processor.on_partition_start
    async def start(partition: OwnedPartition) -> None:
        lines.append(f"{partition.id} starts in {partition.epoch}")

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        lines.append(f"{partition.id} stops in {partition.epoch}: {reason}")

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        pass

    async with processor:
        await until(lambda: "0 starts in 2" in lines)
        assert [line for line in lines if line.startswith("0")] == [
            "0 starts in 1",
            "0 stops in 1: lost",
            "0 starts in 2",
        ]
    assert not stage.told(Trouble)
