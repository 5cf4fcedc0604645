"""The generator and what is injected beside it, when the machine is not as it should be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from evenflow import Hub
from examples.home_security.generator import Generator, read_account
from examples.home_security.inject import inject
from examples.home_security.places import Pace, Place, Scene, Town, machine_ms
from examples.home_security.reports import MINUTE_MS
from examples.home_security.truth import read_injected
from tests.integration.programs import wait_for

if TYPE_CHECKING:
    from pathlib import Path

BEGIN_MS = 1_000_000 * MINUTE_MS
HOUR_MS = 60 * MINUTE_MS


def prepared(folder: Path, *, since_ms: int) -> Place:
    place = Place(folder)
    Hub.create(place.hub, 1).close()
    pace = Pace(begin_ms=BEGIN_MS, begin_machine_ms=int(machine_ms()) - since_ms, speed=1.0)
    place.save(Scene(town=Town(homes=10), pace=pace, blobs=str(place.blobs)))
    return place


def test_what_is_injected_is_never_far_ahead_of_what_the_homes_have_come_to(tmp_path: Path) -> None:
    """Otherwise it would make minutes final for which a late generator still has reports."""
    place = prepared(tmp_path, since_ms=HOUR_MS)
    asyncio.run(inject(place, 3, [("door", "open")], "away"))
    (injected,) = read_injected(place)
    assert BEGIN_MS <= injected.report.at <= BEGIN_MS + MINUTE_MS // 2


@pytest.mark.parametrize(("free", "is_full"), [(0, True), (1 << 30, False)])
def test_a_disk_that_is_full_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_full: bool) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    assert Place(tmp_path).is_full is is_full


def test_an_account_that_cannot_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    place = prepared(tmp_path, since_ms=MINUTE_MS)
    in_its_way = place.account.with_suffix(".fresh")
    in_its_way.mkdir()

    async def scenario() -> None:
        stop = asyncio.Event()
        async with Hub(place.hub) as hub, asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            generator = Generator(place, hub)
            tasks.create_task(generator.run(stop))
            await asyncio.sleep(0)
            assert read_account(place) is None
            in_its_way.rmdir()
            await asyncio.to_thread(wait_for, lambda: (found := read_account(place)) and found.sent, "its account")
            stop.set()

    asyncio.run(scenario())
