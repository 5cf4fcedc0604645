"""A processor as its user sees it: handlers, order, concurrency, two of them in one program, and misuse."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, Manual, Misconfigured, Processor, UnknownScheme
from evenflow.signals import Joined, Left, LoopBlocked, PartitionStarted, PartitionStopped
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import GROUP, Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition, Signal


# --- handlers
async def test_every_event_is_handled_in_order(stage: Stage) -> None:
    seen = Seen()
    stage.fill(50)
    async with stage.processor(seen):
        await until(lambda: len(seen) == 100)
        stage.fill(5)
        await until(lambda: len(seen) == 110)
    assert seen.of("0") == seen.of("1") == list(range(55))
    assert await stage.positions() == {"0": 54, "1": 54}


async def test_a_batch_handler_gets_some_events_of_one_partition(stage: Stage) -> None:
    calls: list[tuple[str, list[int | None]]] = []

    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        calls.append((partition.id, [event.sequence for event in events]))

    stage.fill(25)
    async with stage.processor(handle, batch=True, batch_events=10):
        await until(lambda: sum(len(given) for _, given in calls) == 50)
    sizes = [len(given) for partition, given in calls if partition == "0"]
    assert sizes == [10, 10, 5]
    assert [number for partition, given in calls if partition == "0" for number in given] == list(range(25))
    assert await stage.positions() == {"0": 24, "1": 24}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_all_four_kinds_of_handlers_on_a_real_loop(plain: bool, batch: bool) -> None:
    source, store = FakeSource(3), MemoryStore()
    for number in range(300):
        source.append(str(number % 3), b"%d" % number)
    seen: list[tuple[str, int]] = []
    threads: set[threading.Thread] = set()

    def note(given: Any, partition: OwnedPartition) -> None:
        threads.add(threading.current_thread())
        seen.extend((partition.id, event.sequence) for event in (given if batch else [given]))

    async def note_async(given: Any, partition: OwnedPartition) -> None:
        note(given, partition)

    processor = Processor(source, store, "group", batch_events=40)
    (processor.on_batch if batch else processor.on_event)(note if plain else note_async)
    await processor.serve(until="caught_up")
    for partition in "012":
        assert [number for name, number in seen if name == partition] == list(range(100))
    assert (threading.current_thread() in threads) is not plain
    assert {record.position.sequence for record in await store.checkpoints(GROUP)} == {99}


async def test_a_plain_handler_on_a_thread_never_stalls_another_partition() -> None:
    source, store = FakeSource(2), MemoryStore()
    source.append("0", b"slow")
    source.append("1", b"quick")
    may_end, quick = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    processor = Processor(source, store, "group")

    @processor.on_event
    def handle(event: Event, partition: OwnedPartition) -> None:
        if event.body == b"slow":
            may_end.wait(10.0)
        else:
            loop.call_soon_threadsafe(quick.set)

    async with processor:
        try:
            await asyncio.wait_for(quick.wait(), 10.0)
        finally:
            may_end.set()


async def test_a_plain_handler_checkpoints_by_hand() -> None:
    source, store = FakeSource(1), MemoryStore()
    for _ in range(10):
        source.append("0", b"x")
    processor = Processor(source, store, "group", checkpoint=Manual())
    loop = asyncio.get_running_loop()
    stood: list[int | None] = []

    async def where() -> int | None:
        (record,) = await store.checkpoints(GROUP)
        return record.position.sequence

    @processor.on_event
    def handle(event: Event, partition: OwnedPartition) -> None:
        if event.sequence == 6:
            partition.checkpoint()
            stood.append(asyncio.run_coroutine_threadsafe(where(), loop).result(10.0))

    await processor.serve(until="caught_up")
    assert stood == [6], "it was written when checkpoint() returned"
    assert await where() == 6, "and nothing moves it but the handler"


async def test_the_partition_tells_the_handler_who_it_is(stage: Stage) -> None:
    told: set[tuple[str, int, bool]] = set()
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        told.add((partition.id, partition.epoch, partition.is_stopping))

    stage.fill(1)
    async with processor:
        await until(lambda: len(told) == 2)
        assert processor.owned == {"0": 1, "1": 1}
    assert told == {("0", 1, False), ("1", 1, False)}
    assert processor.owned == {}


async def test_an_instance_has_a_name(stage: Stage) -> None:
    named, unnamed = stage.processor(Seen(), instance_id="ada"), stage.processor(Seen(), group="other")
    assert (named.instance_id, unnamed.instance_id) == ("ada", None)
    async with named, unnamed:
        assert named.instance_id == "ada"
        assert unnamed.instance_id is not None
        assert f"-{os.getpid()}-" in unnamed.instance_id
    other = stage.processor(Seen(), group="other")
    async with unnamed, other:
        assert unnamed.instance_id != other.instance_id, "each start has a name of its own"


# --- the order of calls
async def test_inside_a_partition_calls_never_overlap_and_partitions_run_at_the_same_time(stage: Stage) -> None:
    running: list[str] = []
    most: dict[str, int] = {"0": 0, "1": 0, "all": 0}
    processor = stage.processor()

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        running.append(partition.id)
        most[partition.id] = max(most[partition.id], running.count(partition.id))
        most["all"] = max(most["all"], len(running))
        await asyncio.sleep(0.1)
        running.remove(partition.id)

    stage.fill(20)
    await processor.serve(until="caught_up")
    assert most == {"0": 1, "1": 1, "all": 2}


@pytest.mark.parametrize("limit", [1, 2])
async def test_concurrency_limits_calls_over_all_partitions(stage: Stage, limit: int) -> None:
    stage.source.grow(4)
    running, most, handled = 0, 0, 0
    processor = stage.processor(concurrency=limit)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        nonlocal running, most, handled
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1
        handled += 1

    stage.fill(5)
    await processor.serve(until="caught_up")
    assert most == limit
    assert handled == 30


async def test_with_a_limit_of_one_a_busy_partition_leaves_turns_to_the_others(stage: Stage) -> None:
    processor = stage.processor(concurrency=1)
    first_of_1: list[int] = []
    handled_of_0 = 0

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        nonlocal handled_of_0
        await asyncio.sleep(0.005)
        if partition.id == "0":
            handled_of_0 += 1
        else:
            first_of_1.append(handled_of_0)

    stage.fill(500, "0")
    stage.fill(1, "1")
    await processor.serve(until="caught_up")
    assert first_of_1[0] < 100


# --- two of them
async def test_two_processors_in_one_program_on_two_groups_know_nothing_of_each_other(stage: Stage) -> None:
    stage.fill(10)
    first, second = Seen(), Seen()
    async with stage.processor(first, group="first") as one, stage.processor(second, group="second") as other:
        await until(lambda: len(first) == len(second) == 20)
        assert one.owned.keys() == other.owned.keys() == {"0", "1"}
    assert sorted(first) == sorted(second)
    assert len(await stage.store.groups()) == 2


async def test_two_processors_of_one_group_share_the_partitions(stage: Stage) -> None:
    stage.source.grow(4)
    first, second = Seen(), Seen()
    async with stage.processor(first, instance_id="a") as one:
        await until(lambda: len(one.owned) == 6)
        async with stage.processor(second, instance_id="b") as other:
            await until(lambda: len(one.owned) == len(other.owned) == 3)
            stage.fill(10)
            await until(lambda: len(first) + len(second) == 60)
            assert set(one.owned).isdisjoint(other.owned)
        await until(lambda: len(one.owned) == 6)
    assert len(set(first) | set(second)) == 60, "nothing was handled twice"


async def test_a_processor_can_run_again(stage: Stage) -> None:
    seen = Seen()
    processor = stage.processor(seen)
    stage.fill(5)
    await processor.serve(until="caught_up")
    stage.fill(5)
    await processor.serve(until="caught_up")
    assert seen.of("0") == seen.of("1") == list(range(10))


# --- what is told
async def test_what_happens_is_told(stage: Stage) -> None:
    stage.fill(3)
    processor = stage.processor(Seen(), instance_id="ada")
    await processor.serve(until="caught_up")
    (joined,) = stage.told(Joined)
    assert (joined.instance, joined.group, joined.incarnation) == ("ada", str(GROUP), 1)
    assert sorted((one.partition, one.epoch, one.after.sequence) for one in stage.told(PartitionStarted)) == [
        ("0", 1, -1),
        ("1", 1, -1),
    ]
    assert sorted((one.partition, one.reason, one.handled) for one in stage.told(PartitionStopped)) == [
        ("0", "leaving", 3),
        ("1", "leaving", 3),
    ]
    assert len(stage.told(Left)) == 1
    assert all(one.instance == "ada" for one in stage.happened)


async def test_a_name_that_nobody_gave_is_one_that_nobody_else_has(stage: Stage) -> None:
    """Containers share host names and process ids: what is random must be enough for a large fleet."""
    await stage.processor(Seen(), instance_id=None).serve(until="caught_up")
    (joined,) = stage.told(Joined)
    assert re.fullmatch(r".+-\d+-[0-9a-f]{8,}", joined.instance)


async def test_a_listener_that_fails_changes_nothing(stage: Stage) -> None:
    def fail(signal: Signal) -> None:
        raise ValueError("a bad listener")

    seen = Seen()
    processor = stage.processor(seen)
    processor.listen(fail)
    stage.fill(3)
    await processor.serve(until="caught_up")
    assert len(seen) == 6


async def test_a_handler_that_blocks_the_loop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from evenflow.runtime import watchdog

    taken = threading.Event()
    stack_of = watchdog._stack_of

    def take(thread_id: int) -> str:
        stack = stack_of(thread_id)
        if "greedy" in stack:  # on a busy machine, others may be slow as well
            taken.set()
        return stack

    monkeypatch.setattr(watchdog, "_stack_of", take)
    source = FakeSource(1)
    source.append("0", b"x")
    processor = Processor(source, MemoryStore(), "group")
    assert processor._watch is not None
    processor._watch._limit_s = 0.02
    told: list[Signal] = []
    processor.listen(told.append)

    @processor.on_event
    async def greedy(event: Event, partition: OwnedPartition) -> None:
        taken.wait(10.0)

    async with processor:
        await until(lambda: any("greedy" in one.stack for one in told if isinstance(one, LoopBlocked)), 10.0)


async def test_a_handler_may_be_any_object(stage: Stage) -> None:
    class Empty:
        """Looks like nothing."""

        calls = 0

        def __len__(self) -> int:
            return 0

        async def __call__(self, event: Event, partition: OwnedPartition) -> None:
            self.calls += 1

    handler = Empty()
    stage.fill(3)
    await stage.processor(handler).serve(until="caught_up")
    assert handler.calls == 6


# --- misuse
async def test_without_a_handler_there_is_nothing_to_run(stage: Stage) -> None:
    with pytest.raises(Misconfigured, match=r"there is no handler: put @processor\.on_event"):
        await stage.processor().serve()


def test_a_processor_takes_one_handler() -> None:
    processor = Processor(FakeSource(), MemoryStore(), "group")
    processor.on_event(Seen())
    with pytest.raises(Misconfigured, match="has a handler already"):
        processor.on_batch(Seen())
    with pytest.raises(Misconfigured, match="has a handler already"):
        processor.on_event(Seen())


@pytest.mark.parametrize("name", ["on_event", "on_batch", "on_error", "on_partition_start", "on_partition_stop"])
def test_what_is_no_function_is_refused_where_it_is_given(name: str) -> None:
    processor = Processor(FakeSource(), MemoryStore(), "group")
    with pytest.raises(Misconfigured, match=rf"{name} needs a function, not None"):
        getattr(processor, name)(None)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("on_event", "two arguments, (event, partition)"),
        ("on_batch", "two arguments, (events, partition)"),
        ("on_error", "two arguments, (error, partition)"),
        ("on_partition_start", "one argument, (partition)"),
        ("on_partition_stop", "two arguments, (partition, reason)"),
    ],
)
def test_a_wrong_number_of_arguments_is_refused_where_it_is_given(name: str, arguments: str) -> None:
    processor = Processor(FakeSource(), MemoryStore(), "group")

    def strange(one: object, two: object, three: object) -> None: ...

    with pytest.raises(Misconfigured) as refused:
        getattr(processor, name)(strange)
    assert f"strange must take {arguments}" in str(refused.value)


async def test_a_processor_runs_once_at_a_time(stage: Stage) -> None:
    processor = stage.processor(Seen())
    serving = asyncio.create_task(processor.serve())
    await until(lambda: processor.owned)
    with pytest.raises(Misconfigured, match="runs already; make a second one"):
        await processor.serve()
    with pytest.raises(Misconfigured, match="runs already; make a second one"):
        async with processor:
            pass
    assert processor.owned, "the one that runs is not disturbed"
    processor.stop()
    await serving


@pytest.mark.parametrize(
    ("source", "store", "message"),
    [
        ("kafkaa://host/topic", "memory:", "source 'kafkaa://host/topic': unknown scheme; known are .*hub:"),
        (FakeSource(), "mongo:x", "store 'mongo:x': unknown scheme; known are .*memory:, .*sqlite:"),
        (FakeSource(), "leases", "store 'leases': unknown scheme"),
    ],
)
def test_an_unknown_url_is_told_when_the_processor_is_made(source: Any, store: str, message: str) -> None:
    with pytest.raises(UnknownScheme, match=message):
        Processor(source, store, "group")


@pytest.mark.parametrize(("source", "store"), [(object(), MemoryStore()), (FakeSource(), object())])
async def test_what_is_no_source_or_store_is_refused(source: Any, store: Any) -> None:
    processor = Processor(source, store, "group")
    processor.on_event(Seen())
    with pytest.raises(Misconfigured, match="give a"):
        await processor.serve()


async def test_until_is_caught_up_or_nothing(stage: Stage) -> None:
    with pytest.raises(Misconfigured, match="until='done': give 'caught_up'"):
        await stage.processor(Seen()).serve(until="done")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"group": ""}, {"checkpoint": 5}, {"start": "first"}, {"ttl_s": 1.0}])
def test_bad_options_are_refused_when_the_processor_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured):
        Processor(**{"source": FakeSource(), "store": MemoryStore(), "group": "group", **options})


async def test_the_policy_of_checkpoints_is_kept(stage: Stage) -> None:
    stood: list[dict[str, int | None]] = []

    async def handle(event: Event, partition: OwnedPartition) -> None:
        await asyncio.sleep(0.001)
        stood.append(await stage.positions())

    stage.fill(100, "0")
    await stage.processor(handle, checkpoint=Every(events=10)).serve(until="caught_up")
    behind = [number - (positions["0"] or 0) for number, positions in enumerate(stood)]
    assert max(behind) <= 12
    assert min(behind) >= 1, "nothing is written that was not handled"
