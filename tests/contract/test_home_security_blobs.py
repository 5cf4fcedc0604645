"""The blobs of the flagship example behave the same in a folder, on a server of S3 and of Google, and on Azurite."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import LeaseLost
from examples.home_security.alarms import Alarm
from examples.home_security.alerts import raise_alerts
from examples.home_security.blobs import Conflict, open_blobs
from examples.home_security.keeping import Keeper
from examples.home_security.layout import LAYOUT, About
from examples.home_security.reading import read_home
from tests.servers import azurite, moto
from tests.servers.azure_objects import azure_url
from tests.unit.home_security.streams import a_morning

if TYPE_CHECKING:
    from pathlib import Path

    from examples.home_security.blobs import Blobs

pytestmark = pytest.mark.process


@pytest.fixture(params=["folder", "s3", "google", "azure"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return open_blobs(str(tmp_path / "blobs"))
    if request.param == "azure":
        return open_blobs(azure_url(azurite.shared_or_skip()))
    server = moto.shared()
    url = server.google_url if request.param == "google" else server.url
    return open_blobs(url(server.fresh()))


def test_a_put_is_refused_unless_the_blob_is_what_was_read(blobs: Blobs) -> None:
    async def scenario() -> None:
        assert await blobs.get("some/thing") is None
        first = await blobs.put("some/thing", b"1", None)
        with pytest.raises(Conflict):
            await blobs.put("some/thing", b"2", None)
        second = await blobs.put("some/thing", b"2", first)
        with pytest.raises(Conflict):
            await blobs.put("some/thing", b"3", first)
        found = await blobs.get("some/thing")
        assert found == (b"2", second)
        assert await blobs.paths("some") == ["some/thing"]
        await blobs.delete(["some/thing"])
        assert await blobs.get("some/thing") is None

    asyncio.run(scenario())


def test_an_owner_follows_another_and_the_page_is_right(blobs: Blobs) -> None:
    async def scenario() -> None:
        events = a_morning(30)
        first = Keeper(blobs, "0", 1)
        await first.start()
        for place in range(0, 3_000, 500):
            first.add(events[place : place + 500])
            await first.write()
        second = Keeper(blobs, "0", 2)
        await second.start()
        second.add(events[1_000:])
        await second.write()
        first.add(events[3_000:])
        with pytest.raises(LeaseLost):
            await first.write()
        found = [await read_home(blobs, About(LAYOUT, 1, 40), home) for home in range(40)]
        assert sum(sum(span.reports) * span.minutes for home in found if home for span in home.spans) == len(events)

    asyncio.run(scenario())


def test_an_alert_is_raised_once_by_however_many(blobs: Blobs) -> None:
    async def scenario() -> None:
        alarms = [Alarm(home, "break-in", "door", 1_000_000, sequence) for sequence, home in enumerate([1, 2, 3])]
        raised = await asyncio.gather(*[raise_alerts(blobs, "0", alarms) for _ in range(3)])
        assert sorted(len(some) for some in raised) == [0, 0, 3]

    asyncio.run(scenario())
