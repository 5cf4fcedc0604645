"""The drop-in client when something is wrong: places, stolen links, wrong names, rude callbacks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CloseReason
from azure.eventhub.exceptions import AuthenticationError, ConnectError, ConnectionLostError, EventHubError
from msgspec.structs import replace

from evenflow import Misconfigured, PartitionHalted, Position
from evenflow.core.notes import Notes, Stopped
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

START: dict[str, Any] = {"starting_position": "-1"}


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(2, groups=[GROUP]) as found:
        yield found


# --- places
@pytest.mark.parametrize(
    ("place", "inclusive", "first"),
    [(12, False, 13), (12, True, 12), ("12", False, 13), ("12", True, 12), ("10", True, 10)],
)
def test_a_place_that_is_not_there_yet_is_waited_for(
    served: EventHub, caplog: pytest.LogCaptureFixture, place: Any, inclusive: bool, first: int
) -> None:
    """In silence, as the official client does; but the log says it."""

    async def main() -> None:
        await fill(served, 10)
        terms = {"starting_position": place, "starting_position_inclusive": inclusive, "partition_id": "0"}
        async with Running(OURS, served, terms) as running:
            await until(lambda: "tried again until there is one" in caplog.text, "a word in the log")
            await fill(served, 5, start=10)
            await until(lambda: bodies(running.program)[-1:] == ["14"], "the last one")
            assert bodies(running.program) == [str(number) for number in range(first, 15)]
            assert not running.program.errors

    asyncio.run(main())


@both
def test_an_offset_that_is_no_events_own_does_not_replay_all(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 10)
        async with Running(kind, served, {"starting_position": "04", "partition_id": "0"}) as running:
            await until(lambda: bodies(running.program)[-1:] == ["9"], "the last one")
            assert bodies(running.program) == ["5", "6", "7", "8", "9"]

    asyncio.run(main())


@pytest.mark.parametrize("place", [1.5, True, "", b"4", {"0": 1.5}])
def test_what_is_no_place_is_refused_at_once(served: EventHub, place: Any) -> None:
    async def main() -> None:
        client = OURS.from_connection_string(served.connection_string, GROUP)
        with pytest.raises(ValueError, match="starting_position"):
            await client.receive(Program().on_event, starting_position=place)

    asyncio.run(main())


def test_what_retention_has_removed_after_a_checkpoint_is_passed_over(
    served: EventHub, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = MemoryStore()
        await fill(served, 3)
        async with Running(OURS, served, START, checkpoint_store=store) as running:
            await until(lambda: running.program.marked == 3, "three checkpoints")
        await fill(served, 7, start=3)
        served.hub.opened().log(0).remove_before(6)
        async with Running(OURS, served, START, checkpoint_store=store) as again:
            await until(lambda: bodies(again.program)[-1:] == ["9"], "the last one")
            assert bodies(again.program) == ["6", "7", "8", "9"]
            assert not again.program.errors
        assert "are no longer kept" in caplog.text

    asyncio.run(main())


# --- others who read
@both
def test_a_stolen_link_is_told_before_the_partition_is_closed(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 1)
        told: list[str] = []
        async with Running(kind, served, START, checkpoint_store=None) as running:
            program = running.program
            program.errors = _Noted(told, "error")
            program.closed = _Noted(told, "closed")
            await until(lambda: bodies(program) == ["0"], "an event")
            async with Running(ASYNC[0], served, {**START, "partition_id": "0", "owner_level": 10}):
                await until(lambda: len(told) >= 2, "both words")
            where, error = program.errors[0]
            assert where == "0"
            assert isinstance(error, ConnectionLostError | ConnectError)
            assert error.error == "link:stolen"
            assert program.closed[0] == ("0", CloseReason.OWNERSHIP_LOST)
            assert told[:2] == ["error", "closed"]

    asyncio.run(main())


class _Noted(list[Any]):
    """A list that tells another one that it has got something."""

    def __init__(self, told: list[str], word: str) -> None:
        super().__init__()
        self._told, self._word = told, word

    def append(self, item: Any) -> None:
        super().append(item)
        self._told.append(self._word)


def test_who_reads_one_partition_disturbs_no_group(served: EventHub, tmp_path: Path) -> None:
    """The service lets nobody in beside the group's exclusive receiver. That is told, and changes nothing else."""

    async def main() -> None:
        store = f"sqlite:{tmp_path / 'leases'}"
        await fill(served, 3)
        async with Running(OURS, served, START, checkpoint_store=store) as group:
            await until(lambda: group.program.marked == 3, "what there was")
            async with Running(OURS, served, {**START, "partition_id": "0"}, checkpoint_store=store) as alone:
                await until(lambda: len(alone.program.errors) >= 2, "two refusals")
                await fill(served, 3, start=3)
                await until(lambda: group.program.marked == 6, "the rest")
                assert bodies(group.program) == ["0", "1", "2", "3", "4", "5"]
                assert not group.program.errors
                assert not group.program.closed
                await group.client.close()
                await fill(served, 2, start=6)
                await until(lambda: bodies(alone.program)[-1:] == ["7"], "its own")
                assert all(isinstance(error, EventHubError) for _, error in alone.program.errors)
        await fill(served, 1, start=8)
        async with Running(OURS, served, START, checkpoint_store=store) as next_group:
            await until(lambda: next_group.program.seen, "what nobody has marked")
            assert bodies(next_group.program) == ["8"]

    asyncio.run(main())


# --- wrong settings
def test_a_wrong_key_ends_it_with_the_official_error() -> None:
    with event_hub(1, key="right") as served:
        text = served.connection_string.replace("SharedAccessKey=right", "SharedAccessKey=wrong")
        assert isinstance(_ended(text, "$Default"), AuthenticationError)


def test_an_unknown_consumer_group_ends_it(served: EventHub) -> None:
    error = _ended(served.connection_string, "nobodys")
    assert isinstance(error, EventHubError)
    assert error.error == "not-found"
    assert "ConsumerGroups/nobodys" in str(error)


def test_an_unknown_hub_ends_it(served: EventHub) -> None:
    error = _ended(served.connection_string.replace("EntityPath=hub", "EntityPath=nowhere"), GROUP)
    assert isinstance(error, ConnectError)
    assert error.error == "not-found"
    assert str(error).count("nowhere") == 1
    assert "group" not in str(error)


def test_an_unknown_partition_ends_it(served: EventHub) -> None:
    error = _ended(served.connection_string, GROUP, partition_id="7")
    assert isinstance(error, ValueError)
    assert "The event hub has: 0, 1" in str(error)


def _ended(text: str, group: str, **terms: Any) -> Exception:
    """What `receive` raised, which is what on_error was told, once."""

    async def main() -> Exception:
        client, program = OURS.from_connection_string(text, group, **QUICK), Program()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the tests look what it is
            async with asyncio.timeout(PATIENCE_S):
                await client.receive(program.on_event, on_error=program.on_error, **terms)
        assert [error for _, error in program.errors] == [raised.value]
        return raised.value

    return asyncio.run(main())


def test_a_key_that_is_wrong_for_a_while_ends_nothing(tmp_path: Path) -> None:
    """Once somebody has been let in, the settings were right: it is tried again, as by the official client."""

    async def main() -> None:
        with event_hub(1, key="right", path=tmp_path) as served:
            port = served.port
            running = await Running(OURS, served, {**START, "partition_id": "0"}, group="$Default").__aenter__()
            await fill(served, 1)
            await until(lambda: len(running.program.seen) == 1, "an event")
        with event_hub(1, key="other", path=tmp_path, port=port):
            await until(lambda: any(isinstance(one, AuthenticationError) for _, one in running.program.errors), "no")
        with event_hub(1, key="right", path=tmp_path, port=port) as served:
            await fill(served, 1, start=1)
            await until(lambda: bodies(running.program)[-1:] == ["1"], "the next event")
            await running.__aexit__()

    asyncio.run(main())


def test_a_partition_that_stands_still_is_told(served: EventHub) -> None:
    """As an event leaves it that has killed its process again and again."""

    async def main() -> None:
        store = MemoryStore()
        async with Running(OURS, served, START, checkpoint_store=store) as running:
            await until(lambda: len(running.program.opened) == 2, "both partitions")
        (group,) = await store.groups()
        (record,) = [one for one in await store.checkpoints(group) if one.partition == "0"]
        stopped = Stopped(ordinal=1, position=Position("0", 0), error="Killed", attempts=0)
        await store.commit(group, [replace(record, notes=Notes(stopped=stopped).as_dict())])
        async with Running(OURS, served, START, checkpoint_store=store) as running:
            await until(lambda: running.program.errors, "a word")
            ((where, error),) = running.program.errors
            assert where == "0"
            assert isinstance(error, PartitionHalted)
            assert "evenflow group resume" in str(error)

    asyncio.run(main())


# --- checkpoints
def test_an_event_of_somebody_else_is_no_checkpoint(served: EventHub) -> None:
    async def main() -> None:
        for partition in "01":
            await fill(served, 2, partition)
        async with Running(OURS, served, START) as one, Running(OURS, served, START) as other:
            await until(lambda: len(one.program.seen) == len(other.program.seen) == 4, "all events")
            mine = one.program.contexts["0"]
            with pytest.raises(Misconfigured, match="of another partition"):
                await mine.update_checkpoint(one.program.contexts["1"]._last_received_event)
            with pytest.raises(Misconfigured, match="of another client"):
                await mine.update_checkpoint(other.program.contexts["0"]._last_received_event)
            await mine.update_checkpoint(mine._last_received_event)

    asyncio.run(main())


# --- what async callbacks do
def test_an_exit_in_a_callback_ends_receive_properly(served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 3)
        running = await Running(OURS, served, START).__aenter__()

        def exits(context: Any, event: Any) -> bool:
            if event.sequence_number == 1:
                raise SystemExit(7)
            return False

        running.program.fails = exits
        try:
            async with asyncio.timeout(PATIENCE_S):
                await running.task
        finally:
            assert bodies(running.program) == ["0"]
            assert [reason for _, reason in running.program.closed] == [CloseReason.SHUTDOWN] * 2
            assert not running.program.errors

    with pytest.raises(SystemExit) as raised:
        asyncio.run(main())
    assert raised.value.code == 7


def test_a_callback_that_was_cancelled_from_within_has_failed(served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 2)
        async with Running(OURS, served, {**START, "partition_id": "0"}) as running:
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

    asyncio.run(main())


@both
def test_a_receive_that_is_cancelled_closes_its_partitions(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 1)
        async with Running(kind, served, START) as running:
            await until(lambda: len(running.program.seen) == 1, "an event")
            running.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running.task
            assert sorted(running.program.closed) == [("0", CloseReason.SHUTDOWN), ("1", CloseReason.SHUTDOWN)]
            again = asyncio.create_task(running.client.receive(running.program.on_event, **START))
            await until(lambda: len(running.program.seen) == 2, "the event again")
            await running.client.close()
            await again

    asyncio.run(main())


def test_what_a_callback_raises_is_in_the_log(served: EventHub, caplog: pytest.LogCaptureFixture) -> None:
    """Also without an on_error."""

    async def main() -> None:
        await fill(served, 1)
        client = OURS.from_connection_string(served.connection_string, GROUP, **QUICK)
        calls = 0

        async def on_event(context: Any, event: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError("as asked")
            await client.close()

        async with asyncio.timeout(PATIENCE_S):
            await client.receive(on_event, **START)

    asyncio.run(main())
    assert "ZeroDivisionError: as asked" in caplog.text


def test_an_on_error_that_fails_is_in_the_log(served: EventHub, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def fails(context: Any, error: Exception) -> None:
            raise error

        client, program = OURS.from_connection_string(served.connection_string, "nobodys", **QUICK), Program()
        with pytest.raises(EventHubError):
            await client.receive(program.on_event, on_error=fails)

    with caplog.at_level(logging.ERROR, logger="evenflow"):
        asyncio.run(main())
    assert "on_error failed" in caplog.text
