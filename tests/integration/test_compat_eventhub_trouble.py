"""The drop-in client when something is wrong: positions that are not there, stolen links, wrong names, a cancel."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CloseReason
from azure.eventhub.exceptions import AuthenticationError, ConnectError, ConnectionLostError, EventHubError

from evenflow.stores.memory import MemoryStore
from evenflow.testing import event_hub
from tests.integration.compat_scene import OFFICIAL, both, fill, served
from tests.unit.compat.eventhub.scene import (
    GROUP,
    OURS,
    PATIENCE_S,
    QUICK,
    START,
    Program,
    Running,
    bodies,
    has_come_to,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from evenflow.testing import EventHub

__all__ = ["served"]

NOT_YET: list[tuple[Any, bool, int]] = [
    (12, False, 13),
    (12, True, 12),
    ("12", False, 13),
    ("12", True, 12),
    ("10", True, 10),
]


# --- places
def test_a_place_that_is_not_there_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """In silence, as the official client does; but the log says it. Each client reads a partition of its own."""

    async def main(served: EventHub) -> None:
        async with AsyncExitStack() as clients:
            runs: list[Running] = []
            for partition, (place, inclusive, _) in enumerate(NOT_YET):
                await fill(served, 10, str(partition))
                terms = {"starting_position": place, "starting_position_inclusive": inclusive}
                running = Running(OURS, served, {**terms, "partition_id": str(partition)})
                runs.append(await clients.enter_async_context(running))
            for partition, ((place, inclusive, first), running) in enumerate(zip(NOT_YET, runs, strict=True)):
                name, program = str(partition), running.program
                await until(partial(_waits, caplog, name), f"a word in the log of partition {name}")
                await fill(served, 5, name, start=10)
                await until(has_come_to(program, "14", name), "the last one")
                where = f"{place!r}, {inclusive=}"
                assert bodies(program, name) == [str(number) for number in range(first, 15)], where
                assert not program.errors, where

    with event_hub(len(NOT_YET), groups=[GROUP]) as served:
        asyncio.run(main(served))


def _waits(caplog: pytest.LogCaptureFixture, partition: str) -> bool:
    lines = (record.getMessage() for record in caplog.records)
    return any("Retrying until there is one" in line and f"partition {partition}" in line for line in lines)


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
            async with Running(OFFICIAL, served, {**START, "partition_id": "0", "owner_level": 10}):
                await until(lambda: len(told) >= 2, "both words")
            where, error = program.errors[0]
            assert where == "0"
            assert isinstance(error, ConnectionLostError | ConnectError)
            assert error.error == "link:stolen"
            assert program.closed[0] == ("0", CloseReason.OWNERSHIP_LOST)
            assert told[:2] == ["error", "closed"]
            # It comes back; and a client that were closed while it reconnects would leave a connection behind.
            await fill(served, 1, start=1)
            await until(lambda: bodies(program)[-1] == "1", "the next event")

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
                await until(lambda: bodies(alone.program)[-1:] == ["7"] and _all_marked(alone), "its own")
                assert all(isinstance(error, EventHubError) for _, error in alone.program.errors)
        await fill(served, 1, start=8)
        async with Running(OURS, served, START, checkpoint_store=store) as next_group:
            await until(lambda: next_group.program.seen, "what nobody has marked")
            assert bodies(next_group.program) == ["8"]

    asyncio.run(main())


def _all_marked(running: Running) -> bool:
    return running.program.marked == len(running.program.seen)


# --- wrong settings
def test_a_setting_that_is_wrong_ends_it_with_the_official_error() -> None:
    with event_hub(2, key="right", groups=[GROUP]) as served:
        text = served.connection_string
        _check_wrong_key(_ended(text.replace("SharedAccessKey=right", "SharedAccessKey=wrong"), GROUP))
        _check_unknown_group(_ended(text, "unknown"))
        _check_unknown_hub(_ended(text.replace("EntityPath=hub", "EntityPath=nowhere"), GROUP))
        _check_unknown_partition(_ended(text, GROUP, partition_id="7"))


def _check_wrong_key(error: Exception) -> None:
    assert isinstance(error, AuthenticationError)


def _check_unknown_group(error: Exception) -> None:
    assert isinstance(error, EventHubError)
    assert error.error == "not-found"
    assert "ConsumerGroups/unknown" in str(error)


def _check_unknown_hub(error: Exception) -> None:
    assert isinstance(error, ConnectError)
    assert error.error == "not-found"
    assert str(error).count("nowhere") == 1
    assert "group" not in str(error)


def _check_unknown_partition(error: Exception) -> None:
    assert isinstance(error, ValueError)
    assert "It has: 0, 1" in str(error)


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
    """A client that was let in once had the right settings: it is tried again, as by the official client."""

    async def main() -> None:
        async with AsyncExitStack() as client:
            with event_hub(1, key="right", path=tmp_path) as served:
                running = Running(OURS, served, {**START, "partition_id": "0"}, group="$Default")
                program = (await client.enter_async_context(running)).program
                await fill(served, 1)
                await until(lambda: program.marked == 1, "an event")
            with event_hub(1, key="other", path=tmp_path, port=served.port):
                await until(_one_of(program, AuthenticationError), "a refusal")
            with event_hub(1, key="right", path=tmp_path, port=served.port) as served:
                await fill(served, 1, start=1)
                await until(lambda: bodies(program)[-1:] == ["1"], "the next event")
                await client.aclose()

    asyncio.run(main())


def _one_of(program: Program, kind: type[Exception]) -> Callable[[], bool]:
    return lambda: any(isinstance(error, kind) for _, error in program.errors)


# --- a call that is cancelled
@both
def test_a_receive_that_is_cancelled_closes_its_partitions(kind: Any, served: EventHub) -> None:
    async def main() -> None:
        await fill(served, 1)
        async with Running(kind, served, START) as running:
            program = running.program
            await until(lambda: len(program.seen) == 1 and len(program.opened) == 2, "an event, and both partitions")
            running.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running.task
            assert sorted(program.closed) == [("0", CloseReason.SHUTDOWN), ("1", CloseReason.SHUTDOWN)]
            again = asyncio.create_task(running.client.receive(program.on_event, **START))
            await until(lambda: len(program.seen) == 2, "the event again")
            await running.client.close()
            await again

    asyncio.run(main())
