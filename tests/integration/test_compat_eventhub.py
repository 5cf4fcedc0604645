"""The drop-in client beside the official one: the same program, run with both, sees the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import azure.eventhub.aio
import pytest
from azure.eventhub import CloseReason, EventData
from azure.eventhub.exceptions import OwnershipLostError

from evenflow import Misconfigured
from evenflow.compat import checkpointstore
from evenflow.compat.eventhub.stores import store_of
from evenflow.stores.memory import MemoryStore
from evenflow.testing import event_hub
from tests.integration.compat_scene import (
    ASYNC,
    GROUP,
    OURS,
    PATIENCE_S,
    QUICK,
    Program,
    Running,
    bodies,
    both,
    fill,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.testing import EventHub


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(2, groups=[GROUP]) as found:
        yield found


# --- the same as the official one
@both
def test_events_are_the_official_objects_and_contexts_tell_where(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 5)
        async with Running(kind, served, {"starting_position": "-1", "batch": True}) as running:
            program = running.program
            await until(lambda: len(program.seen) == 5, "five events")
            first = program.batches[0][0]
            assert isinstance(first, EventData)
            assert (first.sequence_number, first.offset, first.partition_key) == (0, "0", b"key-0")
            assert first.properties == {b"n": 0}
            assert first.enqueued_time is not None
            assert (first.raw_amqp_message.annotations or {})[b"x-opt-sequence-number"] == 0
            assert sorted(program.opened) == ["0", "1"]
        assert sorted(program.closed) == [("0", CloseReason.SHUTDOWN), ("1", CloseReason.SHUTDOWN)] or sorted(
            one for one, _ in program.closed
        ) == ["0", "1"]
        assert {reason for _, reason in program.closed} == {CloseReason.SHUTDOWN}
        assert not program.errors

    asyncio.run(main())


PLACES: list[tuple[Any, Any, int]] = [
    ({"0": 7, "1": "@latest"}, {"0": True}, 7),
    ("4", True, 4),
    (None, False, 10),
    ("-1", False, 0),
    ("@latest", False, 10),
    (4, False, 5),
    (4, True, 4),
    ("4", False, 5),
    ({"1": "@latest"}, False, 0),
]


@pytest.mark.parametrize(
    ("kind", "place", "inclusive", "first"),
    [(ASYNC[0], *place) for place in PLACES[:3]] + [(ASYNC[1], *place) for place in PLACES],
)
def test_starting_positions(kind: Any, served: EventHub, place: Any, inclusive: Any, first: int) -> None:
    async def main() -> None:
        await fill(served, 10)
        terms = {"starting_position": place, "starting_position_inclusive": inclusive}
        async with Running(kind, served, terms) as running:
            program = running.program
            await until(lambda: "0" in program.opened, "the partition")
            if first == 10:
                await asyncio.sleep(0.7)  # the official client attaches only after this
            await fill(served, 2, start=10)
            await until(lambda: bodies(program)[-1:] == ["11"], "the last one")
            assert bodies(program) == [str(number) for number in range(first, 12)]

    asyncio.run(main())


@both
@pytest.mark.parametrize("inclusive", [False, True])
def test_a_starting_time(kind: Any, served: EventHub, inclusive: bool) -> None:
    async def main() -> None:
        await fill(served, 3)
        await asyncio.sleep(0.02)
        await fill(served, 3, start=3)
        async with Running(kind, served, {"starting_position": "-1"}) as running:
            await until(lambda: len(running.program.seen) == 6, "all")
            moment = running.program.contexts["0"]._last_received_event.enqueued_time
        async with Running(
            kind, served, {"starting_position": moment, "starting_position_inclusive": inclusive}
        ) as running:
            await until(lambda: "0" in running.program.opened, "the partition")
            await asyncio.sleep(0.5)
            await fill(served, 1, start=6)
            await until(lambda: bodies(running.program)[-1:] == ["6"], "the last one")
            came = bodies(running.program)
        assert ("5" in came) is inclusive
        assert "0" not in came

    asyncio.run(main())


@both
@pytest.mark.parametrize("batch", [False, True])
def test_who_waits_is_told_that_nothing_comes(kind: Any, served: EventHub, batch: bool) -> None:
    async def main() -> None:
        terms = {"starting_position": "-1", "max_wait_time": 0.2, "batch": batch, "partition_id": "0"}
        async with Running(kind, served, terms) as running:
            program = running.program
            await until(lambda: program.idle >= 2 or program.batches[:2] == [[], []], "two calls without events")
            await fill(served, 3)
            await until(lambda: len(program.seen) == 3, "events")
            assert bodies(program) == ["0", "1", "2"]

    asyncio.run(main())


@both
def test_last_enqueued_properties_are_tracked(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 5)
        terms = {"starting_position": "-1", "track_last_enqueued_event_properties": True}
        async with Running(kind, served, terms) as running:
            await until(lambda: len(running.program.seen) == 5, "events")
            found = running.program.contexts["0"].last_enqueued_event_properties
            assert found["sequence_number"] == 4
            assert found["offset"] == "4"
            assert found["enqueued_time"] is not None

    asyncio.run(main())


@both
def test_one_partition_alone(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        await fill(served, 3, partition="1")
        async with Running(kind, served, {"starting_position": "-1", "partition_id": "1"}) as running:
            await until(lambda: len(running.program.seen) == 3, "events")
            assert bodies(running.program, "1") == ["0", "1", "2"]
            assert running.program.opened == ["1"]
            with pytest.raises(ValueError, match="already receiving"):
                await running.client.receive(running.program.on_event, partition_id="1")

    asyncio.run(main())


@both
def test_two_clients_without_a_store_both_get_everything(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        terms = {"starting_position": "-1"}
        async with Running(kind, served, terms) as one, Running(kind, served, terms) as other:
            await until(lambda: len(one.program.seen) == len(other.program.seen) == 3, "both")
            assert not one.program.errors
            assert not other.program.errors

    asyncio.run(main())


@both
def test_a_callback_that_fails_is_told_and_begins_again_after_the_checkpoint(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 6)
        async with Running(kind, served, {"starting_position": "-1", "partition_id": "0"}) as running:
            program = running.program
            program.checkpoints = False
            times = 0

            def fails(context: Any, event: Any) -> bool:
                nonlocal times
                times += event.sequence_number == 4
                return bool(event.sequence_number == 4 and times == 1)

            program.fails = fails
            await until(lambda: bodies(program)[-1:] == ["5"], "the last one")
            # Nothing was marked, so all of it comes again.
            assert bodies(program) == ["0", "1", "2", "3", "0", "1", "2", "3", "4", "5"]
            assert [(where, type(error)) for where, error in program.errors] == [("0", ZeroDivisionError)]
            assert program.opened == ["0", "0"]
            assert program.closed == [("0", CloseReason.OWNERSHIP_LOST)]

    asyncio.run(main())


@both
def test_a_callback_may_close_its_own_client(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        client = kind.from_connection_string(served.connection_string, GROUP, **QUICK)
        seen: list[str] = []

        async def on_event(context: Any, event: Any) -> None:
            seen.append(event.body_as_str())
            if len(seen) == 2:
                await client.close()

        async with asyncio.timeout(PATIENCE_S):
            await client.receive(on_event, starting_position="-1")
        assert seen == ["0", "1"]

    asyncio.run(main())


@both
def test_properties_of_hub_and_partition(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        async with kind.from_connection_string(served.connection_string, GROUP) as client:
            assert await client.get_partition_ids() == ["0", "1"]
            assert (await client.get_eventhub_properties())["eventhub_name"] == "hub"
            assert (await client.get_partition_properties("0"))["last_enqueued_sequence_number"] == 2

    asyncio.run(main())


# --- what is more than the official one does
def test_clients_that_share_a_store_share_the_partitions_and_hand_them_over(served: EventHub, tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:{tmp_path / 'leases'}"
        terms = {"starting_position": "-1"}
        async with Running(OURS, served, terms, checkpoint_store=url) as one:
            await until(lambda: sorted(one.program.opened) == ["0", "1"], "everything")
            async with Running(OURS, served, terms, checkpoint_store=url) as other:
                for number in range(0, 60, 3):
                    for partition in "01":
                        await fill(served, 3, partition, number)
                await until(lambda: other.program.opened, "a share")
                (moved,) = other.program.opened
                assert one.program.closed == [(moved, CloseReason.OWNERSHIP_LOST)]
                await until(lambda: len(one.program.seen) + len(other.program.seen) >= 120, "all events")
            assert [reason for _, reason in other.program.closed] == [CloseReason.SHUTDOWN]
            await fill(served, 1, moved, 60)
            await until(lambda: (moved, "60") in one.program.seen, "the partition to come back")
        seen = one.program.seen + other.program.seen
        assert sorted(seen) == sorted([(p, str(n)) for p in "01" for n in range(60)] + [(moved, "60")])
        assert not one.program.errors + other.program.errors

    asyncio.run(main())


@pytest.mark.parametrize("terms", [{}, {"partition_id": "0"}], ids=["all", "one partition"])
def test_a_checkpoint_is_where_the_next_one_begins(served: EventHub, terms: dict[str, Any]) -> None:
    async def main() -> None:
        store = MemoryStore()
        await fill(served, 4)
        places = {"starting_position": "-1", **terms}
        async with Running(OURS, served, places, checkpoint_store=store) as running:
            await until(lambda: running.program.marked == 4, "the first four")
        await fill(served, 2, start=4)
        async with Running(OURS, served, places, checkpoint_store=store) as running:
            await until(lambda: len(running.program.seen) == 2, "the other two")
            assert bodies(running.program) == ["4", "5"]

    asyncio.run(main())


def test_a_start_at_the_latest_is_kept_from_the_first_time_on(served: EventHub) -> None:
    """Nothing is missed between a start and the first checkpoint."""

    async def main() -> None:
        store = MemoryStore()
        await fill(served, 2)
        async with Running(OURS, served, {}, checkpoint_store=store) as running:
            await until(lambda: "0" in running.program.opened, "the partition")
        await fill(served, 2, start=2)
        async with Running(OURS, served, {}, checkpoint_store=store) as running:
            await until(lambda: len(running.program.seen) == 2, "what came in between")
            assert bodies(running.program) == ["2", "3"]

    asyncio.run(main())


def test_an_event_may_be_marked_after_its_callback_has_returned(served: EventHub) -> None:
    async def main() -> None:
        store = MemoryStore()
        await fill(served, 5)
        places = {"starting_position": "-1", "batch": True}
        running = Running(OURS, served, places, checkpoint_store=store)
        kept: list[Any] = []

        async def keep(context: Any, events: list[Any]) -> None:
            kept.extend((context, event) for event in events)

        running.program.on_event_batch = keep  # type: ignore[method-assign]
        async with running:
            await until(lambda: len(kept) == 5, "all five")
            context, event = kept[2]
            await context.update_checkpoint(event)
            with pytest.raises(Misconfigured, match="a callback of this client was given"):
                await context.update_checkpoint(EventData(b"another"))
        with pytest.raises(OwnershipLostError):
            await context.update_checkpoint(kept[4][1])
        async with Running(OURS, served, {"starting_position": "-1"}, checkpoint_store=store) as again:
            await until(lambda: len(again.program.seen) == 2, "what was not marked")
            assert bodies(again.program) == ["3", "4"]

    asyncio.run(main())


def test_a_checkpoint_store_that_could_go_back_is_refused(served: EventHub) -> None:
    class Homemade(azure.eventhub.aio.CheckpointStore):
        async def list_ownership(self, *given: Any, **more: Any) -> Any: ...
        async def claim_ownership(self, *given: Any, **more: Any) -> Any: ...
        async def update_checkpoint(self, *given: Any, **more: Any) -> Any: ...
        async def list_checkpoints(self, *given: Any, **more: Any) -> Any: ...

    async def main() -> None:
        client = OURS.from_connection_string(served.connection_string, GROUP, checkpoint_store=Homemade())
        with pytest.raises(Misconfigured, match="a Homemade cannot be used"):
            await client.receive(Program().on_event)

    asyncio.run(main())


@pytest.mark.parametrize("aio", [True, False], ids=["aio", "plain"])
def test_a_store_for_the_official_client_is_the_store_behind_it(tmp_path: Path, aio: bool) -> None:
    kind: Any = checkpointstore.aio.EvenflowCheckpointStore if aio else checkpointstore.EvenflowCheckpointStore
    memory = MemoryStore()
    assert store_of(kind(memory)) == (memory, False)
    opened, is_mine = store_of(kind(f"sqlite:{tmp_path}"))
    assert type(opened).__name__ == "SQLiteStore"
    assert is_mine
