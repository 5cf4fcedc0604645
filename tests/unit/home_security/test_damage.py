"""Blobs that are damaged, removed, or restored from an older copy: counted again, or reported as lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Corrupt, PartitionHalted
from evenflow.model import Event
from examples.home_security.alarms import alarms_in
from examples.home_security.alerts import raise_alerts
from examples.home_security.blobs import Folder
from examples.home_security.generator import Account
from examples.home_security.keeping import Keeper
from examples.home_security.layout import (
    LAYOUT,
    About,
    Alerts,
    Day,
    Hour,
    alerts_name,
    day_name,
    pack,
    recent_name,
    unpack,
)
from examples.home_security.places import Pace, Place, Scene, Town
from examples.home_security.reading import read_home
from examples.home_security.reports import MINUTE_MS, Report, body_of, reports_of
from examples.home_security.truth import judge, write_injected
from tests.unit.home_security.streams import BEGIN_MS, a_morning, stored
from tests.unit.home_security.test_keeping import assert_right, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from examples.home_security.reading import HomeView
    from examples.home_security.truth import Verdict

RECENT, DAY = recent_name("0"), day_name("0", 0)
MINUTES = 150
ABOUT_IT = About(LAYOUT, 1, 40)


class Kept:
    """What the hub still has: all events, or those from one on."""

    def __init__(self, events: Sequence[Event], since: int = 0) -> None:
        self._events = events[since:]

    async def between(self, partition: str, after: int, upto: int) -> AsyncIterator[Sequence[Event]]:
        wanted = [event for event in self._events if after < (event.sequence or 0) <= upto]
        for at in range(0, len(wanted), 700):
            yield wanted[at : at + 700]


@pytest.fixture
def blobs(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "blobs")


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return a_morning(MINUTES)


async def lived(keeper: Keeper, events: Sequence[Event]) -> Keeper:
    for at in range(0, len(events), 600):
        keeper.add(events[at : at + 600])
        await keeper.write()
    return keeper


async def owned(blobs: Folder, epoch: int, history: Kept | None = None, after: int = -1) -> Keeper:
    keeper = Keeper(blobs, "0", epoch, history)
    await keeper.start(after)
    return keeper


async def harm(blobs: Folder, name: str, how: str) -> None:
    """Remove it, or write rubbish over it."""
    if how == "removed":
        await blobs.delete([name])
    else:
        (blobs.path / name).write_bytes(b"\x00rubbish")


def event_at(events: Sequence[Event], minute: int) -> int:
    """The first one of a minute."""
    return next(at for at, event in enumerate(events) if int(event.body[6:19]) >= BEGIN_MS + minute * MINUTE_MS)


HARMS = pytest.mark.parametrize("how", ["removed", "damaged"])


@HARMS
def test_what_is_harmed_while_its_owner_lives_is_written_again(blobs: Folder, events: list[Event], how: str) -> None:
    async def scenario() -> None:
        keeper = await lived(await owned(blobs, 1), events[:9_000])
        await harm(blobs, RECENT, how)
        keeper.add(events[9_000:])
        await keeper.write()
        await assert_right(blobs, events)

    asyncio.run(scenario())


@HARMS
def test_a_new_owner_counts_again_what_the_hub_still_has(blobs: Folder, events: list[Event], how: str) -> None:
    async def scenario() -> None:
        await lived(await owned(blobs, 1), events[:9_000])
        await harm(blobs, RECENT, how)
        second = await owned(blobs, 2, Kept(events), after=8_999)
        await lived(second, events[9_000:])
        await assert_right(blobs, events)

    asyncio.run(scenario())


def test_minutes_that_a_day_has_need_not_be_counted_again(blobs: Folder, events: list[Event]) -> None:
    """The hub keeps ten minutes; the day has all but the last seven or so."""

    async def scenario() -> None:
        await lived(await owned(blobs, 1), events[:9_000])
        await harm(blobs, RECENT, "removed")
        kept = event_at(events, int(9_000 / len(events) * MINUTES) - 12)
        await lived(await owned(blobs, 2, Kept(events, kept), after=8_999), events[9_000:])
        await assert_right(blobs, events)

    asyncio.run(scenario())


def test_an_older_one_that_was_put_back_is_counted_on(blobs: Folder, events: list[Event]) -> None:
    async def scenario() -> None:
        first = await lived(await owned(blobs, 1), events[:5_000])
        older = (blobs.path / RECENT).read_bytes()
        await lived(first, events[5_000:9_000])
        (blobs.path / RECENT).write_bytes(older)
        await lived(await owned(blobs, 2, Kept(events), after=8_999), events[9_000:])
        await assert_right(blobs, events)

    asyncio.run(scenario())


@pytest.mark.parametrize("kept", [None, 8_900, 20_000])
def test_events_that_are_lost_halt_the_partition(blobs: Folder, events: list[Event], kept: int | None) -> None:
    async def scenario() -> None:
        await lived(await owned(blobs, 1), events[:9_000])
        await harm(blobs, RECENT, "damaged")
        with pytest.raises(PartitionHalted, match=r"recent/0 .* events up to -1, the checkpoint is at 8999"):
            await owned(blobs, 2, None if kept is None else Kept(events, kept), after=8_999)
        assert (blobs.path / RECENT).read_bytes() == b"\x00rubbish"

    asyncio.run(scenario())


def test_what_is_no_report_is_passed_over(blobs: Folder, events: list[Event]) -> None:
    async def scenario() -> None:
        some = stored([*events[:50], Event(b"rubbish", "home-1"), *events[50:2_000]])
        await owned(blobs, 1, Kept(some), after=2_000)
        assert (await written(blobs)).upto == 2_000
        await assert_right(blobs, [event for event in some if event.body != b"rubbish"])

    asyncio.run(scenario())


# --- days
@HARMS
def test_a_day_is_counted_again(blobs: Folder, events: list[Event], how: str) -> None:
    async def scenario() -> None:
        keeper = await lived(await owned(blobs, 1, Kept(events)), events[:9_000])
        await harm(blobs, DAY, how)
        await lived(keeper, events[9_000:])
        await assert_right(blobs, events)
        assert await blobs.paths("lost") == []

    asyncio.run(scenario())


def test_a_day_whose_roll_up_is_damaged_is_counted_again(blobs: Folder, events: list[Event]) -> None:
    async def scenario() -> None:
        keeper = await lived(await owned(blobs, 1, Kept(events)), events[:9_000])
        day = unpack((blobs.path / DAY).read_bytes(), Day, DAY)
        hours = tuple(Hour(hour.hour, hour.packed[:-3]) for hour in day.hours)
        (blobs.path / DAY).write_bytes(pack(Day(day.layout, "0", 0, day.until, hours)))
        with pytest.raises(AssertionError):
            await assert_right(blobs, events[:9_000])
        await lived(keeper, events[9_000:])
        await assert_right(blobs, events)

    asyncio.run(scenario())


@HARMS
def test_the_loss_of_a_day_is_shown_to_residents_and_the_blob_kept_aside(
    blobs: Folder, events: list[Event], how: str
) -> None:
    async def scenario() -> None:
        kept = Kept(events, event_at(events, 20))
        keeper = await lived(await owned(blobs, 1, kept), events[:9_000])
        await harm(blobs, DAY, how)
        lost_before_ms = (await seen(blobs)).lost_before_ms
        assert lost_before_ms is not None
        assert lost_before_ms > BEGIN_MS + 30 * MINUTE_MS, "all that the day had"
        await lived(keeper, events[9_000:])
        after = await seen(blobs)
        assert after.lost_before_ms == BEGIN_MS + 21 * MINUTE_MS, "all but what the hub has"
        assert after.spans[0].minute * MINUTE_MS == after.lost_before_ms
        assert sum(span.minutes for span in after.spans) == MINUTES - 21
        assert (blobs.path / "lost" / DAY).read_bytes() == (b"" if how == "removed" else b"\x00rubbish")

    asyncio.run(scenario())


def test_alerts_that_cannot_be_read_are_not_said_to_be_none(blobs: Folder, events: list[Event]) -> None:
    async def scenario() -> None:
        await lived(await owned(blobs, 1), events[:2_000])
        await blobs.put(alerts_name("0", 0), pack(Alerts(LAYOUT, "0", 0, ())), None)
        assert not (await seen(blobs)).alerts_unknown
        await harm(blobs, alerts_name("0", 0), "damaged")
        assert (await seen(blobs)).alerts_unknown

    asyncio.run(scenario())


async def seen(blobs: Folder) -> HomeView:
    found = await read_home(blobs, ABOUT_IT, 3)
    assert found is not None
    return found


# --- the verdict
@pytest.mark.parametrize("name", [RECENT, DAY])
@HARMS
def test_the_verdict_names_them_and_counts_what_they_had_as_lost(
    blobs: Folder, events: list[Event], tmp_path: Path, name: str, how: str
) -> None:
    async def scenario() -> tuple[Verdict, Verdict]:
        await lived(await owned(blobs, 1), events)
        before = await judged(tmp_path, blobs)
        await harm(blobs, name, how)
        return before, await judged(tmp_path, blobs)

    before, after = asyncio.run(scenario())
    assert (before.lost, before.damaged) == (0, ())
    assert after.lost > 100
    assert after.counted + after.lost == after.expected == len(events)
    # A recent part that is not there at all is one that was never written.
    assert after.damaged == (() if (name, how) == (RECENT, "removed") else (name,))
    assert not after.is_fine


async def judged(folder: Path, blobs: Folder, unwritten: Sequence[str] = ()) -> Verdict:
    place = Place(folder)
    pace = Pace(begin_ms=BEGIN_MS, begin_machine_ms=0, speed=1.0)
    place.save(Scene(town=Town(homes=40, seed=7), pace=pace, blobs=str(blobs.path)))
    account = Account(
        begin_ms=BEGIN_MS, until_ms=BEGIN_MS + MINUTES * MINUTE_MS, detectors_ms=BEGIN_MS + 10 * MINUTE_MS
    )
    return await judge(place, blobs, ABOUT_IT, account, unwritten=unwritten)


def test_events_that_wait_are_not_lost(blobs: Folder, events: list[Event], tmp_path: Path) -> None:
    async def scenario() -> tuple[Verdict, Verdict]:
        await lived(await owned(blobs, 1), events[:9_000])
        return await judged(tmp_path, blobs), await judged(tmp_path, blobs, unwritten=["0"])

    without, verdict = asyncio.run(scenario())
    assert without.lost == len(events) - 9_000
    assert (verdict.lost, verdict.twice, verdict.wrong) == (0, 0, 0)
    assert 8_000 < verdict.counted == verdict.expected <= 9_000


@pytest.mark.parametrize("arrived", [1, 10])
def test_an_alarm_that_was_injected_must_have_raised_an_alert_however_late_it_came(
    blobs: Folder, events: list[Event], tmp_path: Path, arrived: int
) -> None:
    break_in = Report(BEGIN_MS + MINUTE_MS, "door", "open", "away")

    async def scenario() -> tuple[Verdict, Verdict, Verdict]:
        now = event_at(events, arrived)
        extra = stored([*events[:now], Event(body_of(break_in), "home-3"), *events[now:]])
        await lived(await owned(blobs, 1), extra)
        before = await judged(tmp_path, blobs)
        write_injected(Place(tmp_path), 3, break_in)
        missing = await judged(tmp_path, blobs)
        await raise_alerts(blobs, "0", alarms_in(extra, reports_of([event.body for event in extra])))
        return before, missing, await judged(tmp_path, blobs)

    before, missing, right = asyncio.run(scenario())
    assert before.twice == 1, "nothing accounts for it"
    assert (missing.twice, missing.injected) == (0, 1)
    assert missing.alerts_wrong == before.alerts_wrong + 1
    assert (right.alerts_wrong, right.is_fine) == (0, True)
    assert right.expected == right.counted == len(events) + 1


def test_a_recent_part_with_one_damaged_home_is_damaged(blobs: Folder, events: list[Event]) -> None:
    async def scenario() -> None:
        await lived(await owned(blobs, 1), events[:2_000])
        recent = await written(blobs)
        recent.homes[3] = type(recent.homes[3])(b"\x01")
        (blobs.path / RECENT).write_bytes(pack(recent))
        with pytest.raises(Corrupt, match="Home 3 in the blob recent/0"):
            await seen(blobs)
        await lived(await owned(blobs, 2, Kept(events), after=1_999), events[2_000:])
        await assert_right(blobs, events)

    asyncio.run(scenario())
