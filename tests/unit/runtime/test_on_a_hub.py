"""A processor on a hub and a store in files: mistakes end it with an error that says what to do; odd names; starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Hub, Position, Processor
from evenflow.errors import EvenflowError, Misconfigured, NotAHub, PositionOutOfRange, UnknownScheme
from evenflow.stores.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evenflow import Event, OwnedPartition
    from evenflow.model import Group

PARTITIONS, EVENTS = 3, 10
GOOD: dict[str, Any] = {"source": "hub:homes", "store": "sqlite:leases", "group": "alerts"}
ODD = "alerts / 'ümläut' \"; DROP TABLE leases; -- 🏠 %s ../.."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a hub named homes."""
    monkeypatch.chdir(tmp_path)
    Hub.create("homes", PARTITIONS).close()
    send_to_all()
    return tmp_path


def send_to_all() -> None:
    """Some more events to each partition."""

    async def send() -> None:
        async with Hub("homes") as hub:
            for partition in range(PARTITIONS):
                await hub.send([b"x"] * EVENTS, partition=partition)

    asyncio.run(send())


def handled(**options: Any) -> set[tuple[str, int]]:
    """What an instance handles until it has caught up."""
    found = set()
    processor = Processor(**{**GOOD, **options}, heartbeat_s=0.2, ttl_s=2.0, margin_s=0.2)

    @processor.on_event
    async def handle(event: Event, partition: OwnedPartition) -> None:
        assert event.sequence is not None
        found.add((partition.id, event.sequence))

    asyncio.run(processor.serve(until="caught_up"))
    return found


def all_events(lots: int = 1) -> set[tuple[str, int]]:
    return {(str(partition), sequence) for partition in range(PARTITIONS) for sequence in range(lots * EVENTS)}


@pytest.mark.parametrize(
    ("options", "error", "message", "advice"),
    [
        ({"source": "hub:nope"}, NotAHub, "There is no hub at nope", "correct the path"),
        ({"source": "hub:."}, NotAHub, "There is no hub at .", "has no hub.sqlite"),
        ({"source": "rabbit:homes"}, UnknownScheme, "source 'rabbit:homes'", ", hub:"),
        ({"store": "db:leases"}, UnknownScheme, "store 'db:leases'", ", memory:, "),
        ({"group": ""}, Misconfigured, "group=''", "give a text of 1 to 256"),
        ({"group": "a\nb"}, Misconfigured, "group='a\\nb'", "printable characters"),
        ({"start": "noon"}, Misconfigured, "start='noon'", "give 'earliest', 'latest'"),
        (
            {"start": Position("9999", 9999)},
            PositionOutOfRange,
            "Position 9999 is beyond the end of homes/partitions/0000",
            'or start at "latest"',
        ),
    ],
)
def test_a_mistake_is_one_error_that_says_what_to_do_and_loses_nothing(
    folder: Path, options: dict[str, Any], error: type[EvenflowError], message: str, advice: str
) -> None:
    with pytest.raises(error) as raised:
        handled(**options)
    assert str(raised.value).startswith(message)
    assert advice in str(raised.value)
    assert handled() == all_events()


def test_a_group_may_have_an_odd_name(folder: Path) -> None:
    assert handled(group=ODD) == all_events()
    assert [group.name for group in asyncio.run(groups(folder))] == [ODD]
    assert handled(group=ODD) == set(), "its checkpoints are found again"


async def groups(folder: Path) -> Sequence[Group]:
    store = SQLiteStore(folder / "leases")
    try:
        return await store.groups()
    finally:
        await store.aclose()


def test_a_checkpoint_wins_over_a_start_that_is_no_longer_there(folder: Path) -> None:
    start = Position("1", 1)
    assert handled(start=start) == {event for event in all_events() if event[1] > 1}
    send_to_all()
    with Hub("homes") as hub:
        for partition in range(PARTITIONS):
            hub.opened().log(partition).remove_before(EVENTS)
    assert handled(start=start) == all_events(lots=2) - all_events()
