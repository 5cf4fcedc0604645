"""When a handler or the source fails: again, in place, in order, and nothing is skipped."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import (
    Every,
    LeaseLost,
    Manual,
    Misconfigured,
    PartitionHalted,
    PositionGone,
    Processor,
    Retry,
    SourceUnavailable,
)
from evenflow.core.notes import notes_of
from evenflow.model import Batch
from evenflow.signals import (
    DeadLettered,
    Gone,
    PartitionStarted,
    PartitionStopped,
    Repeated,
    Stopped,
    Trouble,
)
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import GROUP, Seen, Stage, at, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from evenflow import Event, OwnedPartition, Position
    from evenflow.ports import Reader


# --- the handler
async def test_a_handler_stops_its_partition_and_blames_no_event(stage: Stage, tmp_path: Path) -> None:
    """Whatever is to become of poison: the events are good."""
    calls: list[list[int]] = []
    processor = stage.processor(batch_events=4, dead_letter=f"jsonl:{tmp_path}", checkpoint=Every(events=1))

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        calls.append([event.sequence or 0 for event in events])
        if calls[-1][0] == 4:
            raise PartitionHalted("The blob is damaged.")

    stage.fill(10, "0")
    with pytest.raises(PartitionHalted, match=r"partition 0 stopped at .*The blob is damaged"):
        await processor.serve(until="caught_up")
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7]]
    (stopped,) = stage.told(Stopped)
    assert stopped.position.sequence == 4
    assert not stage.told(DeadLettered)


async def test_a_handlers_own_fence_gives_the_partition_up(stage: Stage) -> None:
    calls: list[tuple[int, int]] = []
    processor = stage.processor(checkpoint=Every(events=1), retry=Retry(attempts=1))

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        calls.append((partition.epoch, event.sequence or 0))
        if calls[-1] == (1, 2):
            raise LeaseLost("Somebody newer has written.")

    stage.fill(4, "0")
    await processor.serve(until="caught_up")
    assert calls == [(1, 0), (1, 1), (1, 2), (2, 2), (2, 3)]
    assert next(one.reason for one in stage.told(PartitionStopped) if one.partition == "0") == "lost"


async def test_a_failing_event_is_tried_again_in_place_and_nothing_is_skipped(stage: Stage) -> None:
    calls: list[int] = []
    processor = stage.processor(checkpoint=Every(events=1))

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        sequence = event.sequence or 0
        calls.append(sequence)
        if sequence == 2 and calls.count(2) < 4:
            assert (await stage.positions())["0"] in (0, 1), "it never passes what was not handled"
            raise ValueError("not yet")

    stage.fill(5, "0")
    await processor.serve(until="caught_up")
    assert calls == [0, 1, 2, 2, 2, 2, 3, 4]
    assert [(one.where, one.partition, one.attempt) for one in stage.told(Trouble)] == [
        ("handler", "0", 1),
        ("handler", "0", 2),
        ("handler", "0", 3),
    ]
    assert len(stage.told(PartitionStarted)) == 2, "the partition keeps its lease"


async def test_a_failing_batch_is_given_again_in_parts(stage: Stage) -> None:
    calls: list[list[int]] = []
    processor = stage.processor(batch_events=4)

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        calls.append([event.sequence or 0 for event in events])
        if len(calls) in (2, 3):
            raise ValueError("not yet")

    stage.fill(10, "0")
    await processor.serve(until="caught_up")
    assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7], [8, 9]]


async def test_pauses_grow_and_begin_anew_once_there_was_progress(stage: Stage) -> None:
    calls: list[tuple[int, float]] = []
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        sequence = event.sequence or 0
        calls.append((sequence, stage.now_s))
        if [number for number, _ in calls].count(sequence) < 7:
            raise ValueError("six times each")

    stage.fill(2, "0")
    await processor.serve(until="caught_up")
    assert [one.attempt for one in stage.told(Trouble)] == [1, 2, 3, 4, 5, 6] * 2
    for told in stage.told(Trouble):
        assert told.again_in_s is not None
        assert 0.01 * 2 ** (told.attempt - 1) <= told.again_in_s <= 0.1 * 2 ** (told.attempt - 1)
    waited = [later - earlier for (one, earlier), (other, later) in pairwise(calls) if one == other]
    assert waited == pytest.approx([told.again_in_s for told in stage.told(Trouble)])


async def test_other_partitions_go_on_meanwhile(stage: Stage) -> None:
    seen = Seen()
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        if partition.id == "0":
            raise ValueError("always")
        await seen(event, partition)

    stage.fill(20)
    async with processor:
        await until(lambda: len(seen.of("1")) == 20)


async def test_a_handler_that_always_fails_keeps_nobody_from_stopping(stage: Stage) -> None:
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 3:
            raise ValueError("poison")

    stage.fill(10, "0")
    async with processor:
        await until(lambda: len(stage.told(Trouble)) > 8)
        asked_s = stage.now_s
    assert stage.now_s - asked_s < 0.5, "it does not wait for the next try"
    assert (await stage.positions())["0"] == 2


async def test_a_handler_that_is_cancelled_from_within_has_failed_like_any_other(stage: Stage) -> None:
    """It awaited a task of its own that was cancelled: nobody asked this partition to end."""
    calls: list[int | None] = []
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        calls.append(event.sequence)
        if calls.count(1) == 1 and event.sequence == 1:
            inner = asyncio.create_task(asyncio.sleep(1.0))
            inner.cancel()
            await inner

    stage.fill(3, "0")
    await processor.serve(until="caught_up")
    assert calls == [0, 1, 1, 2]
    assert [(one.where, one.partition) for one in stage.told(Trouble)] == [("handler", "0")]
    assert len(stage.told(PartitionStarted)) == 2, "and goes on under the same epoch"


@pytest.mark.parametrize("batch", [True, False])
async def test_a_plain_handler_that_fails_is_tried_again(batch: bool) -> None:
    source, store = FakeSource(1), MemoryStore()
    for _ in range(5):
        source.append("0", b"x")
    calls: list[Any] = []
    processor = Processor(source, store, "group", batch_events=2)

    def handle(given: Any, partition: OwnedPartition) -> None:
        calls.append([event.sequence for event in given] if batch else given.sequence)
        if len(calls) == 2:
            raise ValueError("once")

    (processor.on_batch if batch else processor.on_event)(handle)
    await processor.serve(until="caught_up")
    assert calls == ([[0, 1], [2, 3], [2], [3], [4]] if batch else [0, 1, 1, 2, 3, 4])


async def test_a_plain_function_around_an_async_handler_is_told_and_nothing_counts_as_handled() -> None:
    source, store = FakeSource(1), MemoryStore()
    source.append("0", b"x")

    async def handle(event: Event, partition: OwnedPartition) -> None:
        raise AssertionError("it never runs")

    processor = Processor(source, store, "group")
    processor.on_event(lambda event, partition: handle(event, partition))
    told: list[Any] = []
    processor.listen(lambda one: told.append(one.error) if isinstance(one, Trouble) else None)
    async with processor:
        await until(lambda: len(told) > 1, 10.0)
    assert isinstance(told[0], Misconfigured)
    assert [record.position for record in await store.checkpoints(GROUP)] == [at(-1)]


# --- a checkpoint by hand
async def test_what_was_not_marked_comes_again(stage: Stage) -> None:
    processor = stage.processor(checkpoint=Manual())

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 6:
            await partition.checkpoint()

    stage.fill(10, "0")
    await processor.serve(until="caught_up")
    (record,) = [one for one in await stage.store.checkpoints(GROUP) if one.partition == "0"]
    assert record.notes["unmarked"] == {"epoch": record.epoch, "events": 3}, "and its owner says how much"
    seen = Seen()
    await stage.processor(seen, checkpoint=Manual()).serve(until="caught_up")
    assert seen.of("0") == [7, 8, 9]


async def test_a_batch_can_be_marked_in_parts(stage: Stage) -> None:
    processor = stage.processor(checkpoint=Manual())

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        await partition.checkpoint(events[3])

    stage.fill(10, "0")
    await processor.serve(until="caught_up")
    assert (await stage.records())["0"].ordinal == 4
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert seen.of("0") == list(range(4, 10))


async def test_a_checkpoint_under_an_epoch_that_is_over_is_refused(stage: Stage) -> None:
    process = stage.new_process()
    processor = stage.processor(loop=process, checkpoint=Manual())
    outcome: list[str] = []
    begun = asyncio.Event()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        begun.set()
        await asyncio.sleep(1.0)
        try:
            await partition.checkpoint()
        except LeaseLost as error:
            outcome.append(str(error))
            raise

    stage.fill(1, "0")
    process.start(processor.serve())
    await until(begun.is_set)
    process.stall()
    seen = Seen()
    async with stage.processor(seen):
        await until(lambda: seen.of("0") == [0])
        stage.fill(2, "0")
        await until(lambda: seen.of("0") == [0, 1, 2])
        process.resume()
        await until(lambda: outcome)
        assert outcome == ["partition 0: somebody else owns it; this checkpoint was not written."]
    assert (await stage.positions())["0"] == 2


# --- the source
class Broken(FakeSource):
    """A source whose readers do to each batch what one says."""

    def __init__(self, partitions: int = 2) -> None:
        super().__init__(partitions)
        self.opened: list[tuple[str, int | None]] = []
        self.twist: Callable[[Batch], Batch] = lambda batch: batch

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        self.opened.append((partition, after.sequence))
        return _Twisted(self, await super().open(partition, after, epoch=epoch))


class _Twisted:
    def __init__(self, source: Broken, reader: Reader) -> None:
        self._source, self._reader = source, reader

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        return self._source.twist(await self._reader.read(max_events, max_bytes, max_wait_s))

    async def aclose(self) -> None:
        await self._reader.aclose()


@pytest.fixture
def broken(stage: Stage) -> Broken:
    stage.source = source = Broken()
    return source


async def test_a_source_that_drops_the_connection_is_opened_again_where_it_was(stage: Stage, broken: Broken) -> None:
    def twist(batch: Batch) -> Batch:
        if batch.events and batch.events[0].sequence == 4 and len(broken.opened) < 5:
            raise SourceUnavailable("connection lost")
        return batch

    broken.twist = twist
    stage.fill(10, "0")
    seen = Seen()
    await stage.processor(seen, batch_events=2).serve(until="caught_up")
    assert seen.of("0") == list(range(10))
    assert [after for partition, after in broken.opened if partition == "0"] == [-1, 3, 3, 3]
    assert [(one.where, one.attempt) for one in stage.told(Trouble)] == [("source", 1), ("source", 2), ("source", 3)]


async def test_whatever_a_source_raises_it_is_tried_again(stage: Stage, broken: Broken) -> None:
    def twist(batch: Batch) -> Batch:
        if len(broken.opened) < 4:
            raise ZeroDivisionError("a bug in a driver")
        return batch

    broken.twist = twist
    stage.fill(3, "0")
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert seen.of("0") == [0, 1, 2]


async def test_what_a_source_delivers_again_is_dropped(stage: Stage, broken: Broken) -> None:
    last: list[Event] = []

    def twist(batch: Batch) -> Batch:
        before = last[-3:]
        last.extend(batch.events)
        return Batch([*before, *batch.events], batch.resume, batch.size_bytes) if batch.events else batch

    broken.twist = twist
    stage.fill(10, "0")
    seen = Seen()
    await stage.processor(seen, batch_events=5).serve(until="caught_up")
    assert seen.of("0") == list(range(10))
    assert [(one.partition, one.events) for one in stage.told(Repeated)] == [("0", 3)]
    assert (await stage.records())["0"].ordinal == 10


@pytest.mark.parametrize("kind", ["events", "an empty batch"])
async def test_a_source_that_goes_back_does_not_take_progress_back(stage: Stage, broken: Broken, kind: str) -> None:
    """It delivers once more what it delivered long ago, as a batch that resumes there, and then drops the line."""
    stage.source = source = Broken(1)
    batches: list[Batch] = []

    def twist(batch: Batch) -> Batch:
        batches.append(batch)
        if len(batches) == 3:
            return batches[0] if kind == "events" else Batch([], batches[0].resume)
        if len(batches) == 4:
            raise SourceUnavailable("connection lost")
        return batch

    source.twist = twist
    seen = Seen()
    stage.fill(4)
    async with stage.processor(seen, batch_events=2, checkpoint=Every(seconds=10_000.0)):
        await until(lambda: len(source.opened) == 2)
    assert source.opened == [("0", -1), ("0", 3)]
    assert seen.of("0") == [0, 1, 2, 3]
    record = (await stage.records())["0"]
    assert (record.position, record.ordinal) == (at(3), 4)


async def test_a_position_that_moves_without_events_is_kept_too(stage: Stage, broken: Broken) -> None:
    """Some logs have more in them than events: the marks of transactions, other partitions' events."""
    broken.twist = lambda batch: batch if batch.events else Batch((), at(41))
    seen = Seen()
    stage.fill(4, "0")
    async with stage.processor(seen, checkpoint=Every(seconds=1.0)):
        await until(lambda: seen.of("0") == [0, 1, 2, 3])
        await asyncio.sleep(5)
        writes = stage.store.asked["commit"]
        await asyncio.sleep(20)
        assert stage.store.asked["commit"] == writes, "once is enough"
    record = (await stage.records())["0"]
    assert (record.position, record.ordinal) == (at(41), 4)


async def _with_events_gone(stage: Stage) -> None:
    """Events 0 to 2 are handled, 3 to 7 gone, and 8 to 12 there."""
    stage.fill(3, "0")
    await stage.processor(Seen()).serve(until="caught_up")
    stage.fill(10, "0")
    stage.source.trim("0", 8)


async def test_events_that_retention_has_removed_halt_the_partition_and_are_told_once(stage: Stage) -> None:
    await _with_events_gone(stage)
    seen, errors = Seen(), list[Exception]()
    processor = stage.processor(seen)

    @processor.on_error
    async def told(error: Exception, partition: OwnedPartition) -> None:
        errors.append(error)

    with pytest.raises(PartitionHalted, match=r"partition 0 is halted after 2: .* no longer kept"):
        await processor.serve(until="caught_up")
    assert seen.of("0") == []
    assert [(one.after, one.to) for one in stage.told(Gone)] == [(at(2), None)]
    assert [type(error) for error in errors] == [PositionGone]
    assert (await stage.positions())["0"] == 2
    record = (await stage.records())["0"]
    assert notes_of(record).gone == record.epoch, "whoever looks cannot always see it by numbers"


async def test_a_partition_whose_events_are_gone_goes_on_after_a_seek(stage: Stage) -> None:
    await _with_events_gone(stage)
    seen = Seen()
    async with stage.processor(seen) as processor:
        await until(lambda: stage.told(Gone) != [])
        await processor.seek("earliest", ["0"])
        await until(lambda: seen.of("0") == [8, 9, 10, 11, 12])


@pytest.mark.parametrize(("policy", "handled", "passed"), [("earliest", [8, 9, 10, 11, 12], 5), ("latest", [], 10)])
@pytest.mark.parametrize("checkpoint", [Every(seconds=10_000.0), Manual()])
async def test_on_gone_goes_on_and_tells_how_many_were_passed_over(
    stage: Stage, policy: Any, handled: list[int], passed: int, checkpoint: Any
) -> None:
    await _with_events_gone(stage)
    seen = Seen()
    async with stage.processor(seen, on_gone=policy, checkpoint=checkpoint):
        await until(lambda: stage.told(Gone) != [] and seen.of("0") == handled)
        where = 2 + passed
        assert (await stage.positions())["0"] in (where, 12)  # it is durable before anything else happens
        stage.fill(1, "0")
        await until(lambda: seen.of("0") == [*handled, 13])
    [told] = stage.told(Gone)
    assert (told.after, told.to, told.events) == (at(2), at(where), passed)
    assert f"moved from 2 to {where}, {passed} events skipped" in str(told)


async def test_on_gone_holds_for_a_start_that_retention_overtook_too(stage: Stage) -> None:
    stage.fill(10, "0")
    stage.source.trim("0", 4)
    with pytest.raises(PositionGone):
        await stage.processor(Seen(), start={"0": at(1)}).serve()
    seen = Seen()
    async with stage.processor(seen, start={"0": at(1)}, on_gone="earliest"):
        await until(lambda: len(seen.of("0")) >= 6)
    assert seen.of("0") == [4, 5, 6, 7, 8, 9]
    [told] = stage.told(Gone)
    assert (told.after, told.to) == (at(1), at(3))


async def test_who_goes_back_because_the_log_was_cut_is_told_so(stage: Stage) -> None:
    stage.fill(5, "0")
    await stage.processor(Seen()).serve(until="caught_up")
    del stage.source._logs["0"].events[2:]
    async with stage.processor(Seen(), on_gone="latest"):
        await until(lambda: stage.told(Gone) != [])
    assert "moved from 4 to 1, BACK by 3 events, which may be handled again" in str(stage.told(Gone)[0])


async def test_a_log_that_ends_before_the_checkpoint_halts_too_and_is_not_waited_for(stage: Stage) -> None:
    """Once it had grown beyond the checkpoint again, what came in between would be lost."""
    stage.fill(5, "0")
    await stage.processor(Seen()).serve(until="caught_up")
    stage.source._logs["0"].events.clear()
    seen = Seen()
    async with stage.processor(seen):
        await until(lambda: stage.told(Gone) != [])
        stage.fill(9, "0")
        await asyncio.sleep(100)
    assert seen.of("0") == []


async def test_a_hold_that_fails_for_our_own_mistake_ends_the_processor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenflow.runtime.pump import Pump

    async def mistake(self: Pump) -> None:
        raise ZeroDivisionError("our own")

    monkeypatch.setattr(Pump, "_find_end", mistake)
    with pytest.raises(ZeroDivisionError, match="our own"):
        await stage.processor(Seen()).serve()
    assert stage.told(PartitionStopped) == []
