"""How a run ends: asked to, caught up, superseded, with another hub under the old name, or at its deadline."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import (
    Every,
    HubReplaced,
    Misconfigured,
    PartitionHalted,
    Processor,
    SourceUnavailable,
    StoreUnavailable,
    Superseded,
)
from evenflow.errors import DeadLettersUnavailable
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.operate.inspect.survey import survey
from evenflow.operate.inspect.watcher import GroupWatcher
from evenflow.runtime import engine
from evenflow.runtime.processor import _new_loop
from evenflow.signals import Left, PartitionStarted, Trouble
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import EVERYTHING, GROUP, PatchyStore, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow import Event, OwnedPartition
    from evenflow.model import Bounds, Identity, PartitionId, Position
    from evenflow.ports import Reader, Start

SELDOM = Every(seconds=10_000.0)


class Slow:
    """A handler whose calls take their time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun: list[tuple[str, int]] = []
        self.ended: list[tuple[str, int]] = []

    async def __call__(self, event: Event, partition: OwnedPartition) -> None:
        self.begun.append((partition.id, event.sequence or 0))
        await asyncio.sleep(self.seconds)
        self.ended.append((partition.id, event.sequence or 0))


async def members(stage: Stage) -> list[str]:
    ledger = await stage.store.peek(GROUP)
    return [] if ledger is None else [member.id for member in ledger.members]


# --- asked to stop
async def test_a_stop_lets_the_call_return_commits_releases_and_leaves(stage: Stage) -> None:
    handler = Slow(5.0)
    stage.fill(10)
    processor = stage.processor(handler, checkpoint=SELDOM)
    serving = asyncio.create_task(processor.serve())
    await until(lambda: handler.begun)
    processor.stop()
    await serving
    assert handler.ended == handler.begun == [("0", 0), ("1", 0)]
    assert await stage.positions() == {"0": 0, "1": 0}
    assert {(lease.owner, lease.epoch) for lease in (await stage.leases()).values()} == {(None, 2)}
    assert await members(stage) == []
    assert len(stage.told(Left)) == 1
    assert stage.now_s < 6.0


class HangingSource(FakeSource):
    """It does not answer some kinds of questions any more, and does not say so either."""

    def __init__(self, question: str) -> None:
        super().__init__(2)
        self._question = question
        self.asked = 0

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        await self._hang("resolve")
        return await super().resolve(partition, start)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        await self._hang("open")
        return await super().open(partition, after, epoch=epoch)

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        await self._hang("bounds")
        return await super().bounds(partitions)

    async def _hang(self, question: str) -> None:
        if question == self._question:
            self.asked += 1
            await asyncio.Event().wait()


@pytest.mark.parametrize("question", ["resolve", "open", "bounds"])
async def test_who_stops_does_not_wait_for_a_source_that_hangs(stage: Stage, question: str) -> None:
    """What it has goes to somebody who may reach it, and is not held until the deadline."""
    stage.source = source = HangingSource(question)
    processor = stage.processor(Seen(), stop_s=100.0)
    serving = asyncio.create_task(processor.serve())
    await until(lambda: source.asked == 2)
    began_s = stage.now_s
    processor.stop()
    await serving
    assert stage.now_s - began_s < 1.0
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}
    assert await members(stage) == []


class SlowToGiveUp(HangingSource):
    """A question that is cancelled closes what it had opened first, which takes longer than a heartbeat."""

    async def _hang(self, question: str) -> None:
        try:
            await super()._hang(question)
        except asyncio.CancelledError:
            await asyncio.sleep(5.0)
            raise


async def test_an_interrupted_question_may_take_its_time_to_end_and_the_stop_hook_runs(stage: Stage) -> None:
    """The coordinator repeats a stop with every heartbeat; only the first one interrupts the question."""
    stage.source = source = SlowToGiveUp("open")
    stopped: list[tuple[str, str]] = []
    processor = stage.processor(Seen(), stop_s=100.0)

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        stopped.append((partition.id, reason))

    serving = asyncio.create_task(processor.serve())
    await until(lambda: source.asked == 2)
    processor.stop()
    await serving
    assert sorted(stopped) == [("0", "leaving"), ("1", "leaving")]


async def test_who_leaves_last_does_not_wait_for_a_heartbeat(stage: Stage) -> None:
    """Its heir leaves while its own last call runs: what it would have passed on is released."""
    handler = Slow(1.0)
    pair = [stage.processor(handler, instance_id="busy"), stage.processor(Seen(), instance_id="idle")]
    serving = [asyncio.create_task(one.serve()) for one in pair]
    await until(lambda: all(len(one.owned) == 1 for one in pair))
    await asyncio.sleep(3.9)
    stage.fill(1, *pair[0].owned)
    await until(lambda: handler.begun)
    began_s = stage.now_s
    pair[0].stop()
    await asyncio.sleep(0.5)
    pair[1].stop()
    await asyncio.gather(*serving)
    assert stage.now_s - began_s < 1.0 + 0.1
    assert {lease.owner for lease in (await stage.leases()).values()} == {None}


async def test_a_stop_after_which_somebody_else_goes_on_repeats_nothing(stage: Stage) -> None:
    first, second = Seen(), Seen()
    stage.fill(100)
    async with stage.processor(first):
        await until(lambda: len(first) >= 20)
    stage.fill(10)
    await stage.processor(second).serve(until="caught_up")
    assert sorted([*first, *second]) == sorted((name, number) for name in "01" for number in range(110))


async def test_an_error_inside_the_with_block_still_stops_it_properly(stage: Stage) -> None:
    stage.fill(3)
    seen = Seen()

    async def application() -> None:
        async with stage.processor(seen, checkpoint=SELDOM):
            await until(lambda: len(seen) == 6)
            raise KeyError("the application's own")

    with pytest.raises(KeyError):
        await application()
    assert await stage.positions() == {"0": 2, "1": 2}
    assert await members(stage) == []


async def test_a_cancelled_serve_stops_it_properly(stage: Stage) -> None:
    stage.fill(3)
    seen = Seen()
    serving = asyncio.create_task(stage.processor(seen, checkpoint=SELDOM).serve())
    await until(lambda: len(seen) == 6)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert await stage.positions() == {"0": 2, "1": 2}
    assert await members(stage) == []


def test_a_signal_stops_it_as_asked() -> None:
    source, store = FakeSource(2), MemoryStore()
    source.append("0", b"x")
    processor = Processor(source, store, "group", checkpoint=SELDOM)
    before = signal.getsignal(signal.SIGTERM)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        signal.raise_signal(signal.SIGTERM)

    processor.run()
    assert [record.position.sequence for record in asyncio.run(_records(store)) if record.partition == "0"] == [0]
    assert signal.getsignal(signal.SIGTERM) == before


def test_run_until_caught_up_is_for_cron_jobs() -> None:
    source, store, seen = FakeSource(2), MemoryStore(), Seen()
    for _ in range(2):
        source.append("0", b"x")
        processor = Processor(source, store, "group")
        processor.on_event(seen)
        assert processor.run(until="caught_up")
        assert processor.instance_id, "it is known after the end, too"
    assert seen == [("0", 0), ("0", 1)]


def test_a_scheduled_run_that_is_interrupted_says_so() -> None:
    source = FakeSource(1)
    for _ in range(50):
        source.append("0", b"x")
    processor, handled = Processor(source, MemoryStore(), "group"), list[int]()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        handled.append(event.sequence or 0)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.05)

    assert processor.run(until="caught_up") is False
    assert len(handled) < 50


def test_uvloop_is_used_when_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = pytest.importorskip("uvloop")
    with closing(_new_loop()) as loop:
        assert isinstance(loop, uvloop.Loop)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with closing(_new_loop()) as loop:
        assert not isinstance(loop, uvloop.Loop)


async def _records(store: MemoryStore) -> Any:
    return await store.checkpoints(GROUP)


# --- the deadline
async def test_a_handler_that_hangs_is_left_behind_at_the_deadline(stage: Stage) -> None:
    stage.fill(3)
    handler = Slow(1e6)
    processor = stage.processor(handler, stop_s=10.0)
    async with processor:
        await until(lambda: handler.begun)
        asked_s = stage.now_s
    assert 10.0 <= stage.now_s - asked_s <= 10.0 + engine.FORCED_END_S + 1.5
    assert handler.ended == []
    assert await stage.positions() == {"0": -1, "1": -1}, "what did not return was not handled"


async def test_what_a_hanging_handler_held_goes_on_elsewhere(stage: Stage) -> None:
    stage.fill(1)
    handler, seen = Slow(1e6), Seen()
    async with stage.processor(handler, stop_s=1.0):
        await until(lambda: handler.begun)
    await stage.processor(seen).serve(until="caught_up")
    assert sorted(seen) == [("0", 0), ("1", 0)]


async def test_a_thread_that_hangs_keeps_nobody_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FORCED_END_S", 0.05)
    source, store = FakeSource(1), MemoryStore()
    source.append("0", b"x")
    may_end, begun = threading.Event(), threading.Event()
    processor = Processor(source, store, "group", stop_s=0.05)

    @processor.on_event
    def hang(event: Event, partition: OwnedPartition) -> None:
        begun.set()
        may_end.wait(30.0)

    async with processor:
        await until(begun.is_set, 10.0)
    assert not may_end.is_set()
    may_end.set()


async def test_a_store_that_is_away_delays_a_stop_no_longer_than_the_deadline(stage: Stage) -> None:
    seen = Seen()
    stage.fill(3)
    async with stage.processor(seen, stop_s=10.0):
        await until(lambda: len(seen) == 6)
        stage.store.away = set(EVERYTHING)
        asked_s = stage.now_s
    assert stage.now_s - asked_s <= 14.0


async def test_a_store_that_was_never_there_delays_a_stop_no_longer_than_the_deadline(stage: Stage) -> None:
    stage.store.away = set(EVERYTHING)
    async with stage.processor(Seen(), stop_s=10.0):
        await until(lambda: len(stage.told(Trouble)) > 3)
    assert stage.now_s < 20.0


# --- caught up
async def test_who_leaves_because_all_was_handled_says_so_in_its_leases_and_the_group_is_between_runs(
    stage: Stage,
) -> None:
    stage.fill(5)
    assert await stage.processor(Seen()).serve(until="caught_up")
    reasons = {lease.reason for lease in (await stage.leases()).values()}
    assert [reason.endswith(" has caught up") for reason in reasons] == [True]
    assert await _status(stage) == ("between runs", ["between runs"])
    processor = stage.processor(Seen())
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(processor.owned) == 2)
    assert await _status(stage) == ("ok", [])
    processor.stop()
    assert await serving is False
    assert await _status(stage) == ("no instances", ["unowned"])


async def _status(stage: Stage) -> tuple[str, list[str]]:
    look = GroupWatcher().observe(await survey(stage.store, GROUP, stage.source, moves=0), 0.0, 0.0)
    return look.status, [finding.kind for finding in look.findings]


async def test_caught_up_is_everything_that_was_there(stage: Stage) -> None:
    stage.fill(50)
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert len(seen) == 100
    assert await stage.positions() == {"0": 49, "1": 49}


async def test_an_empty_hub_is_caught_up_at_once(stage: Stage) -> None:
    await stage.processor(Seen()).serve(until="caught_up")
    assert stage.now_s < 0.5
    assert await stage.positions() == {"0": -1, "1": -1}


async def test_what_retention_has_emptied_is_caught_up_too(stage: Stage) -> None:
    stage.fill(5)
    stage.source.trim("0", 5)
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert seen.of("0") == []
    assert len(seen.of("1")) == 5


async def test_caught_up_does_not_wait_for_what_comes_meanwhile(stage: Stage) -> None:
    seen = Seen()

    async def handle(event: Event, partition: OwnedPartition) -> None:
        await seen(event, partition)
        await asyncio.sleep(0.01)
        stage.fill(1, partition.id)

    stage.fill(5)
    await stage.processor(handle, batch_events=3).serve(until="caught_up")
    assert len(seen.of("0")) >= 5
    assert stage.now_s < 1.0


async def test_caught_up_waits_for_what_a_dead_instance_has_left_behind(stage: Stage) -> None:
    process = stage.new_process()
    handler = Slow(1e6)
    stage.fill(5)
    process.start(stage.processor(handler, loop=process).serve())
    await until(lambda: len(handler.begun) == 2)
    process.dead = True
    died_s = stage.now_s
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert len(seen) == 10
    assert 8.0 <= stage.now_s - died_s <= 12.0


async def test_caught_up_does_not_wait_for_what_others_who_live_have(stage: Stage) -> None:
    handler, seen = Slow(30.0), Seen()
    stage.fill(5)
    async with stage.processor(handler, instance_id="slow"):
        await until(lambda: len(handler.begun) == 2)
        await stage.processor(seen, instance_id="job").serve(until="caught_up")
        assert stage.now_s < 100.0
        (partition,) = {name for name, _ in seen}
        assert seen.of(partition) == [1, 2, 3, 4]


async def test_caught_up_waits_until_what_another_is_to_have_is_its_own(stage: Stage) -> None:
    """Nobody has it meanwhile, and nobody knows what is left in it."""
    store = PatchyStore()
    store.__dict__ = {**stage.store.__dict__, "away": {"swap"}, "asked": Counter()}  # the same, cut off for one
    stage.fill(5)
    async with stage.processor(Seen(), instance_id="other", store=store):
        job = stage.processor(Slow(2.0), instance_id="job", max_partitions=1)
        running = asyncio.create_task(job.serve(until="caught_up"))
        await stage.clock().sleep(60.0)
        assert not running.done()
        store.away = set()
        assert await running
        assert stage.now_s < 100.0


async def test_caught_up_waits_until_what_another_is_to_have_is_passed_on(stage: Stage) -> None:
    """As long as a call of it runs, all else stays, too: whoever has caught up leaves."""
    gates = {partition: asyncio.Event() for partition in "01"}

    async def handler(event: Event, partition: OwnedPartition) -> None:
        await gates[partition.id].wait()

    stage.fill(1)
    job = stage.processor(handler, instance_id="job")
    running = asyncio.create_task(job.serve(until="caught_up"))
    await until(lambda: len(job.owned) == 2)
    async with stage.processor(Seen(), instance_id="other"):
        assert job._engine is not None
        coordinator = job._engine.coordinator
        await until(lambda: coordinator.decision is not None and coordinator.decision.heirs)
        assert coordinator.decision is not None
        (moving,) = coordinator.decision.heirs
        (staying,) = {"0", "1"} - {moving}
        gates[staying].set()
        await stage.clock().sleep(30.0)
        assert job.owned.keys() == {"0", "1"}
        assert not coordinator.me.retiring
        gates[moving].set()
        assert await running


async def test_caught_up_with_fewer_seats_than_partitions_does_not_hang(stage: Stage) -> None:
    """Nobody may have the others: to wait for them would be to wait for ever. It says so, and they have their turn."""
    stage.source.grow(1)
    stage.fill(5)
    handler, nobodys = Slow(1.0), r"partitions \d, \d left without an owner: every instance has as many"
    for turn in range(1, 4):
        with pytest.raises(PartitionHalted, match=nobodys):
            await stage.processor(handler, max_partitions=1).serve(until="caught_up")
        assert len(handler.ended) == 5 * turn
    assert {name for name, _ in handler.ended} == {"0", "1", "2"}


async def test_caught_up_waits_for_the_store(stage: Stage) -> None:
    """Before the seal nobody knows where the end is."""
    stage.fill(5)
    seen = Seen()
    stage.store.away = {"seal"}
    serving = asyncio.create_task(stage.processor(seen).serve(until="caught_up"))
    await asyncio.sleep(3.0)
    assert not serving.done()
    stage.store.away = set()
    await serving
    assert len(seen) == 10


async def test_caught_up_waits_for_a_handler_that_fails(stage: Stage) -> None:
    calls: list[int] = []

    async def handle(event: Event, partition: OwnedPartition) -> None:
        calls.append(event.sequence or 0)
        if len(calls) < 4:
            raise ValueError("not yet")

    stage.fill(1, "0")
    await stage.processor(handle).serve(until="caught_up")
    assert calls == [0, 0, 0, 0]


# --- what ends it
async def test_who_is_superseded_ends_with_a_named_error(stage: Stage) -> None:
    process = stage.new_process()
    first, second = Seen(), Seen()
    old = process.start(stage.processor(first, instance_id="ada", loop=process).serve())
    await until(lambda: len(stage.told(PartitionStarted)) == 2)
    async with stage.processor(second, instance_id="ada") as newer:
        await until(old.done)
        with pytest.raises(Superseded, match=r"A newer process runs under the instance id 'ada'.*own instance_id"):
            old.result()
        await until(lambda: len(newer.owned) == 2)
        stage.fill(1)
        await until(lambda: len(second) == 2)
    assert first == []


async def test_who_restarts_under_its_own_id_after_a_clean_stop_goes_on_at_once(stage: Stage) -> None:
    seen = Seen()
    stage.fill(3)
    await stage.processor(seen, instance_id="ada").serve(until="caught_up")
    stage.fill(3)
    stopped_s = stage.now_s
    await stage.processor(seen, instance_id="ada").serve(until="caught_up")
    assert stage.now_s - stopped_s < 2.0
    assert sorted(seen) == [(name, number) for name in "01" for number in range(6)]


async def test_a_hub_that_is_made_again_while_it_is_read_is_an_error(stage: Stage) -> None:
    seen = Seen()
    stage.fill(3)
    serving = asyncio.create_task(stage.processor(seen).serve())
    await until(lambda: len(seen) == 6)
    stage.source.remake()
    stage.fill(10)
    with pytest.raises(HubReplaced, match="was deleted and made again while this instance read it"):
        await serving
    assert len(seen) == 6, "nothing of the new hub is handled as if it were the old one"


async def test_a_hub_that_is_made_again_while_nobody_reads_is_found_by_the_refresh(stage: Stage) -> None:
    """No reader was open: the instance owns nothing."""
    async with (
        stage.processor(Seen(), instance_id="a", max_partitions=1) as one,
        stage.processor(Seen(), instance_id="b", max_partitions=1) as other,
    ):
        await until(lambda: one.owned and other.owned)
        serving = asyncio.create_task(stage.processor(Seen(), instance_id="c").serve())
        await asyncio.sleep(5.0)
    async with asyncio.timeout(60.0):
        stage.source.remake()
        with pytest.raises(HubReplaced):
            await serving


async def test_a_group_whose_checkpoints_belong_to_another_hub_is_an_error_at_the_start(stage: Stage) -> None:
    stage.fill(3)
    await stage.processor(Seen()).serve(until="caught_up")
    before = await stage.records()
    stage.source.remake()
    stage.fill(10)
    seen = Seen()
    with pytest.raises(HubReplaced, match=r"(?i)checkpoints.*another group name"):
        await stage.processor(seen).serve()
    assert seen == []
    assert await stage.records() == before
    await stage.processor(seen, group="new").serve(until="caught_up")
    assert len(seen) == 20


async def test_our_own_mistake_in_a_helper_ends_it_too(stage: Stage) -> None:
    class Odd(FakeSource):
        asked = 0

        async def identity(self) -> Identity:
            self.asked += 1
            if self.asked > 6:
                raise ZeroDivisionError("in a driver")
            return await super().identity()

    stage.source = Odd(2)
    with pytest.raises(ZeroDivisionError, match="in a driver"):
        await stage.processor(Seen()).serve()


# --- the first contact
class Away(FakeSource):
    """A source that does not answer at first."""

    def __init__(self, times: float) -> None:
        super().__init__(1)
        self.times = times

    async def identity(self) -> Identity:
        if self.times > 0:
            self.times -= 1
            raise SourceUnavailable("not yet")
        return await super().identity()


async def test_a_source_that_is_away_at_the_start_is_waited_for(stage: Stage) -> None:
    stage.source = Away(5)
    stage.fill(3)
    seen = Seen()
    await stage.processor(seen).serve(until="caught_up")
    assert len(seen) == 3
    assert [(one.where, one.attempt) for one in stage.told(Trouble)] == [("source", n) for n in range(1, 6)]


async def test_who_waits_for_a_source_can_be_stopped(stage: Stage) -> None:
    stage.source = Away(float("inf"))
    processor = stage.processor(Seen())
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(stage.told(Trouble)) > 5)
    processor.stop()
    asked_s = stage.now_s
    await serving
    assert stage.now_s - asked_s < 1.0


async def test_who_waits_for_a_source_can_be_cancelled(stage: Stage) -> None:
    stage.source = Away(float("inf"))
    processor = stage.processor(Seen())
    serving = asyncio.create_task(processor.serve())
    await until(lambda: len(stage.told(Trouble)) > 5)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    tries = len(stage.told(Trouble))
    await asyncio.sleep(100.0)
    assert len(stage.told(Trouble)) == tries


async def test_a_refresh_that_fails_is_told_and_tried_again(stage: Stage) -> None:
    stage.source = source = Away(0)
    async with stage.processor(Seen()) as processor:
        await until(lambda: processor.owned)
        source.times = 2
        source.grow(1)
        await until(lambda: len(processor.owned) == 2)
    assert [(one.where, one.attempt) for one in stage.told(Trouble)] == [("source", 1), ("source", 2)]


class Guarded(FakeSource):
    """A source that refuses to tell where its partitions end, from when on somebody wants it to."""

    refuses = False

    async def bounds(self, partitions: Sequence[str]) -> Mapping[str, Bounds]:
        if self.refuses:
            raise Misconfigured("this user may not do that.")
        return await super().bounds(partitions)


async def test_who_is_refused_at_the_start_ends(stage: Stage) -> None:
    stage.source = source = Guarded(2)
    source.refuses = True
    with pytest.raises(Misconfigured, match="may not do that"):
        await stage.processor(Seen()).serve()


async def test_who_was_served_before_waits_when_it_is_refused_and_does_not_end(stage: Stage) -> None:
    stage.source = source = Guarded(1)
    seen = Seen()
    async with stage.processor(seen, refresh_s=1.0) as processor:
        stage.fill(1, "0")
        await until(lambda: seen.of("0") == [0])
        source.refuses = True
        source.grow(1)
        stage.fill(2, "1")
        await until(lambda: len([one for one in stage.told(Trouble) if one.partition == "1"]) > 5)
        stage.fill(1, "0")
        await until(lambda: seen.of("0") == [0, 1])
        source.refuses = False
        await until(lambda: seen.of("1") == [0, 1])
        assert processor.owned == {"0": 1, "1": 1}, "it kept its leases"
    assert {one.where for one in stage.told(Trouble)} == {"source"}
    assert "may not do that. (It was not refused before" in str(stage.told(Trouble)[0])


# --- dead letters
class Target(MemoryDeadLetters):
    """One that can tell whether it is there."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def check(self) -> None:
        raise self.error


async def test_a_target_of_dead_letters_that_is_not_there_is_told_at_the_start(stage: Stage) -> None:
    with pytest.raises(Misconfigured, match="no such topic"):
        await stage.processor(Seen(), dead_letter=Target(Misconfigured("no such topic"))).serve()
    assert await stage.store.peek(GROUP) is None, "it has not joined"


async def test_a_target_of_dead_letters_that_is_away_at_the_start_holds_nobody_up(stage: Stage) -> None:
    stage.fill(3, "0")
    seen = Seen()
    await stage.processor(seen, dead_letter=Target(DeadLettersUnavailable("away"))).serve(until="caught_up")
    assert seen.of("0") == [0, 1, 2]
    assert [one.where for one in stage.told(Trouble)] == ["dead letters"]


async def test_what_was_opened_from_a_url_is_closed_and_what_was_given_is_not(stage: Stage) -> None:
    closed: list[str] = []

    class Given(FakeSource):
        async def aclose(self) -> None:
            closed.append("source")

    stage.source = Given(1)
    await stage.processor(Seen(), store="memory:opened-here").serve(until="caught_up")
    assert closed == []


# --- what is tried in vain
class Mute(FakeSource):
    """A source whose partitions cannot be read, while one says so."""

    is_mute = True

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        if self.is_mute:
            raise SourceUnavailable("it cannot be read")
        return await super().open(partition, after, epoch=epoch)


async def test_a_scheduled_run_does_not_wait_for_a_source_for_ever(stage: Stage) -> None:
    stage.source = Away(float("inf"))
    with pytest.raises(SourceUnavailable, match=r"not yet It was tried for 60 s \(give_up_s\), and this run ends"):
        await stage.processor(Seen()).serve(until="caught_up")
    assert stage.now_s == pytest.approx(60.0)


async def test_a_source_that_gives_up_late_by_itself_has_been_tried_for_as_long(stage: Stage) -> None:
    class Slow(FakeSource):
        async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
            await asyncio.sleep(30.0)
            raise SourceUnavailable("it cannot be read")

    stage.source = Slow(1)
    stage.fill(3)
    with pytest.raises(SourceUnavailable, match="it cannot be read It was tried for 30 s"):
        await stage.processor(Seen()).serve(until="caught_up", give_up_s=4.0)
    assert 30.0 <= stage.now_s < 31.0


@pytest.mark.parametrize("away", ["heartbeat", "seal"])
async def test_a_scheduled_run_does_not_wait_for_a_store_for_ever(stage: Stage, away: str) -> None:
    stage.store.away = {away}
    with pytest.raises(StoreUnavailable, match=f"no {away} for now It was tried for"):
        await stage.processor(Seen()).serve(until="caught_up", give_up_s=20.0)
    assert 20.0 <= stage.now_s < 22.0 + 30.0, "and then the time that a stop may take"


async def test_a_scheduled_run_does_not_wait_for_a_reader_for_ever(stage: Stage) -> None:
    stage.source = Mute(2)
    stage.fill(3)
    with pytest.raises(SourceUnavailable, match="it cannot be read It was tried for"):
        await stage.processor(Seen()).serve(until="caught_up")
    assert 60.0 <= stage.now_s < 65.0
    assert await members(stage) == [], "it has left"


async def test_a_scheduled_run_does_not_wait_for_a_hook_for_ever(stage: Stage) -> None:
    stage.fill(1)
    processor = stage.processor(Seen())

    @processor.on_partition_start
    async def prepare(partition: OwnedPartition) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await processor.serve(until="caught_up", give_up_s=5.0)


async def test_a_scheduled_run_waits_for_who_comes_back_in_time(stage: Stage) -> None:
    """However often that happens: what was waited for before does not count."""
    stage.source = source = Mute(1)
    stage.fill(3)
    seen = Seen()
    serving = asyncio.create_task(stage.processor(seen).serve(until="caught_up", give_up_s=10.0))
    await asyncio.sleep(1.0)
    for _ in range(3):
        stage.store.away = set(EVERYTHING)
        await asyncio.sleep(9.0)
        stage.store.away = set()
        await asyncio.sleep(1.0)
    source.is_mute = False
    await serving
    assert len(seen) == 3


@pytest.mark.parametrize("give_up_s", [0, -1.0, float("nan"), "soon"])
async def test_for_how_long_it_is_tried_is_a_number(stage: Stage, give_up_s: Any) -> None:
    with pytest.raises(Misconfigured, match=r"give_up_s=.*seconds above 0"):
        await stage.processor(Seen()).serve(until="caught_up", give_up_s=give_up_s)


async def test_what_is_cut_off_is_not_written_any_more(stage: Stage) -> None:
    """Its last call has outlasted the patience of the stop, and returns while it is being cut off."""
    stage.fill(1, "0")
    handler = Slow(3.0)
    async with stage.processor(handler, checkpoint=SELDOM, stop_s=1.0):
        await until(lambda: handler.begun)
        await stage.clock().sleep(0.5)
    assert len(handler.ended) == 1
    assert stage.store.asked["commit"] == 0
    assert (await stage.leases())["0"].owner is not None
