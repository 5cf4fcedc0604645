"""One partition from the source to the checkpoint: where it begins, where it goes on, and how much it reads ahead."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from evenflow import Every, LeaseLost, Manual, PartitionHalted, Position, PositionGone, SourceUnavailable
from evenflow.model import Batch, Event, Outcome
from evenflow.runtime.hold import Hold
from evenflow.runtime.pump import PREFETCH_LEAST_BYTES, PREFETCH_MOST_BYTES, Pump
from evenflow.signals import Trouble
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import PatchyStore, Seen, Stage, at, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow import OwnedPartition
    from evenflow.model import Bounds, Change, Checkpoint, Cursor, Group, Ledger, Member, PartitionId
    from evenflow.ports import Reader
    from evenflow.runtime.calls import Caller
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.pump import Coordination

SELDOM = Every(seconds=10_000.0)
KIB, MIB = 1024, 1024 * 1024


# --- how much is read ahead
class Holding:
    """Stands where the coordinator does."""

    def __init__(self, count: int) -> None:
        self._count = count

    def count(self) -> int:
        return self._count


@pytest.mark.parametrize(
    ("held", "most_bytes"),
    [(0, 4 * MIB), (1, 4 * MIB), (4, 4 * MIB), (16, MIB), (64, 256 * KIB), (256, 64 * KIB), (10_000, 64 * KIB)],
)
async def test_partitions_share_what_a_processor_may_keep(stage: Stage, held: int, most_bytes: int) -> None:
    parts = stage.parts(prefetch_bytes=16 * MIB)
    pump = Pump(
        parts,
        Hold("0", 1, 100.0),
        cast("Caller", None),
        cast("Committer", None),
        cast("Coordination", Holding(held)),
    )
    assert (PREFETCH_LEAST_BYTES, PREFETCH_MOST_BYTES) == (64 * KIB, 4 * MIB)
    assert pump._most_bytes() == most_bytes


async def test_a_slow_handler_bounds_what_is_read(stage: Stage) -> None:
    reads: list[int] = []

    class Counting(FakeSource):
        async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
            reader = await super().open(partition, after, epoch=epoch)
            read = reader.read

            async def counted(max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
                batch = await read(max_events, max_bytes, max_wait_s)
                reads.append(len(batch.events))
                return batch

            reader.read = counted  # type: ignore[method-assign]
            return reader

    async def handle(event: Event, partition: OwnedPartition) -> None:
        await asyncio.sleep(1000.0)

    stage.source = Counting(1)
    stage.fill(10_000)
    async with stage.processor(handle, batch_events=100, prefetch_events=500, stop_s=1.0):
        await asyncio.sleep(100.0)
        assert sum(reads) <= 500 + 100


# --- beside processors of another make
class SharedStore(PatchyStore):
    """A store whose layout others use, too."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shared = shared


@pytest.mark.parametrize(("shared", "epochs"), [(True, {0}), (False, {1})])
async def test_readers_of_a_shared_group_are_as_those_of_the_others(
    stage: Stage, shared: bool, epochs: set[int]
) -> None:
    """Who read with an epoch would keep those out who know of none, whatever their leases say."""
    opened: set[int] = set()

    class Watched(FakeSource):
        async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
            opened.add(epoch)
            return await super().open(partition, after, epoch=epoch)

    stage.source, stage.store = Watched(2), SharedStore(shared=shared)
    stage.fill(3)
    await stage.processor(Seen()).serve(until="caught_up")
    assert opened == epochs


async def test_a_reader_that_was_put_out_ends_the_hold_at_once(stage: Stage) -> None:
    """In the middle of what was read: the next event is not handled, somebody else has it."""
    readers: list[Reader] = []

    class Stolen(FakeSource):
        async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
            reader = await super().open(partition, after, epoch=epoch)
            read, readers[:] = reader.read, [*readers, reader]
            is_first = len(readers) == 1

            async def once(max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
                batch = await read(max_events, max_bytes, max_wait_s)
                if is_first and not batch.events:
                    raise LeaseLost("somebody else reads it")
                return batch

            reader.read = once  # type: ignore[method-assign]
            return reader

    seen = Seen()

    async def handle(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        await asyncio.sleep(1.0)

    stage.source = Stolen(1)
    stage.fill(10)
    async with stage.processor(handle, checkpoint=Every(events=1)):
        await until(lambda: len(readers) == 2)
        assert 0 < len(seen) < 10
        await until(lambda: len(seen) == 10)
    assert seen.of("0") == list(range(10)), "and it goes on where it stopped, under a new epoch"
    assert (await stage.records())["0"].epoch == 2


# --- where it begins
async def test_a_checkpoint_wins_over_a_start_that_retention_has_removed(stage: Stage) -> None:
    stage.fill(10)
    await stage.processor(Seen(), start=at(1)).serve(until="caught_up")
    stage.source.trim("0", 8)
    stage.source.trim("1", 8)
    stage.fill(2)
    seen = Seen()
    await stage.processor(seen, start=at(1)).serve(until="caught_up")
    assert seen.of("0") == seen.of("1") == [10, 11]


async def test_only_its_own_checkpoint_wins(stage: Stage) -> None:
    stage.fill(10)
    with pytest.raises(PartitionHalted, match="left without an owner"):
        await stage.processor(Seen(), start=at(1), max_partitions=1).serve(until="caught_up")
    assert len(await stage.records()) == 1
    for partition in "01":
        stage.source.trim(partition, 8)
    with pytest.raises(PositionGone):
        await stage.processor(Seen(), start=at(1)).serve()


class Plain:
    """A store that nobody can look into."""

    def __init__(self, stage: Stage) -> None:
        self._store = stage.store

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        return await self._store.heartbeat(group, member, since)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        return await self._store.swap(group, changes)

    async def seal(
        self, group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        return await self._store.seal(group, partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        return await self._store.commit(group, checkpoints)

    async def aclose(self) -> None: ...


async def test_a_store_that_can_do_no_more_than_it_must_is_enough(stage: Stage) -> None:
    seen = Seen()
    stage.fill(5)
    await stage.processor(seen, store=Plain(stage)).serve(until="caught_up")
    stage.fill(5)
    await stage.processor(seen, store=Plain(stage)).serve(until="caught_up")
    assert seen.of("0") == seen.of("1") == list(range(10))


async def test_a_store_that_does_not_tell_whether_there_is_a_checkpoint_lets_a_removed_start_be_an_error(
    stage: Stage,
) -> None:
    stage.fill(10)
    stage.source.trim("0", 8)
    stage.source.trim("1", 8)
    with pytest.raises(PositionGone):
        await stage.processor(Seen(), store=Plain(stage), start=at(1)).serve()


async def test_who_stops_before_the_seal_has_not_started(stage: Stage) -> None:
    told: list[str] = []
    processor = stage.processor(Seen())

    @processor.on_partition_start
    async def start(partition: OwnedPartition) -> None:
        told.append("start")

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        told.append("stop")

    stage.fill(3)
    stage.store.away = {"seal"}
    async with processor:
        await until(lambda: len(stage.told(Trouble)) > 3)
    assert told == []
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}


async def test_who_is_lost_before_its_seal_does_not_start(stage: Stage) -> None:
    """Somebody with a higher epoch has sealed already."""
    processor = stage.processor(seen := Seen())
    stage.fill(3)
    seal = stage.store.seal

    async def overtaken(
        group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        if epoch == 1:
            raise LeaseLost("sealed under a higher epoch")
        return await seal(group, partition, epoch, default, unplanned=unplanned)

    stage.store.seal = overtaken  # type: ignore[method-assign]
    async with processor:
        await until(lambda: len(seen) == 6)
        assert set(processor.owned.values()) == {2}


async def test_a_seek_that_is_overtaken_is_an_error(stage: Stage) -> None:
    """Between the seal of its new epoch and the write of its new place somebody else has sealed."""
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=SELDOM) as processor:
        await until(lambda: len(seen) == 10)
        commit = stage.store.commit

        async def refused(group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
            if any(wish.epoch == 2 for wish in checkpoints):
                return [Outcome(partition=wish.partition, ok=False, why="epoch") for wish in checkpoints]
            return await commit(group, checkpoints)

        stage.store.commit = refused  # type: ignore[method-assign]
        with pytest.raises(LeaseLost):
            await processor.seek("earliest")
        stage.store.commit = commit  # type: ignore[method-assign]
        await until(lambda: set(processor.owned.values()) == {3})
        stage.fill(1)
        await until(lambda: len(seen) == 12)
    assert seen.of("0") == list(range(6)), "and all goes on where it was"


async def test_a_seek_is_progress_wherever_it_goes(stage: Stage) -> None:
    """Records are ordered by their ordinals: one that a seek has left behind must not count as much as its own."""
    seen = Seen()
    stage.fill(5)
    async with stage.processor(seen, checkpoint=SELDOM) as processor:
        await until(lambda: len(seen) == 10)
        await processor.seek(at(0), ["0"])
        await until(lambda: len(seen) == 14)
    record = (await stage.records())["0"]
    assert (record.ordinal, record.position.sequence) == (5 + 1 + 4, 4)


# --- where it goes on
class Odd(FakeSource):
    """A source whose positions are more than sequences, or which has none."""

    def __init__(self, *, sequences: bool) -> None:
        super().__init__(1)
        self._sequences = sequences
        self.opened: list[Position] = []
        self.fails_after: int | None = None

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        self.opened.append(after)
        number = int(after.offset.removeprefix("after "))
        return _OddReader(self, await super().open(partition, Position(str(number)), epoch=epoch))

    def odd(self, batch: Batch) -> Batch:
        where = int(batch.resume.offset)
        sequence = where if self._sequences else None
        events: list[Event] = [
            Event(event.body, None, None, event.sequence if self._sequences else None, 0, event.offset)
            for event in batch.events
        ]
        return Batch(events, Position(f"after {where}", sequence), batch.size_bytes)


class _OddReader:
    def __init__(self, source: Odd, reader: Reader) -> None:
        self._source, self._reader = source, reader
        self._reads = 0

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        self._reads += 1
        if self._source.fails_after == self._reads:
            self._source.fails_after = None
            raise SourceUnavailable("connection lost")
        return self._source.odd(await self._reader.read(max_events, max_bytes, max_wait_s))

    async def aclose(self) -> None:
        await self._reader.aclose()


class Withholding(FakeSource):
    """Its log ends with records that are no events, and a transaction that is still open is held back behind them."""

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        return {name: replace(found, newest=at(5)) for name, found in (await super().bounds(partitions)).items()}

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        return _WithholdingReader(await super().open(partition, after, epoch=epoch))


class _WithholdingReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        return batch if batch.events else Batch([], at(5), 0, is_held_back=True)

    async def aclose(self) -> None:
        await self._reader.aclose()


async def test_what_was_there_is_handled_also_when_its_last_records_are_no_events(stage: Stage) -> None:
    stage.source = Withholding(1)
    stage.fill(3, "0")
    seen = Seen()
    async with asyncio.timeout(60.0):
        assert await stage.processor(seen).serve(until="caught_up")
    assert len(seen) == 3
    assert await stage.positions() == {"0": 5}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("sequences", [False, True])
async def test_it_goes_on_where_the_batch_resumes(stage: Stage, sequences: bool, batch: bool) -> None:
    """Which may be further than its last event: there may be records that are no events."""
    stage.source = source = Odd(sequences=sequences)
    bodies: list[bytes] = []

    async def handle(given: Any, partition: OwnedPartition) -> None:
        bodies.extend(event.body for event in (given if batch else [given]))

    for number in range(6):
        source.append("0", b"%d" % number)
    await stage.processor(handle, batch=batch, batch_events=4).serve(until="caught_up")
    record = (await stage.records())["0"]
    assert (record.position.offset, record.ordinal) == ("after 5", 6)
    source.append("0", b"6")
    await stage.processor(handle, batch=batch).serve(until="caught_up")
    assert bodies == [b"%d" % number for number in range(7)]
    assert source.opened[1].offset == "after 5"


@pytest.mark.parametrize("sequences", [False, True])
async def test_a_source_that_drops_the_line_while_idle_is_opened_where_it_stood(stage: Stage, sequences: bool) -> None:
    stage.source = source = Odd(sequences=sequences)
    source.append("0", b"0")
    source.fails_after = 4
    async with stage.processor(Seen()):
        await until(lambda: len(source.opened) == 2)
    assert [after.offset for after in source.opened] == ["-1", "after 0"]


async def test_what_is_marked_in_a_stop_hook_is_what_was_handled_and_no_more(stage: Stage) -> None:
    processor = stage.processor(Seen(), checkpoint=Manual())

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        await partition.checkpoint()

    stage.fill(3, "0")
    await processor.serve(until="caught_up")
    record = (await stage.records())["0"]
    assert (record.position, record.ordinal) == (at(2), 3)


# --- what is logged
async def test_a_failure_that_is_not_ours_is_logged_with_its_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def handle(event: Event, partition: OwnedPartition) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("in the application")
        if calls == 2:
            raise SourceUnavailable("nothing to trace")

    stage.fill(1, "0")
    with caplog.at_level(logging.WARNING, logger="evenflow"):
        await stage.processor(handle).serve(until="caught_up")
    traced = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in traced if record.exc_info] == ["in the application"]
    assert traced[0].getMessage().startswith("partition 0, event 0: handler: ZeroDivisionError: in the application")
    frames = traceback.extract_tb(traced[0].exc_info[2]) if traced[0].exc_info else []
    assert [frame.name for frame in frames] == ["handle"], "the application's own"
