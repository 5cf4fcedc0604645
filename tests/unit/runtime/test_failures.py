"""Events that fail: retried, found in their batch, stopped at, skipped or filed; and what a new owner takes up."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from evenflow import Breaker, Event, Every, Manual, Retry, StorageFull
from evenflow.core.failure import DEATHS_MOST, ENDS_MOST, FRUITLESS_MOST
from evenflow.core.filed import fold
from evenflow.core.notes import Ends, Notes, Suspect, notes_of, whose
from evenflow.model import Action, Checkpoint, DeadLetter, Position, Steering
from evenflow.operate.dead_letters.encoding import encode
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.signals import (
    Careful,
    DeadLettered,
    Fenced,
    Recovered,
    Skipped,
    Stalled,
    Stopped,
    Tripped,
    Trouble,
    Unowned,
)
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import EVERYTHING, GROUP, Stage, at, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow import OwnedPartition, Processor
    from evenflow.model import Bounds, DeadLetterRecord, Group


class PatchyDeadLetters(MemoryDeadLetters):
    """A target that is away, as long as one says so."""

    away = False

    async def file(self, group: Group, partition: str, records: Sequence[DeadLetterRecord]) -> None:
        if self.away:
            raise StorageFull("no room for dead letters")
        await super().file(group, partition, records)


TWICE = Retry(attempts=2, first_s=0.1, most_s=1.0)


class Poisonous:
    """A handler to which some events are poison, and which keeps what it handled and what it was given."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.given: list[int] = []
        self.handled: list[int] = []

    async def __call__(self, given: Any, partition: OwnedPartition) -> None:
        events = [given] if isinstance(given, Event) else given
        numbers = [event.sequence or 0 for event in events]
        self.given += numbers
        if self.poison.intersection(numbers):
            raise ValueError(f"poison in {numbers}")
        self.handled += numbers


async def notes(stage: Stage, partition: str = "0") -> Notes:
    records = {record.partition: record for record in await stage.store.checkpoints(GROUP)}
    return notes_of(records[partition])


async def dead_letters_of(dead_letters: MemoryDeadLetters) -> list[tuple[int | None, str]]:
    return [(one.event.sequence, one.reason) async for one in dead_letters.read(GROUP, "0")]  # type: ignore[union-attr]


# --- retry
async def test_the_command_that_is_told_names_the_group_alone_though_a_hub_has_a_slash(stage: Stage) -> None:
    source = FakeSource(1, name="shop/orders")
    source.append("0", b"")
    async with stage.processor(Poisonous(0), source=source, group="a/b", retry=Retry(attempts=1)):
        await until(lambda: bool(stage.told(Stopped)))
    assert "evenflow group resume --partition 0 --group a/b`" in str(stage.told(Stopped)[0])


async def test_an_event_is_tried_so_often_and_then_its_partition_stops_and_nothing_is_skipped(stage: Stage) -> None:
    handler = Poisonous(2)
    stage.fill(5, "0")
    async with stage.processor(handler, retry=Retry(attempts=4)):
        await until(lambda: bool(stage.told(Stopped)))
        await stage.clock().sleep(3600)
        assert handler.given == [0, 1, 2, 2, 2, 2]
    told = stage.told(Stopped)[0]
    assert (told.partition, told.position.sequence, told.attempts) == ("0", 2, 4)
    assert "evenflow group resume --partition 0 --group group`" in str(told)
    found = (await notes(stage)).stopped
    assert found is not None
    assert (found.ordinal, found.position.sequence, found.attempts) == (2, 2, 4)
    assert found.error == "ValueError: poison in [2]"


async def test_errors_can_be_told_apart(stage: Stage) -> None:
    tried: Counter[int] = Counter()
    errors = {0: KeyError("never"), 1: OSError("again"), 2: ValueError("not one of those")}

    async def handler(event: Event, partition: OwnedPartition) -> None:
        number = event.sequence or 0
        tried[number] += 1
        if number in errors and (number != 1 or tried[number] < 3):
            raise errors[number]

    stage.fill(4, "0")
    retry = Retry(attempts=5, retry_on=(OSError, LookupError), never_retry=KeyError)
    await stage.processor(handler, retry=retry, on_poison="skip").serve(until="caught_up")
    assert tried == {0: 1, 1: 3, 2: 1, 3: 1}
    assert [one.position.sequence for one in stage.told(Skipped)] == [0, 2]


async def test_retrying_for_ever_is_a_choice(stage: Stage) -> None:
    handler = Poisonous(0)
    stage.fill(1, "0")
    async with stage.processor(handler, retry=Retry(attempts=None, most_s=10.0)):
        await until(lambda: len(handler.given) == 50)
        handler.poison.clear()
        await until(lambda: handler.handled == [0])
    assert stage.told(Stopped) == []


async def test_the_lease_is_kept_while_it_retries(stage: Stage) -> None:
    handler = Poisonous(0)
    stage.fill(2, "0")
    async with stage.processor(handler, retry=Retry(attempts=None, first_s=60.0, most_s=120.0)) as processor:
        epochs = processor.owned
        await stage.clock().sleep(3600)
        assert processor.owned == epochs or len(epochs) == 0
        assert set(processor.owned.values()) == {1}


# --- batches
@pytest.mark.parametrize("poison", [(0,), (9,), (3,), (2, 3), (0, 5, 9), tuple(range(10))])
async def test_a_bad_event_is_found_in_its_batch_and_the_good_ones_are_handled_once(
    stage: Stage, poison: tuple[int, ...]
) -> None:
    handler = Poisonous(*poison)
    stage.fill(10, "0")
    processor = stage.processor(handler, batch=True, retry=TWICE, on_poison="skip", breaker=None)
    await processor.serve(until="caught_up")
    assert handler.handled == [number for number in range(10) if number not in poison]
    assert [one.position.sequence for one in stage.told(Skipped)] == list(poison)
    assert all(one.attempts == 2 for one in stage.told(Skipped))


async def test_finding_one_bad_event_takes_few_calls(stage: Stage) -> None:
    calls: list[int] = []

    async def handler(events: Sequence[Event], partition: OwnedPartition) -> None:
        calls.append(len(events))
        if any(event.sequence == 700 for event in events):
            raise ValueError("bad")

    stage.fill(1000, "0")
    processor = stage.processor(handler, batch=True, retry=TWICE, on_poison="skip")
    await processor.serve(until="caught_up")
    assert len(calls) <= 25


# --- dead letters
async def test_a_poison_event_goes_into_the_dead_letters_whole(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(1)
    stage.source.append("0", b"fine")
    stage.source.append("0", b"\xff\x00", key="k", properties={"p": 1})
    stage.source.append("0", b"fine")
    processor = stage.processor(handler, retry=TWICE, dead_letter=dead_letters, instance_id="ada")
    await processor.serve(until="caught_up")
    (dead_letter,) = [one async for one in dead_letters.read(GROUP)]
    assert isinstance(dead_letter, DeadLetter)
    assert (dead_letter.id, dead_letter.reason, dead_letter.attempts, dead_letter.instance) == (
        "0@1",
        "poison",
        2,
        "ada",
    )
    assert (dead_letter.event.body, dead_letter.event.key, dead_letter.event.properties) == (b"\xff\x00", "k", {"p": 1})
    assert dead_letter.error == "ValueError: poison in [1]"
    assert "raise ValueError" in dead_letter.traceback
    assert handler.handled == [0, 2]
    assert await stage.positions() == {"0": 2, "1": -1}
    assert [one.dead_letters for one in stage.told(DeadLettered)] == [1]


async def test_a_target_that_is_away_is_waited_for_and_nothing_is_passed_over(stage: Stage) -> None:
    dead_letters = PatchyDeadLetters()
    dead_letters.away = True
    handler = Poisonous(1)
    stage.fill(3, "0")
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters):
        await until(lambda: any(one.where == "dead letters" for one in stage.told(Trouble)))
        await stage.clock().sleep(3600)
        assert handler.handled == [0]
        assert (await stage.positions())["0"] == 0
        dead_letters.away = False
        await until(lambda: handler.handled == [0, 2])
    assert await dead_letters_of(dead_letters) == [(1, "poison")]


async def test_later_events_of_a_poisoned_key_follow_it(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    for key in ["a", "b", "a", None, "b", "a"]:
        stage.source.append("0", b"x", key=key)
    handler = Poisonous(0)
    processor = stage.processor(handler, retry=TWICE, dead_letter=dead_letters, dead_letter_order="key")
    await processor.serve(until="caught_up")
    assert handler.handled == [1, 3, 4]
    assert await dead_letters_of(dead_letters) == [(0, "poison"), (2, "parked"), (5, "parked")]
    assert [one.dead_letter.attempts for one in fold(dead_letters.records(GROUP, "0"))] == [2, 0, 0]
    assert (await notes(stage)).parked == {"a": 0}
    stage.source.append("0", b"x", key="a")
    stage.source.append("0", b"x", key="b")
    after = Poisonous()
    again = stage.processor(after, retry=TWICE, dead_letter=dead_letters, dead_letter_order="key")
    await again.serve(until="caught_up")
    assert after.handled == [7], "a parked key survives its owner"


async def test_only_a_call_with_one_event_names_whose_it_is(stage: Stage) -> None:
    for key in ("ada", "bo"):
        stage.source.append("0", b"x", key=key)

    async def handler(events: Sequence[Event], partition: OwnedPartition) -> None:
        raise ValueError("bad")

    processor = stage.processor(
        handler, batch=True, retry=Retry(attempts=1), dead_letter=MemoryDeadLetters(), breaker=None
    )
    await processor.serve(until="caught_up")
    told = [(one.events, one.whose) for one in stage.told(Trouble)]
    assert [count for count, _ in told] == [2, 1, 1]
    assert [named for _, named in told] == ["", whose("", "ada"), whose("", "bo")]


async def test_once_a_bad_event_is_out_of_the_way_batches_are_whole_again(stage: Stage) -> None:
    sizes: list[int] = []

    async def handler(events: Sequence[Event], partition: OwnedPartition) -> None:
        sizes.append(len(events))
        if 1 in [event.sequence for event in events]:
            raise ValueError("the second one is bad")

    stage.fill(8, "0")
    processor = stage.processor(handler, batch=True, retry=Retry(attempts=1), dead_letter=MemoryDeadLetters())
    await processor.serve(until="caught_up")
    assert sizes == [8, 4, 2, 1, 1, 6]


async def test_batches_are_handled_around_parked_events(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    for key in "abcabcabc":
        stage.source.append("0", b"x", key=key)
    handler = Poisonous(1)
    processor = stage.processor(handler, batch=True, retry=TWICE, dead_letter=dead_letters, dead_letter_order="key")
    await processor.serve(until="caught_up")
    assert handler.handled == [0, 2, 3, 5, 6, 8]
    assert await dead_letters_of(dead_letters) == [(1, "poison"), (4, "parked"), (7, "parked")]


# --- the breaker
async def test_when_too_many_fail_the_partition_halts_instead_of_filling_the_dead_letters(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(*range(5, 500))
    stage.fill(500, "0")
    breaker = Breaker(share=0.5, events=10, first_s=1.0, most_s=60.0)
    async with stage.processor(handler, retry=Retry(attempts=1), dead_letter=dead_letters, breaker=breaker):
        await until(lambda: len(stage.told(Tripped)) == 8)
        assert len(await dead_letters_of(dead_letters)) == 4
        pauses = [one.again_in_s for one in stage.told(Tripped)]
        assert pauses[0] <= 1.0
        assert pauses[-1] > 20.0
        tripped = (await notes(stage)).tripped
        assert tripped is not None
        handler.poison.clear()
        await until(lambda: len(handler.handled) == 496)
        assert len(stage.told(Recovered)) == 1
    assert (await notes(stage)).tripped is None


async def test_a_few_poison_events_do_not_trip_it(stage: Stage) -> None:
    handler = Poisonous(*range(0, 300, 3))
    stage.fill(300, "0")
    processor = stage.processor(handler, retry=Retry(attempts=1), on_poison="skip")
    await processor.serve(until="caught_up")
    assert len(handler.handled) == 200
    assert stage.told(Tripped) == []


# --- what outlives an owner
async def test_attempts_and_a_stop_survive_a_change_of_owner(stage: Stage) -> None:
    stage.fill(3, "0")
    first = Poisonous(1)
    async with stage.processor(first, retry=Retry(attempts=6, first_s=10.0, most_s=10.0)):
        await until(lambda: first.given.count(1) == 4)
    second = Poisonous(1)
    async with stage.processor(second, retry=Retry(attempts=6, first_s=10.0, most_s=10.0)):
        await until(lambda: bool(stage.told(Stopped)))
        assert second.given == [1, 1]
    third = Poisonous()
    async with stage.processor(third):
        await until(lambda: len(stage.told(Stopped)) == 2)
        await stage.clock().sleep(600)
    assert third.given == []


async def test_a_seek_passes_a_stop(stage: Stage) -> None:
    stage.fill(3, "0")
    handler = Poisonous(1)
    async with stage.processor(handler, retry=Retry(attempts=1)) as processor:
        await until(lambda: bool(stage.told(Stopped)))
        await processor.seek("latest", ["0"])
        stage.fill(1, "0")
        await until(lambda: handler.handled == [0, 3])
    assert (await notes(stage)).stopped is None


# --- an event that kills its process
async def _die_at(
    stage: Stage, deadly: int, handled: list[int], times: int, *, advances: bool = False, **options: Any
) -> int:
    """Owner after owner is killed by the same event; how many were. Each `advances` by one event, if it can."""
    marked = False

    async def handler(given: Any, partition: OwnedPartition) -> None:
        nonlocal marked
        for event in [given] if isinstance(given, Event) else given:
            if partition.id == "0" and event.sequence == deadly:
                running.dead = True
                await stage.clock(running).sleep(1e9)
            handled.append(event.sequence or 0)
            if advances and partition.id == "0" and not marked:
                marked = True
                await partition.checkpoint(event)

    for number in range(times):
        running, marked = stage.new_process(), False
        processor = stage.processor(handler, loop=running, instance_id=f"n{number}", **options)
        running.start(processor.serve())
        await until(lambda: running.dead or stage.told(DeadLettered) or stage.told(Stopped))  # noqa: B023
        if not running.dead:
            return number
    return times


@pytest.mark.parametrize("batch", [False, True])
async def test_an_event_that_kills_its_process_does_not_walk_through_the_fleet(stage: Stage, batch: bool) -> None:
    dead_letters = MemoryDeadLetters()
    handled: list[int] = []
    stage.fill(50, "0")
    await _die_at(stage, 20, handled, 10, batch=batch, dead_letter=dead_letters)
    assert await dead_letters_of(dead_letters) == [(20, "killed")]
    assert len([one for one in stage.told(Careful) if one.partition == "0"]) == 3
    await until(lambda: 49 in handled)
    assert set(handled) == set(range(50)) - {20}


@pytest.mark.parametrize("batch", [False, True])
async def test_nor_does_it_where_each_owner_gets_a_little_further(stage: Stage, batch: bool) -> None:
    """When a checkpoint is written before the process ends is chance: progress must not make the count begin anew."""
    dead_letters = MemoryDeadLetters()
    stage.fill(50, "0")
    options = {"checkpoint": Manual(), "dead_letter": dead_letters}
    ended = await _die_at(stage, 20, [], 30, advances=True, batch=batch, **options)
    assert FRUITLESS_MOST + DEATHS_MOST <= ended <= ENDS_MOST + DEATHS_MOST
    assert await dead_letters_of(dead_letters) == [(20, "killed")]
    first = next(one for one in stage.told(Careful) if one.partition == "0")
    assert (first.without_progress, first.ended) == (0, ENDS_MOST)
    assert str(first).startswith("partition 0: 5 owners died within a few events of each other; handling events")


@pytest.mark.parametrize("ends_at", ["the end", "enough events"])
async def test_owners_that_ended_are_forgotten_when_the_partition_has_come_far(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ends_at: str
) -> None:
    if ends_at == "enough events":
        monkeypatch.setattr("evenflow.runtime.failures.CAREFUL_EVENTS", 5)
    stage.fill(20, "0")
    ends = Ends(owners=ENDS_MOST, since=0, begun=0, fruitless=0)
    stage.store._records[GROUP] = {
        "0": Checkpoint(partition="0", epoch=0, position=at(-1), ordinal=0, notes=Notes(ends=ends).as_dict())
    }
    handled: list[int] = []

    async def handler(event: Event, partition: OwnedPartition) -> None:
        handled.append(event.sequence or 0)
        if event.sequence == 10 and ends_at == "enough events":
            await asyncio.Event().wait()  # the end is never reached

    async with stage.processor(handler, checkpoint=Every(seconds=1.0), stop_s=1.0):
        await until(lambda: 10 in handled)
        assert [(one.without_progress, one.ended) for one in stage.told(Careful)] == [(0, ENDS_MOST)]
        await until(lambda: notes_of(stage.store._records[GROUP]["0"]).ends is None)


async def test_who_falls_silent_before_its_seal_still_counts_the_owner_that_it_took_over_from(stage: Stage) -> None:
    """It takes its own lease again, and that is no takeover; but the owner before it has not been counted yet."""
    stage.fill(50, "0")
    assert await _die_at(stage, 0, [], 1) == 1
    before = (await stage.records())["0"].epoch
    processor = stage.processor(Poisonous(), instance_id="other")
    stage.store.away = {"seal"}
    async with processor:
        await until(lambda: "0" in processor._engine.coordinator.holds)  # type: ignore[union-attr]
        stage.store.away = EVERYTHING
        await until(lambda: [one for one in stage.told(Fenced) if one.partition == "0"])
        stage.store.away = set()
        await until(lambda: processor.owned.get("0", 0) > before + 1)
        record = (await stage.records())["0"]
        assert (record.begun, record.fruitless) == (0, 1)


async def test_who_leaves_right_after_its_seal_still_counts_the_owner_that_ended_in_an_event(stage: Stage) -> None:
    stage.fill(50, "0")
    assert await _die_at(stage, 0, [], 1) == 1
    record = (await stage.records())["0"]
    stage.store._records[GROUP]["0"] = replace(record, notes=Notes(trying=0).as_dict())
    processor, bounds = stage.processor(Poisonous(), instance_id="other"), stage.source.bounds

    async def leaves(partitions: Sequence[str]) -> Mapping[str, Bounds]:
        if "0" in partitions:
            processor.stop()
            await asyncio.Event().wait()
        return await bounds(partitions)

    stage.source.bounds = leaves  # type: ignore[method-assign]
    await processor.serve()
    found = await notes(stage)
    assert (found.trying, found.suspects) == (None, (Suspect(ordinal=0, deaths=1),))
    assert found.ends is not None


async def test_events_go_one_at_a_time_for_a_while_and_then_as_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.runtime.failures.CAREFUL_EVENTS", 5)
    sizes: list[int] = []

    async def handler(events: Sequence[Event], partition: OwnedPartition) -> None:
        sizes.append(len(events))

    stage.fill(20, "0")
    never_got_on = Checkpoint(partition="0", epoch=0, position=at(-1), ordinal=0, fruitless=3)
    stage.store._records[GROUP] = {"0": never_got_on}
    async with stage.processor(handler, batch=True):
        await until(lambda: sum(sizes) == 20)
    assert sizes == [1, 1, 1, 1, 1, 15]


async def test_with_manual_checkpoints_it_is_found_as_well(stage: Stage) -> None:
    handled: list[int] = []
    stage.fill(30, "0")
    await _die_at(stage, 20, handled, 10, checkpoint=Manual())
    (told,) = stage.told(Stopped)
    assert (told.partition, told.position.sequence) == ("0", 20)


# --- the watchdog
async def test_an_async_call_is_cancelled_at_its_limit_and_retried(stage: Stage) -> None:
    began: list[tuple[int, float]] = []
    completed: list[int] = []

    async def handler(event: Event, partition: OwnedPartition) -> None:
        began.append((event.sequence or 0, stage.now_s))
        await stage.clock().sleep(5.0 if len(began) == 2 else 0.9)
        completed.append(event.sequence or 0)

    stage.fill(3, "0")
    await stage.processor(handler, handler_timeout_s=1.0).serve(until="caught_up")
    assert [number for number, _ in began] == [0, 1, 1, 2]
    assert 1.0 <= began[2][1] - began[1][1] < 5.0
    assert completed == [0, 1, 2], "no call that completed counts as failed"
    assert "handler_timeout_s" in str(stage.told(Trouble)[0].error)


async def test_a_call_that_completes_in_spite_of_its_limit_has_succeeded(stage: Stage) -> None:
    calls: list[int] = []

    async def handler(event: Event, partition: OwnedPartition) -> None:
        calls.append(event.sequence or 0)
        with suppress(asyncio.CancelledError):
            await stage.clock().sleep(5.0)

    stage.fill(2, "0")
    await stage.processor(handler, handler_timeout_s=1.0).serve(until="caught_up")
    assert calls == [0, 1]


async def test_a_timeout_of_the_handlers_own_stays_its_own(stage: Stage) -> None:
    async def handler(event: Event, partition: OwnedPartition) -> None:
        raise TimeoutError("the service took too long")

    stage.fill(1, "0")
    async with stage.processor(handler, handler_timeout_s=1.0, retry=TWICE):
        await until(lambda: stage.told(Trouble))
    assert isinstance(stage.told(Trouble)[0].error, TimeoutError)
    assert "the service took too long" in str(stage.told(Trouble)[0].error)


async def test_a_batch_is_cancelled_at_its_limit_too(stage: Stage) -> None:
    sizes: list[int] = []

    async def handler(events: Sequence[Event], partition: OwnedPartition) -> None:
        sizes.append(len(events))
        await stage.clock().sleep(5.0 if len(sizes) == 1 else 0.0)

    stage.fill(4, "0")
    processor = stage.processor(handler, batch=True, handler_timeout_s=1.0)
    await processor.serve(until="caught_up")
    assert sizes[0] == 4
    assert sum(sizes[1:]) == 4


@pytest.mark.parametrize("option", ["retry", "breaker", "on_poison", "dead_letter_order", "handler_timeout_s"])
def test_bad_options_are_told(stage: Stage, option: str) -> None:
    from evenflow import Misconfigured

    def make(**options: Any) -> Processor:
        return stage.processor(**options)

    with pytest.raises(Misconfigured, match=option):
        make(**{option: "nonsense"})


# --- redrive
async def _ask_again(stage: Stage, dead_letters: MemoryDeadLetters, *sequences: int) -> None:
    """As an operator does: ask for dead letters, then tell the group."""
    for filed in fold(dead_letters.records(GROUP, "0")):
        if filed.dead_letter.event.sequence in sequences:
            await dead_letters.file(GROUP, "0", [filed.asked(by="ada", why="mended", at=0.0)])
    action = Action(kind="redrive", by="ada", why="mended", what="all")
    await stage.store.steer(GROUP, Steering(redrive=("0",)), action)


def _errors(dead_letters: MemoryDeadLetters) -> dict[int | None, str]:
    return {one.dead_letter.event.sequence: one.error for one in fold(dead_letters.records(GROUP, "0"))}


def _states(dead_letters: MemoryDeadLetters) -> dict[int | None, str]:
    return {one.dead_letter.event.sequence: one.state for one in fold(dead_letters.records(GROUP, "0"))}


async def test_a_redriven_dead_letter_goes_to_the_handler_once_and_progress_does_not_move(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(1, 2, 4)
    stage.fill(6, "0")
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters, breaker=None):
        await until(lambda: handler.handled == [0, 3, 5])
        handler.poison = {4}
        await _ask_again(stage, dead_letters, 1, 4)
        await until(lambda: _states(dead_letters) == {1: "redriven", 2: "dead", 4: "dead"})
        assert handler.handled == [0, 3, 5, 1]
        await _ask_again(stage, dead_letters)
        await stage.clock().sleep(30)
        assert handler.handled == [0, 3, 5, 1], "nothing twice"
        stage.fill(1, "0")
        await until(lambda: handler.handled == [0, 3, 5, 1, 6])
    assert (await stage.positions())["0"] == 6
    assert (await notes(stage)).redriven == 2
    again = Poisonous()
    await stage.processor(again, dead_letter=dead_letters).serve(until="caught_up")
    assert again.given == [], "a new owner knows what was redriven"


@pytest.mark.parametrize("batch", [False, True])
async def test_a_key_is_unparked_when_all_of_its_dead_letters_were_redriven_in_order(stage: Stage, batch: bool) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)
    options: dict[str, Any] = {"retry": TWICE, "dead_letter": dead_letters, "dead_letter_order": "key", "batch": batch}
    for key in "abab":
        stage.source.append("0", b"x", key=key)
    async with stage.processor(handler, **options):
        await until(lambda: handler.handled == [1, 3])
        await _ask_again(stage, dead_letters, 0, 2)
        before = handler.given.count(2)
        await until(lambda: [one.number for one in fold(dead_letters.records(GROUP, "0"))] == [1, 1])
        await until(lambda: _states(dead_letters) == {0: "dead", 2: "dead"})
        assert handler.given.count(2) == before, "it must not overtake the one before it"
        handler.poison.clear()
        stage.source.append("0", b"x", key="a")
        await until(lambda: 4 in _states(dead_letters))
        await _ask_again(stage, dead_letters, 0, 2, 4)
        await until(lambda: handler.handled == [1, 3, 0, 2, 4])
        stage.source.append("0", b"x", key="a")
        await until(lambda: handler.handled == [1, 3, 0, 2, 4, 5])
    assert (await notes(stage)).parked == {}


async def test_dead_letters_that_cannot_be_read_are_redriven_when_they_can(stage: Stage) -> None:
    dead_letters = PatchyDeadLetters()
    handler = Poisonous(0)
    stage.fill(2, "0")
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters):
        await until(lambda: handler.handled == [1])
        handler.poison.clear()
        await _ask_again(stage, dead_letters, 0)
        dead_letters.away = True
        await until(lambda: any(one.where == "dead letters" for one in stage.told(Trouble)))
        dead_letters.away = False
        await until(lambda: _states(dead_letters) == {0: "redriven"})


async def test_a_redriven_dead_letter_does_not_overtake_one_that_nobody_asked_for(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)
    for key in "aab":
        stage.source.append("0", b"x", key=key)
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters, dead_letter_order="key"):
        await until(lambda: handler.handled == [2])
        await _ask_again(stage, dead_letters, 1)
        await until(lambda: _errors(dead_letters)[1].startswith("an earlier dead letter of its key is dead"))
        handler.poison.clear()
        await _ask_again(stage, dead_letters, 0, 1)
        await until(lambda: handler.handled == [2, 0, 1])


async def test_dead_letters_are_redriven_in_the_order_of_their_events(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(2)
    stage.fill(4, "0")
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters) as processor:
        await until(lambda: handler.handled == [0, 1, 3])
        handler.poison = {0}
        await processor.seek("earliest", ["0"])
        await until(lambda: handler.handled == [0, 1, 3, 1, 2, 3])
        handler.poison.clear()
        handler.handled.clear()
        await _ask_again(stage, dead_letters, 0, 2)
        await until(lambda: handler.handled == [0, 2])


async def test_a_dead_letter_that_ends_its_process_does_so_once_for_each_time_it_is_asked_for(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    bad = Poisonous(1)
    stage.fill(3, "0")
    await stage.processor(bad, retry=TWICE, dead_letter=dead_letters).serve(until="caught_up")
    handled: list[int] = []
    deaths = 0

    def handler_in(running: Any) -> Any:
        async def handle(event: Event, partition: OwnedPartition) -> None:
            nonlocal deaths
            if partition.id == "0" and event.sequence == 1:
                deaths += 1
                await stage.clock(running).sleep(1.0)
                running.dead = True
                await stage.clock(running).sleep(1e9)
            handled.append(event.sequence or 0)

        return handle

    await _ask_again(stage, dead_letters, 1)
    for number in range(3):
        running = stage.new_process()
        running.start(
            stage.processor(
                handler_in(running), loop=running, instance_id=f"n{number}", retry=TWICE, dead_letter=dead_letters
            ).serve()
        )
        await until(lambda: running.dead or _states(dead_letters) == {1: "dead"})  # noqa: B023
    assert deaths == 1
    assert _errors(dead_letters)[1].startswith("the process that redrove it ended")
    stage.fill(1, "0")
    await until(lambda: 3 in handled)


async def test_a_redrive_that_waits_too_long_for_its_turn_is_not_taken_for_done(stage: Stage) -> None:
    """With concurrency=1, another partition's call may outlast the deadline that held when it began to wait."""
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)
    slow_s = 0.0

    async def handle(event: Event, partition: OwnedPartition) -> None:
        if partition.id == "1":
            await stage.clock().sleep(slow_s)
        else:
            await handler(event, partition)

    stage.fill(1, "0")
    async with stage.processor(handle, retry=TWICE, dead_letter=dead_letters, concurrency=1):
        await until(lambda: _states(dead_letters) == {0: "dead"})
        handler.poison.clear()
        slow_s = 60.0
        stage.fill(1, "1")
        await stage.clock().sleep(2.0)
        await _ask_again(stage, dead_letters, 0)
        await until(lambda: _states(dead_letters) == {0: "redriven"}, within_s=120.0)
    assert handler.handled == [0]


async def test_a_redrive_has_its_turn_however_long_it_waited(stage: Stage) -> None:
    """The lease was renewed meanwhile, and it goes by that."""
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)

    async def handle(event: Event, partition: OwnedPartition) -> None:
        if partition.id == "1":
            await stage.clock().sleep(60.0)
        else:
            await handler(event, partition)

    stage.fill(1, "0")
    async with stage.processor(handle, retry=TWICE, dead_letter=dead_letters, concurrency=1, stop_s=100.0):
        await until(lambda: _states(dead_letters) == {0: "dead"})
        handler.poison.clear()
        stage.fill(5, "1")
        await stage.clock().sleep(2.0)
        await _ask_again(stage, dead_letters, 0)
        await until(lambda: _states(dead_letters) == {0: "redriven"}, within_s=100.0)
    assert handler.handled == [0]


async def test_a_redrive_that_takes_too_long_is_told_too(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    bad = Poisonous(0)
    stage.fill(1, "0")

    async def handle(event: Event, partition: OwnedPartition) -> None:
        if not bad.poison:
            await stage.clock().sleep(5.0)
        await bad(event, partition)

    async with stage.processor(handle, retry=TWICE, dead_letter=dead_letters, handler_timeout_s=1.0):
        await until(lambda: _states(dead_letters) == {0: "dead"})
        bad.poison.clear()
        await _ask_again(stage, dead_letters, 0)
        await until(lambda: "handler_timeout_s" in _errors(dead_letters)[0])


async def test_after_the_store_has_forgotten_how_often_redrives_are_still_done(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)
    stage.fill(1, "0")
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters):
        await until(lambda: _states(dead_letters) == {0: "dead"})
        for _ in range(3):
            await _ask_again(stage, dead_letters, 0)
            await until(lambda: _states(dead_letters) == {0: "dead"})
    await until(lambda: True)
    state = stage.store._stored[GROUP].state
    stage.store._stored[GROUP].state = replace(state, redrives={})
    handler.poison.clear()
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters):
        await _ask_again(stage, dead_letters, 0)
        await until(lambda: _states(dead_letters) == {0: "redriven"})


# --- parked keys, and a position that goes back
async def test_with_manual_checkpoints_nothing_is_parked_that_comes_before_the_dead_letter(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    for key in "aaaa":
        stage.source.append("0", b"x", key=key)
    options: dict[str, Any] = {"retry": TWICE, "dead_letter": dead_letters, "dead_letter_order": "key"}
    first = Poisonous(2)
    async with stage.processor(first, checkpoint=Manual(), **options):
        await until(lambda: len(dead_letters.records(GROUP, "0")) == 2)
    second = Poisonous(2)
    async with stage.processor(second, checkpoint=Manual(), **options):
        await until(lambda: len(dead_letters.records(GROUP, "0")) == 4)
    assert second.handled == [0, 1]
    assert {one.dead_letter.event.sequence for one in fold(dead_letters.records(GROUP, "0"))} == {2, 3}


async def test_a_key_stays_parked_when_somebody_seeks(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)
    for key in "aab":
        stage.source.append("0", b"x", key=key)
    async with stage.processor(handler, retry=TWICE, dead_letter=dead_letters, dead_letter_order="key") as processor:
        await until(lambda: handler.handled == [2])
        await processor.seek("latest", ["0"])
        stage.source.append("0", b"x", key="a")
        stage.source.append("0", b"x", key="b")
        await until(lambda: handler.handled == [2, 4])
    assert [number for number, _ in await dead_letters_of(dead_letters)] == [0, 1, 3]


async def test_keys_that_were_parked_pass_where_order_is_not_asked_for(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    for key in "aa":
        stage.source.append("0", b"x", key=key)
    handler = Poisonous(0)
    await stage.processor(handler, retry=TWICE, dead_letter=dead_letters, dead_letter_order="key").serve(
        until="caught_up"
    )
    stage.source.append("0", b"x", key="a")
    await stage.processor(handler, retry=TWICE).serve(until="caught_up")
    assert handler.handled == [2]


async def test_more_than_a_record_can_hold_is_not_parked(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    for length in (60_000, 50_000):
        stage.source.append("0", b"x", key="k" * length)
    async with stage.processor(Poisonous(0, 1), retry=TWICE, dead_letter=dead_letters, dead_letter_order="key"):
        await until(lambda: bool(stage.told(Stopped)))
    assert "1 keys are parked, and the record has no room for more" in stage.told(Stopped)[0].error
    assert await dead_letters_of(dead_letters) == [(0, "poison")]


async def test_with_manual_checkpoints_what_killed_is_not_tried_again_by_the_next_owner(stage: Stage) -> None:
    dead_letters = MemoryDeadLetters()
    handled: list[int] = []
    stage.fill(10, "0")
    options: dict[str, Any] = {"checkpoint": Manual(), "dead_letter": dead_letters}
    await _die_at(stage, 5, handled, 10, **options)
    await until(lambda: 9 in handled)
    stage._loops[-1].dead = True  # whoever filed it, for another reason
    after = Poisonous()
    async with stage.processor(after, instance_id="after", **options):
        await until(lambda: 9 in after.handled)
    assert 5 not in after.given


# --- whatever an application may raise
class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Fatal(BaseException):
    pass


def _in_a_circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "RuntimeError: it raised SystemExit, which would have ended the process"),
        (Fatal(), "RuntimeError: it raised Fatal, which would have ended the process"),
        (asyncio.CancelledError(), "RuntimeError: it was cancelled from within"),
        (Unspeakable(), "Unspeakable: (it cannot be shown: its own __str__ fails)"),
        (ValueError("x" * 1_000_000), "ValueError: xxx"),
        (OSError("no file \udcff"), "OSError: no file \\udcff"),
        (_in_a_circle(), "ValueError: first"),
        (ExceptionGroup("all", [Unspeakable()]), "ExceptionGroup: all"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
async def test_whatever_a_handler_raises_is_a_failure_of_its_event(
    stage: Stage, error: BaseException, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "evenflow")  # what cannot be shown cannot be logged either
    dead_letters = MemoryDeadLetters()
    handled: list[int] = []

    async def handler(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 1:
            raise error
        handled.append(event.sequence or 0)

    stage.fill(3, "0")
    await stage.processor(handler, retry=TWICE, dead_letter=dead_letters).serve(until="caught_up")
    assert handled == [0, 2]
    (dead_letter,) = dead_letters.records(GROUP, "0")
    assert dead_letter.error.startswith(said)  # type: ignore[union-attr]
    assert len(dead_letter.error) <= 16_000  # type: ignore[union-attr]
    encode(GROUP, "0", dead_letter).decode()


# --- what is told of what stands still
async def test_a_partition_that_does_not_advance_is_told_once(stage: Stage) -> None:
    waits = True

    async def handler(event: Event, partition: OwnedPartition) -> None:
        while waits:
            await stage.clock().sleep(10.0)

    stage.fill(3, "0")
    async with stage.processor(handler, stalled_after_s=120.0):
        await stage.clock().sleep(1000)
        waits = False
    (told,) = stage.told(Stalled)
    assert (told.partition, told.lag) == ("0", 3)
    assert "handler has been running" in told.why


async def test_a_partition_without_lag_is_not_told(stage: Stage) -> None:
    stage.fill(3, "0")
    async with stage.processor(Poisonous()):
        await stage.clock().sleep(1000)
    assert stage.told(Stalled) == []
    assert stage.told(Unowned) == []


async def test_a_partition_that_was_idle_stands_still_since_it_has_lag(stage: Stage) -> None:
    waits_s, handled = 45.0, 0

    async def handler(event: Event, partition: OwnedPartition) -> None:
        nonlocal handled
        await stage.clock().sleep(waits_s)
        handled += 1

    async with stage.processor(handler):
        for number, idle_s in enumerate((75.0, 300.0, 601.0)):
            await stage.clock().sleep(idle_s)
            stage.fill(1, "0")
            await until(lambda: handled > number)  # noqa: B023 - it is called before the next turn
        assert stage.told(Stalled) == []
        waits_s = 100.0
        stage.fill(1, "0")
        await until(lambda: bool(stage.told(Stalled)))
    (told,) = stage.told(Stalled)
    assert 60 <= told.seconds <= 85
    assert told.why.startswith("its handler has been running for 6")


class Muted(FakeSource):
    """It has more events than its readers are given."""

    undelivered = 0
    asked = 0

    async def bounds(self, partitions: Sequence[str]) -> Mapping[str, Bounds]:
        self.asked += len(partitions)
        found = await super().bounds(partitions)
        more = {name: (one.newest.sequence or 0) + self.undelivered for name, one in found.items() if one.newest}
        return {name: replace(found[name], newest=Position(str(newest), newest)) for name, newest in more.items()}


async def test_a_source_that_delivers_nothing_is_told_and_seldom_asked(stage: Stage) -> None:
    source = Muted(1)
    source.append("0", b"x")
    async with stage.processor(Poisonous(), source=source):
        await stage.clock().sleep(20)
        before = source.asked
        await stage.clock().sleep(600)
        assert source.asked - before <= 42
        source.undelivered = 6
        await stage.clock().sleep(60)
        assert stage.told(Stalled) == []
        await until(lambda: bool(stage.told(Stalled)))
        await stage.clock().sleep(600)
    (told,) = stage.told(Stalled)
    assert (told.lag, told.why) == (6, "the source delivers nothing")
    assert 60 <= told.seconds <= 85


async def test_a_partition_that_nobody_may_own_is_told_once(stage: Stage) -> None:
    async with stage.processor(Poisonous(), max_partitions=1):
        await stage.clock().sleep(1000)
    (told,) = stage.told(Unowned)
    assert "as many as they may" in told.why


async def test_a_redrive_is_tried_a_few_times(stage: Stage) -> None:
    """A dead letter that meets a hiccup is not dead again at once."""
    dead_letters = MemoryDeadLetters()
    handler = Poisonous(0)
    stage.fill(1, "0")
    tried = 0

    async def handle(event: Event, partition: OwnedPartition) -> None:
        nonlocal tried
        if not handler.poison:
            tried += 1
            if tried < 3:
                raise ConnectionError("a hiccup")
        await handler(event, partition)

    async with stage.processor(handle, retry=Retry(attempts=5), dead_letter=dead_letters):
        await until(lambda: _states(dead_letters) == {0: "dead"})
        handler.poison.clear()
        await _ask_again(stage, dead_letters, 0)
        await until(lambda: _states(dead_letters) == {0: "redriven"})
    assert tried == 3
