"""The example's consumers, from the hub to the blobs and the books, also when a blob is damaged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow import Event, Hub, Misconfigured, PartitionHalted
from evenflow.model import Group
from evenflow.operate.steer import Operator, resume
from evenflow.runtime.clock import system_clock
from evenflow.stores.sqlite.store import SQLiteStore
from examples.home_security import aggregate, alerts
from examples.home_security.accept_loss import accept_loss
from examples.home_security.accounts import Books
from examples.home_security.blobs import Folder
from examples.home_security.layout import LAYOUT, About
from examples.home_security.places import GROUPS, Pace, Place, Scene, Town, machine_ms
from examples.home_security.reading import read_home
from examples.home_security.reports import MINUTE_MS
from tests.unit.home_security.streams import BEGIN_MS, report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from evenflow.model import Checkpoint, Outcome
    from examples.home_security.consuming import Consumer


async def serve(make: Callable[[Place, str], Consumer], place: Place, name: str) -> None:
    """Until it has handled everything there is."""
    with make(place, name) as consumer:
        await consumer.processor.serve(until="caught_up")


def test_what_cannot_be_understood_becomes_a_dead_letter_and_delays_no_other_event(tmp_path: Path) -> None:
    place = prepared(tmp_path)

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS), Event(b"rubbish", "home-1"), report(1, BEGIN_MS + MINUTE_MS)])
        for make in (aggregate.make_consumer, alerts.make_consumer):
            await serve(make, place, "one")

    asyncio.run(scenario())
    assert doors_reported(place) == 2
    found = asyncio.run(read_home(Folder(place.blobs), About(LAYOUT, 1, 10), 1))
    assert found is not None
    assert [alert.reports for alert in found.alerts] == [2]
    assert dead_letters_in(place) == [1, 1]
    for group in GROUPS:
        books = Books(place.group(group))
        books.read()
        tally = books.tally({"0": 2})
        assert (tally.handled, tally.lost) == (3, 0), f"{group}: what is in the dead letters is not lost"


def test_what_is_behind_a_checkpoint_is_in_the_books_whenever_its_consumer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = prepared(tmp_path, write_s=0.0)
    late: list[Checkpoint] = []
    commit = SQLiteStore.commit

    async def looked_at(store: SQLiteStore, group: Group, records: Sequence[Checkpoint]) -> Sequence[Outcome]:
        accounts = Books(place.group("aggregate"))
        accounts.read()
        late.extend(record for record in records if (record.position.sequence or 0) > accounts.reached("0"))
        return await commit(store, group, records)

    monkeypatch.setattr(SQLiteStore, "commit", looked_at)

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS + minute * MINUTE_MS) for minute in range(20)])
        await serve(aggregate.make_consumer, place, "one")

    asyncio.run(scenario())
    assert doors_reported(place) == 20
    assert late == []


def test_a_recent_part_that_is_damaged_is_counted_again_and_poisons_nothing(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    blob = place.blobs / "recent" / "0"

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS), report(1, BEGIN_MS + MINUTE_MS)])
            await serve(aggregate.make_consumer, place, "one")
            blob.write_bytes(b"rubbish")
            await hub.send([report(1, BEGIN_MS + 2 * MINUTE_MS)])
            await serve(aggregate.make_consumer, place, "two")

    asyncio.run(scenario())
    assert doors_reported(place) == 3
    assert dead_letters_in(place) == []


def test_a_recent_part_that_cannot_be_counted_again_stops_its_partition_until_the_loss_is_accepted(
    tmp_path: Path,
) -> None:
    place = prepared(tmp_path, retention_bytes=1)

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS)])
            await serve(aggregate.make_consumer, place, "one")
            (place.blobs / "recent" / "0").unlink()
            await hub.send([report(1, BEGIN_MS + MINUTE_MS)])
            hub.trim()
            with pytest.raises(PartitionHalted, match=r"recent/0 is damaged, removed or too old.*accept_loss FOLDER 0"):
                await serve(aggregate.make_consumer, place, "two")
            assert await accept_loss(place, "0") == 1
            with pytest.raises(Misconfigured, match=r"has events up to 0, and the hub those from 1 on"):
                await accept_loss(place, "0")
            store = SQLiteStore(place.leases)
            await resume(
                store, Group("local", "homes", "aggregate"), ["0"], Operator(by="a test", why=""), system_clock()
            )
            await store.aclose()
            await serve(aggregate.make_consumer, place, "three")

    asyncio.run(scenario())
    assert doors_reported(place) == 1
    assert dead_letters_in(place) == []


def test_alerts_that_cannot_be_read_stop_their_partition_and_poison_nothing(tmp_path: Path) -> None:
    place = prepared(tmp_path)
    blob = place.blobs / "alerts" / "0" / "0"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"rubbish")

    async def scenario() -> None:
        async with Hub(place.hub) as hub:
            await hub.send([report(1, BEGIN_MS)])
        with pytest.raises(PartitionHalted, match=r"alerts/0/0 is damaged.*Put a copy of it back, or remove it"):
            await serve(alerts.make_consumer, place, "one")

    asyncio.run(scenario())
    assert dead_letters_in(place) == []
    assert blob.read_bytes() == b"rubbish"


def doors_reported(place: Place) -> int:
    found = asyncio.run(read_home(Folder(place.blobs), About(LAYOUT, 1, 10), 1))
    assert found is not None
    return sum(span.minutes * span.reports[1] for span in found.spans)


def dead_letters_in(place: Place) -> list[int]:
    """How many, by file."""
    return [path.read_text().count("\n") for path in place.dead_letters.rglob("*.jsonl")]


def prepared(folder: Path, retention_bytes: int | None = None, write_s: float = 2.0) -> Place:
    place = Place(folder)
    Hub.create(place.hub, 1, retention_bytes=retention_bytes).close()
    pace = Pace(begin_ms=BEGIN_MS, begin_machine_ms=int(machine_ms()), speed=1.0)
    place.save(Scene(town=Town(homes=10), pace=pace, blobs=str(place.blobs), write_s=write_s))
    return place
