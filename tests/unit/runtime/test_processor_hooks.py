"""What the application is told besides its events: a partition starts, stops, or something failed."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, Manual, Processor
from evenflow.runtime.threads import _Worker
from evenflow.signals import Trouble
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import EVERYTHING, Seen, Stage, until

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition

SELDOM = Every(seconds=10_000.0)


class Diary:
    """Everything that the application was told about partition 0, in order."""

    def __init__(self, stage: Stage, processor: Processor, only: str = "0") -> None:
        self.lines: list[str] = []
        self._stage, self._only = stage, only
        processor.on_partition_start(self.start)
        processor.on_event(self.event)
        processor.on_partition_stop(self.stop)

    async def start(self, partition: OwnedPartition) -> None:
        self._write(partition, f"start in epoch {partition.epoch}")

    async def event(self, event: Event, partition: OwnedPartition) -> None:
        self._write(partition, f"event {event.sequence}")

    async def stop(self, partition: OwnedPartition, reason: str) -> None:
        record = (await self._stage.records())[partition.id]
        assert partition.is_stopping
        self._write(partition, f"stop, {reason}, committed up to {record.position}")

    def _write(self, partition: OwnedPartition, line: str) -> None:
        if partition.id == self._only:
            self.lines.append(line)


async def test_a_plain_hook_of_the_start_looks_at_the_clock_on_its_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still after the hook was given to a thread. By then the lease may be another instance's."""
    given: list[float] = []
    begun: list[float] = []
    give = _Worker.give

    def stand_still(self: _Worker, *args: Any) -> None:
        if not given:
            stage.loop.stall()
            stage.timeline.push(stage.now_s + 30.0, stage.loop.resume)
        given.append(stage.now_s)
        give(self, *args)

    monkeypatch.setattr(_Worker, "give", stand_still)
    processor = stage.processor(Seen(), checkpoint=SELDOM)

    @processor.on_partition_start
    def start(partition: OwnedPartition) -> None:
        begun.append(stage.now_s)
        epochs.append(partition.epoch)

    epochs: list[int] = []
    await processor.serve(until="caught_up")
    assert given[0] < 1.0
    assert min(begun) > given[0] + 30.0
    assert min(epochs) > 1


async def test_start_then_events_then_stop_then_the_last_commit(stage: Stage) -> None:
    processor = stage.processor(checkpoint=SELDOM)
    diary = Diary(stage, processor)
    stage.fill(2)
    await processor.serve(until="caught_up")
    assert diary.lines == ["start in epoch 1", "event 0", "event 1", "stop, leaving, committed up to -1"]
    assert await stage.positions() == {"0": 1, "1": 1}


async def test_a_stop_hook_may_write_what_it_has_collected_before_it_counts_as_handled(stage: Stage) -> None:
    """Should it fail halfway, or the process die in it, all of it comes again: nothing is lost."""
    processor = stage.processor(Seen(), checkpoint=SELDOM, loop=(process := stage.new_process()))
    in_hook = asyncio.Event()

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        in_hook.set()
        await asyncio.sleep(1000.0)

    stage.fill(5)
    process.start(processor.serve(until="caught_up"))
    await until(in_hook.is_set)
    assert await stage.positions() == {"0": -1, "1": -1}
    process.dead = True
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert len(seen) == 10


async def test_handed_over_is_the_reason_when_somebody_joins(stage: Stage) -> None:
    one = stage.processor(instance_id="one")
    reasons: list[str] = []

    @one.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        reasons.append(reason)

    one.on_event(Seen())
    async with one:
        await until(lambda: len(one.owned) == 2)
        async with stage.processor(Seen(), instance_id="other") as other:
            await until(lambda: len(other.owned) == 1)
        assert reasons == ["handed over"]
    assert reasons[-1] == "leaving"


async def test_fenced_is_the_reason_when_the_store_is_away_for_too_long(stage: Stage) -> None:
    processor = stage.processor(checkpoint=SELDOM)
    diary = Diary(stage, processor)
    stage.fill(1)
    async with processor:
        await until(lambda: "event 0" in diary.lines)
        stage.store.away = {"heartbeat"}
        await until(lambda: len(diary.lines) == 3)
        assert diary.lines[2] == "stop, fenced, committed up to -1"
        stage.store.away = set()
        await until(lambda: len(diary.lines) == 4)
        assert diary.lines[3] == "start in epoch 2"
        stage.fill(1)
        await until(lambda: len(diary.lines) == 5)
        assert diary.lines[4] == "event 1", "the commit of a fenced epoch still counts while nobody else has sealed"


async def test_a_partition_that_waits_for_its_turn_past_its_deadline_does_not_start(stage: Stage) -> None:
    processor = stage.processor(Seen(), concurrency=1)
    started: list[str] = []

    @processor.on_partition_start
    async def start(partition: OwnedPartition) -> None:
        started.append(f"{partition.id} in epoch {partition.epoch}")
        if len(started) == 1:
            stage.store.away = {"heartbeat"}
            await asyncio.sleep(20.0)  # the only turn, which the other waits for
            stage.store.away = set()

    async with processor:
        await until(lambda: len(started) == 3)
    assert started[0] == "0 in epoch 1"
    assert sorted(started[1:]) == ["0 in epoch 2", "1 in epoch 2"]


async def test_lost_is_the_reason_when_somebody_else_has_it(stage: Stage) -> None:
    process = stage.new_process()
    processor = stage.processor(loop=process)
    diary = Diary(stage, processor)
    process.start(processor.serve())
    await until(lambda: "start in epoch 1" in diary.lines)
    process.stall()
    async with stage.processor(Seen()) as other:
        await until(lambda: len(other.owned) == 2)
        process.resume()
        await until(lambda: len(diary.lines) > 1)
        assert diary.lines[1].startswith(("stop, fenced", "stop, lost"))


async def test_seek_is_a_reason(stage: Stage) -> None:
    processor = stage.processor()
    diary = Diary(stage, processor)
    stage.fill(1)
    async with processor:
        await until(lambda: "event 0" in diary.lines)
        await processor.seek("earliest")
        await until(lambda: diary.lines.count("event 0") == 2)
    assert diary.lines[2].startswith("stop, seek")
    assert diary.lines[3] == "start in epoch 2"


@pytest.mark.parametrize("plain", [False, True])
async def test_hooks_on_a_real_loop(plain: bool) -> None:
    source, lines = FakeSource(1), list[str]()
    threads: set[threading.Thread] = set()
    source.append("0", b"x")
    processor = Processor(source, MemoryStore(), "group")
    processor.on_event(Seen())

    def note(line: str) -> None:
        threads.add(threading.current_thread())
        lines.append(line)

    async def start(partition: OwnedPartition) -> None:
        note("start")

    async def stop(partition: OwnedPartition, reason: str) -> None:
        note(reason)

    processor.on_partition_start((lambda partition: note("start")) if plain else start)
    processor.on_partition_stop((lambda partition, reason: note(reason)) if plain else stop)
    await processor.serve(until="caught_up")
    assert lines == ["start", "leaving"]
    assert (threading.current_thread() in threads) is not plain


# --- hooks that fail
async def test_nothing_is_handled_before_the_start_hook_has_succeeded(stage: Stage) -> None:
    processor = stage.processor(seen := Seen())
    tries: list[str] = []

    @processor.on_partition_start
    async def prepare(partition: OwnedPartition) -> None:
        tries.append(partition.id)
        assert seen.of(partition.id) == []
        if tries.count(partition.id) < 4:
            raise OSError("no connection yet")

    stage.fill(3)
    await processor.serve(until="caught_up")
    assert sorted(tries) == ["0"] * 4 + ["1"] * 4
    assert len(seen) == 6
    told = [one for one in stage.told(Trouble) if one.partition == "0"]
    assert [(one.where, one.attempt, str(one.error)) for one in told] == [
        ("hook", attempt, "no connection yet") for attempt in (1, 2, 3)
    ]


async def test_a_start_hook_that_never_succeeds_keeps_nobody_from_stopping(stage: Stage) -> None:
    processor = stage.processor(seen := Seen())
    stopped: list[str] = []

    @processor.on_partition_start
    async def prepare(partition: OwnedPartition) -> None:
        raise OSError("never")

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        stopped.append(partition.id)

    stage.fill(3)
    async with processor:
        await until(lambda: len(stage.told(Trouble)) > 20)
        asked_s = stage.now_s
    assert stage.now_s - asked_s < 1.0
    assert seen == []
    assert stopped == [], "what never started does not stop"
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}


async def test_a_stop_hook_that_fails_is_told_and_changes_nothing(stage: Stage) -> None:
    processor = stage.processor(Seen())

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        raise OSError("the disk")

    stage.fill(3)
    await processor.serve(until="caught_up")
    assert [(one.where, str(one.error)) for one in stage.told(Trouble)] == [("hook", "the disk")] * 2
    assert await stage.positions() == {"0": 2, "1": 2}


async def test_on_error_is_told_what_failed_and_where(stage: Stage) -> None:
    processor = stage.processor()
    told: list[tuple[str, str]] = []
    failed = False

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        nonlocal failed
        if event.sequence == 1 and not failed:
            failed = True
            raise ValueError("cannot parse")

    @processor.on_error
    async def on_error(error: Exception, partition: OwnedPartition) -> None:
        told.append((str(error), partition.id))

    stage.fill(3, "0")
    await processor.serve(until="caught_up")
    assert told == [("cannot parse", "0")]


async def test_an_error_hook_that_fails_changes_nothing(stage: Stage) -> None:
    processor = stage.processor()
    calls: list[int | None] = []

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        calls.append(event.sequence)
        if calls == [0]:
            raise ValueError("once")

    @processor.on_error
    async def on_error(error: Exception, partition: OwnedPartition) -> None:
        raise OSError("and the hook too")

    stage.fill(2, "0")
    await processor.serve(until="caught_up")
    assert calls == [0, 0, 1]
    assert [one.where for one in stage.told(Trouble)] == ["handler", "hook"]


async def test_the_stop_hook_may_mark_all_that_was_handled(stage: Stage) -> None:
    processor = stage.processor(Seen(), checkpoint=Manual())

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        await partition.checkpoint()

    stage.fill(3, "0")
    await processor.serve(until="caught_up")
    assert stage.told(Trouble) == []
    assert (await stage.records())["0"].position.sequence == 2


async def test_a_store_that_is_away_delays_the_start_and_nothing_is_handled_before_the_seal(stage: Stage) -> None:
    processor = stage.processor()
    diary = Diary(stage, processor)
    stage.fill(1)
    stage.store.away = {"seal"}
    async with processor:
        await until(lambda: len(stage.told(Trouble)) > 3)
        assert diary.lines == []
        assert stage.store.away < EVERYTHING
        stage.store.away = set()
        await until(lambda: "event 0" in diary.lines)
