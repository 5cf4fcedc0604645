"""A `receive` of the drop-in async client: checkpoints, what callbacks do, and what it reports."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import azure.eventhub.aio
import pytest
from azure.eventhub import CloseReason, EventData
from azure.eventhub.exceptions import OwnershipLostError
from msgspec.structs import replace

from evenflow import Misconfigured, PartitionHalted, Position
from evenflow.core.notes import Notes, Stopped
from tests.unit.compat.eventhub.scene import GROUP, OURS, QUICK, START, Program, Running, bodies, until

if TYPE_CHECKING:
    from tests.unit.compat.eventhub.scene import HubInMemory
    from tests.unit.runtime.stage import Stage


# --- checkpoints
@pytest.mark.parametrize("options", [{}, {"partition_id": "0"}], ids=["all", "one partition"])
async def test_a_checkpoint_is_where_the_next_one_begins(
    stage: Stage, hub: HubInMemory, options: dict[str, Any]
) -> None:
    hub.fill(4)
    places = {**START, **options}
    async with Running(OURS, hub, places, checkpoint_store=stage.store) as running:
        await until(lambda: running.program.marked == 4, "the first four")
    hub.fill(2)
    async with Running(OURS, hub, places, checkpoint_store=stage.store) as running:
        await until(lambda: len(running.program.seen) == 2, "the other two")
        assert bodies(running.program) == ["4", "5"]


async def test_a_start_at_the_latest_is_kept_from_the_first_time_on(stage: Stage, hub: HubInMemory) -> None:
    """Nothing is missed between a start and the first checkpoint."""
    hub.fill(2)
    async with Running(OURS, hub, {}, checkpoint_store=stage.store) as running:
        await until(lambda: "0" in running.program.opened, "the partition")
    hub.fill(2)
    async with Running(OURS, hub, {}, checkpoint_store=stage.store) as running:
        await until(lambda: len(running.program.seen) == 2, "what came in between")
        assert bodies(running.program) == ["2", "3"]


async def test_an_event_may_be_marked_after_its_callback_has_returned(stage: Stage, hub: HubInMemory) -> None:
    hub.fill(5)
    running = Running(OURS, hub, {**START, "batch": True}, checkpoint_store=stage.store)
    kept: list[Any] = []

    async def keep(context: Any, events: list[Any]) -> None:
        kept.extend((context, event) for event in events)

    running.program.on_event_batch = keep  # type: ignore[method-assign]
    async with running:
        await until(lambda: len(kept) == 5, "all five")
        context, event = kept[2]
        await context.update_checkpoint(event)
        with pytest.raises(Misconfigured, match="did not come from a callback of this client"):
            await context.update_checkpoint(EventData(b"another"))
    with pytest.raises(OwnershipLostError):
        await context.update_checkpoint(kept[4][1])
    async with Running(OURS, hub, START, checkpoint_store=stage.store) as again:
        await until(lambda: len(again.program.seen) == 2, "what was not marked")
        assert bodies(again.program) == ["3", "4"]


async def test_an_event_of_another_partition_or_client_is_no_checkpoint(stage: Stage, hub: HubInMemory) -> None:
    hub.fill(2, "0", "1")
    async with Running(OURS, hub, START) as one, Running(OURS, hub, START) as other:
        await until(lambda: one.program.marked == other.program.marked == 4, "all events")
        mine = one.program.contexts["0"]
        with pytest.raises(Misconfigured, match="of another partition"):
            await mine.update_checkpoint(one.program.contexts["1"]._last_received_event)
        with pytest.raises(Misconfigured, match="of another client"):
            await mine.update_checkpoint(other.program.contexts["0"]._last_received_event)
        await mine.update_checkpoint(mine._last_received_event)


async def test_a_checkpoint_store_that_could_go_back_is_refused(hub: HubInMemory) -> None:
    class Homemade(azure.eventhub.aio.CheckpointStore):
        async def list_ownership(self, *given: Any, **more: Any) -> Any: ...
        async def claim_ownership(self, *given: Any, **more: Any) -> Any: ...
        async def update_checkpoint(self, *given: Any, **more: Any) -> Any: ...
        async def list_checkpoints(self, *given: Any, **more: Any) -> Any: ...

    client = OURS.from_connection_string(hub.connection_string, GROUP, checkpoint_store=Homemade())
    with pytest.raises(Misconfigured, match="Homemade is not supported"):
        await client.receive(Program().on_event)


async def test_a_place_that_is_none_is_refused_before_anything_is_opened(hub: HubInMemory) -> None:
    client, program = OURS.from_connection_string(hub.connection_string, GROUP), Program()
    with pytest.raises(ValueError, match="starting_position"):
        await client.receive(program.on_event, starting_position={"0": 1.5}, **program.hooks)
    assert program.opened == []


# --- what callbacks do
async def test_an_exit_in_a_callback_ends_receive_properly(stage: Stage, hub: HubInMemory) -> None:
    running = Running(OURS, hub, START, checkpoint_store=stage.store)
    program = running.program

    def exits(context: Any, event: Any) -> bool:
        if event.sequence_number == 1:
            raise SystemExit(7)
        return False

    program.fails = exits

    async def send() -> None:
        await until(lambda: len(program.opened) == 2, "both partitions")
        hub.fill(3)

    sending = asyncio.create_task(send())
    with pytest.raises(SystemExit) as raised:
        await running.client.receive(program.on_event, **program.hooks, **START)
    await sending
    assert raised.value.code == 7
    assert bodies(program) == ["0"]
    assert sorted(program.closed) == [("0", CloseReason.SHUTDOWN), ("1", CloseReason.SHUTDOWN)]
    assert not program.errors


async def test_a_callback_that_was_cancelled_from_within_has_failed(stage: Stage, hub: HubInMemory) -> None:
    hub.fill(2)
    async with Running(OURS, hub, {**START, "partition_id": "0"}, checkpoint_store=stage.store) as running:
        program, calls = running.program, 0

        def cancelled(context: Any, event: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise asyncio.CancelledError
            return False

        program.fails = cancelled
        await until(lambda: len(program.seen) == 2, "both events")
        assert [(where, type(error)) for where, error in program.errors] == [("0", RuntimeError)]
        assert program.opened == ["0", "0"]  # as after any other failure


# --- what it reports
async def test_what_a_callback_raises_is_in_the_log(
    stage: Stage, hub: HubInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without an on_error."""
    hub.fill(1)
    store: Any = stage.store
    client = OURS.from_connection_string(hub.connection_string, GROUP, checkpoint_store=store, **QUICK)
    calls = 0

    async def on_event(context: Any, event: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("as asked")
        await client.close()

    await client.receive(on_event, **START)
    assert "ZeroDivisionError: as asked" in caplog.text


async def test_an_on_error_that_fails_is_in_the_log(hub: HubInMemory, caplog: pytest.LogCaptureFixture) -> None:
    hub.refusal = Misconfigured("there is no such event hub")

    async def fails(context: Any, error: Exception) -> None:
        raise error

    client = OURS.from_connection_string(hub.connection_string, GROUP, **QUICK)
    with caplog.at_level(logging.ERROR, logger="evenflow"), pytest.raises(Misconfigured, match="no such event hub"):
        await client.receive(Program().on_event, on_error=fails)
    assert "on_error failed" in caplog.text


async def test_a_partition_that_stands_still_is_reported(stage: Stage, hub: HubInMemory) -> None:
    """As an event leaves it that has killed its process again and again."""
    store = stage.store
    async with Running(OURS, hub, START, checkpoint_store=store) as running:
        await until(lambda: len(running.program.opened) == 2, "both partitions")
    (group,) = await store.groups()
    (record,) = [one for one in await store.checkpoints(group) if one.partition == "0"]
    stopped = Stopped(ordinal=1, position=Position("0", 0), error="Killed", attempts=0)
    await store.commit(group, [replace(record, notes=Notes(stopped=stopped).as_dict())])
    async with Running(OURS, hub, START, checkpoint_store=store) as running:
        await until(lambda: running.program.errors, "a word")
        ((where, error),) = running.program.errors
        assert where == "0"
        assert isinstance(error, PartitionHalted)
        assert "evenflow group resume" in str(error)
