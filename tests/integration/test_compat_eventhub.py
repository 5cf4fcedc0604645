"""The drop-in client beside the official one: the same program, run with both, sees the same."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CloseReason, EventData

from evenflow.testing import event_hub
from tests.integration.compat_scene import both, fill, served
from tests.unit.compat.eventhub.scene import (
    GROUP,
    OURS,
    PATIENCE_S,
    QUICK,
    START,
    Running,
    bodies,
    has_come_to,
    has_seen,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.testing import EventHub

__all__ = ["served"]


# --- the same as the official one
@both
def test_events_are_the_official_objects_and_contexts_tell_where(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 5)
        terms = {**START, "batch": True, "track_last_enqueued_event_properties": True}
        async with Running(kind, served, terms) as running:
            program = running.program
            await until(lambda: len(program.seen) == 5 and len(program.opened) == 2, "five events, both partitions")
            _check_event(program.batches[0][0])
            _check_newest(program.contexts["0"].last_enqueued_event_properties)
            assert sorted(program.opened) == ["0", "1"]
        assert sorted(program.closed) == [("0", CloseReason.SHUTDOWN), ("1", CloseReason.SHUTDOWN)]
        assert not program.errors
        async with kind.from_connection_string(served.connection_string, GROUP) as client:
            assert await client.get_partition_ids() == ["0", "1"]
            assert (await client.get_eventhub_properties())["eventhub_name"] == "hub"
            assert (await client.get_partition_properties("0"))["last_enqueued_sequence_number"] == 4

    asyncio.run(main())


def _check_event(first: EventData) -> None:
    assert isinstance(first, EventData)
    assert (first.sequence_number, first.offset, first.partition_key) == (0, "0", b"key-0")
    assert first.properties == {b"n": 0}
    assert first.enqueued_time is not None
    assert (first.raw_amqp_message.annotations or {})[b"x-opt-sequence-number"] == 0


def _check_newest(found: dict[str, Any]) -> None:
    assert (found["sequence_number"], found["offset"]) == (4, "4")
    assert found["enqueued_time"] is not None


PLACES: list[tuple[Any, Any, int]] = [
    ({"0": 7, "1": "@latest"}, {"0": True}, 7),
    ("4", True, 4),
    ("4", False, 5),
    ("04", False, 5),  # an offset that is no event's own does not replay everything
    ("-1", False, 0),
    (4, False, 5),
    (4, True, 4),
    ({"1": "@latest"}, False, 0),
]


@both
def test_starting_positions(kind: Any) -> None:
    """Each client is in a consumer group of its own: a group has at most five such readers."""
    groups = [f"group-{number}" for number in range(len(PLACES))]

    async def main(served: EventHub) -> None:
        await fill(served, 12)
        async with AsyncExitStack() as clients:
            runs: list[Running] = []
            for group, (place, inclusive, _) in zip(groups, PLACES, strict=True):
                terms = {"starting_position": place, "starting_position_inclusive": inclusive}
                runs.append(await clients.enter_async_context(Running(kind, served, terms, group=group)))
            for (place, inclusive, first), running in zip(PLACES, runs, strict=True):
                program, where = running.program, f"{place!r}, {inclusive=}"
                await until(has_come_to(program, "11"), f"the last one, from {where}")
                assert bodies(program) == [str(number) for number in range(first, 12)], where
                assert not program.errors, where

    with event_hub(1, groups=groups) as served:
        asyncio.run(main(served))


@both
def test_a_start_at_the_latest_begins_with_what_comes_next(kind: Any, served: EventHub) -> None:
    """So for each of two clients of a group: without a store, both get everything."""

    async def main() -> None:
        await fill(served, 10)
        async with (
            Running(kind, served, {}) as one,
            Running(kind, served, {"starting_position": "@latest"}) as other,
        ):
            programs, sent = [one.program, other.program], 10
            while not all(bodies(program) for program in programs):  # only a client that is attached gets them
                await fill(served, 1, start=sent)
                sent += 1
                await asyncio.sleep(0.05)
            for program in programs:
                await until(has_come_to(program, str(sent - 1)), "the last one")
                first = int(bodies(program)[0])
                assert first >= 10
                assert bodies(program) == [str(number) for number in range(first, sent)]
                assert not program.errors

    asyncio.run(main())


@both
def test_a_starting_time(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        await asyncio.sleep(0.02)  # times count in milliseconds
        await fill(served, 3, start=3)
        async with Running(kind, served, START) as running:
            await until(lambda: len(running.program.seen) == 6, "all")
            moment = running.program.contexts["0"]._last_received_event.enqueued_time
        await asyncio.sleep(0.02)
        await fill(served, 1, start=6)
        at, after = ({"starting_position": moment, "starting_position_inclusive": one} for one in (True, False))
        async with Running(kind, served, at) as inclusive, Running(kind, served, after) as exclusive:
            for running in (inclusive, exclusive):
                await until(has_come_to(running.program, "6"), "the last one")
            came = bodies(inclusive.program)
            assert "5" in came
            assert "0" not in came
            assert bodies(exclusive.program) == ["6"]

    asyncio.run(main())


@both
def test_an_application_that_waits_is_called_when_nothing_comes(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        terms = {**START, "max_wait_time": 0.2, "partition_id": "0"}
        async with Running(kind, served, terms) as single, Running(kind, served, {**terms, "batch": True}) as batches:
            await until(lambda: single.program.idle >= 2, "two calls without an event")
            await until(lambda: batches.program.batches[:2] == [[], []], "two empty batches")
            await fill(served, 3)
            for running in (single, batches):
                await until(has_seen(running.program, 3), "events")
                assert bodies(running.program) == ["0", "1", "2"]

    asyncio.run(main())


@both
def test_one_partition_alone(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        await fill(served, 3, partition="1")
        async with Running(kind, served, {**START, "partition_id": "1"}) as running:
            await until(lambda: len(running.program.seen) == 3, "events")
            assert bodies(running.program, "1") == ["0", "1", "2"]
            assert running.program.opened == ["1"]
            with pytest.raises(ValueError, match="already receiving"):
                await running.client.receive(running.program.on_event, partition_id="1")

    asyncio.run(main())


@both
def test_a_callback_that_fails_is_reported_and_begins_again_after_the_checkpoint(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 6)
        async with Running(kind, served, {**START, "partition_id": "0"}) as running:
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
            await client.receive(on_event, **START)
        assert seen == ["0", "1"]

    asyncio.run(main())


# --- what is more than the official one does
def test_clients_that_share_a_store_share_the_partitions_and_hand_them_over(served: EventHub, tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:{tmp_path / 'leases'}"
        async with Running(OURS, served, START, checkpoint_store=url) as one:
            await until(lambda: sorted(one.program.opened) == ["0", "1"], "everything")
            async with Running(OURS, served, START, checkpoint_store=url) as other:
                for number in range(0, 60, 3):
                    for partition in "01":
                        await fill(served, 3, partition, number)
                await until(lambda: other.program.opened, "a share")
                (moved,) = other.program.opened
                assert one.program.closed == [(moved, CloseReason.OWNERSHIP_LOST)]
                await until(lambda: one.program.marked + other.program.marked == 120, "all events")
            assert [reason for _, reason in other.program.closed] == [CloseReason.SHUTDOWN]
            await fill(served, 1, moved, 60)
            await until(lambda: (moved, "60") in one.program.seen, "the partition to come back")
        assert sorted(_seen(one, other)) == sorted([(p, str(n)) for p in "01" for n in range(60)] + [(moved, "60")])
        assert not one.program.errors + other.program.errors

    asyncio.run(main())


def _seen(*runs: Running) -> list[tuple[str, str]]:
    return [one for run in runs for one in run.program.seen]
