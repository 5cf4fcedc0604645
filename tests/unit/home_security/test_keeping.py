"""Owners of a partition follow each other, in an orderly way or not, and the blobs are right."""

from __future__ import annotations

import asyncio
import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import LeaseLost, Misconfigured, StoreUnavailable
from examples.home_security.blobs import Conflict, Folder, open_blobs
from examples.home_security.keeping import Keeper
from examples.home_security.layout import ABOUT, LAYOUT, About, Day, Recent, bucket_of, day_name, pack, unpack
from examples.home_security.places import Town
from examples.home_security.reading import read_about, read_home
from tests.unit.home_security.streams import BEGIN_MS, a_morning, report, stored
from tests.unit.home_security.test_tallying import spans, tally_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from evenflow.model import Event
    from examples.home_security.blobs import Found, Version


@pytest.fixture
def blobs(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def started(blobs: Folder, epoch: int) -> Keeper:
    keeper = Keeper(blobs, "0", epoch)
    await keeper.start()
    return keeper


async def written(blobs: Folder) -> Recent:
    found = await blobs.get("recent/0")
    assert found is not None
    return unpack(found.data, Recent, "recent/0")


async def assert_right(blobs: Folder, events: list[Event], homes: int = 40) -> None:
    """Every minute of every home, as the page sees it, is what follows from the events."""
    whole = tally_of(events)
    for number in range(homes):
        view = await read_home(blobs, About(LAYOUT, 1, homes), number)
        assert view is not None
        together = [
            (minute, span.reports, span.active, span.states, span.armed)
            for span in view.spans
            for minute in range(span.minute, span.end)
        ]
        assert together == spans(whole, number)


def test_a_new_owner_goes_on_from_what_was_written_and_skips_what_is_in_it(blobs: Folder) -> None:
    async def scenario() -> None:
        events = a_morning()
        first = await started(blobs, 1)
        first.add(events[:500])
        await first.write()
        first.add(events[500:700])  # killed here: these were never written
        second = await started(blobs, 2)
        second.add(events[300:])  # the checkpoint was behind what was written
        await second.write()
        await assert_right(blobs, events)

    asyncio.run(scenario())


def test_an_owner_that_was_replaced_cannot_write_any_more(blobs: Folder) -> None:
    async def scenario() -> None:
        events = a_morning()
        first = await started(blobs, 1)
        first.add(events[:500])
        second = await started(blobs, 2)
        second.add(events)
        await second.write()
        with pytest.raises(LeaseLost):
            await first.write()
        assert (await written(blobs)).epoch == 2
        await assert_right(blobs, events)
        with pytest.raises(LeaseLost):
            await started(blobs, 1)

    asyncio.run(scenario())


class Late(Folder):
    """Lets another instance act right before a put."""

    before_put: Callable[[], Awaitable[None]] | None = None

    async def put(self, path: str, data: bytes, known: Version | None) -> Version:
        if self.before_put is not None:
            act, self.before_put = self.before_put, None
            await act()
        return await super().put(path, data, known)


def test_a_write_of_the_old_owner_between_the_new_ones_load_and_first_write_is_not_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        blobs, events = Late(tmp_path), a_morning()
        first = await started(blobs, 1)
        first.add(events[:800])
        blobs.before_put = first.write
        second = await started(blobs, 2)
        assert second.tally.upto == 799
        second.add(events[100:])
        await second.write()
        await assert_right(blobs, events)

    asyncio.run(scenario())


def test_a_put_that_seemed_to_fail_and_did_not_is_recognised(tmp_path: Path) -> None:
    class Doubtful(Folder):
        lose_answers = False

        async def put(self, path: str, data: bytes, known: Version | None) -> Version:
            version = await super().put(path, data, known)
            if self.lose_answers and path.startswith("recent"):
                self.lose_answers = False
                raise Conflict(Exception("tried again"))
            return version

    async def scenario() -> None:
        blobs, events = Doubtful(tmp_path), a_morning()
        keeper = await started(blobs, 1)
        keeper.add(events)
        blobs.lose_answers = True
        await keeper.write()
        await assert_right(blobs, events)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_owners_that_come_and_go_at_any_moment_leave_the_right_blobs(tmp_path: Path, seed: int) -> None:
    """Old owners write on for a while, days grow, owners die before, between and after writes."""
    random = Random(seed)
    town = Town(homes=40, seed=seed)

    async def scenario() -> None:
        blobs, events = Folder(tmp_path), a_morning(150, town)
        owners, place, checkpoint, epoch = [await started(blobs, 1)], 0, -1, 1
        while checkpoint < len(events) - 1:
            owner = owners[-1]
            owner.add(events[place : place + random.choice([10, 300, 900])])
            place = owner.tally.upto + 1
            if random.random() < 0.5:
                await owner.write()
                checkpoint = owner.tally.upto
            if random.random() < 0.2:
                epoch += 1
                owners.append(await started(blobs, epoch))
                place = checkpoint + 1
            for late in owners[:-1]:
                if random.random() < 0.2:
                    late.add(events[late.tally.upto + 1 : late.tally.upto + 200])
                    with pytest.raises(LeaseLost):
                        await late.write()
        await assert_right(blobs, events)
        assert (await blobs.paths("days")) == [day_name("0", 0)]

    asyncio.run(scenario())


def test_minutes_leave_the_recent_part_for_the_day(blobs: Folder) -> None:
    async def scenario() -> None:
        events = a_morning(150)
        keeper = await started(blobs, 1)
        for place in range(0, len(events), 200):
            keeper.add(events[place : place + 200])
            await keeper.write()
        home = (await written(blobs)).home(3)
        assert home is not None
        assert sum(span.minutes for span in home.spans) <= 8
        found = await blobs.get(day_name("0", bucket_of(3)))
        assert found is not None
        assert len(unpack(found.data, Day, "day").hours) == 3

    asyncio.run(scenario())


def test_a_page_needs_three_reads_and_says_up_to_when_it_is_complete(tmp_path: Path) -> None:
    class Counting(Folder):
        reads = 0

        async def get(self, path: str) -> Found | None:
            self.reads += 1
            return await super().get(path)

    async def scenario() -> None:
        blobs, events = Counting(tmp_path), a_morning(150)
        await blobs.put(ABOUT, pack(About(LAYOUT, 1, 40)), None)
        keeper = await started(blobs, 1)
        for place in range(0, len(events), 500):
            keeper.add(events[place : place + 500])
            await keeper.write()
        about, blobs.reads = await read_about(blobs), 0
        view = await read_home(blobs, about, 3)
        assert blobs.reads == 3
        assert view is not None
        assert view.complete_ms == max(report_ms(event) for event in events)
        assert sum(span.minutes for span in view.spans) == 150
        assert await read_home(blobs, about, 39_999) is None

    asyncio.run(scenario())


def report_ms(event: Event) -> int:
    return int(event.body.split(b":")[1].split(b",")[0])


def test_of_two_who_read_the_same_version_one_can_write(blobs: Folder) -> None:
    async def scenario() -> None:
        first = await blobs.put("some/thing", b"1", None)
        outcomes = await asyncio.gather(
            *[blobs.put("some/thing", b"%d" % number, first) for number in range(8)], return_exceptions=True
        )
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
        with pytest.raises(Conflict):
            await blobs.put("some/thing", b"9", None)
        assert await blobs.paths("staged") == []

    asyncio.run(scenario())


def test_a_blob_whose_lock_is_never_released_is_reported(blobs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.home_security.blobs.LOCK_S", 0.05)

    async def scenario() -> None:
        with blobs._held("recent/0"), pytest.raises(StoreUnavailable, match=r"recent/0 .* is locked"):
            await started(blobs, 1)
        await started(blobs, 1)

    asyncio.run(scenario())


def test_what_the_killed_have_left_can_be_tidied_up(blobs: Folder, tmp_path: Path) -> None:
    async def scenario() -> None:
        await started(blobs, 1)
        (tmp_path / "staged" / "half#1").write_text("half")
        blobs.tidy()
        await (await started(blobs, 2)).write()
        assert await blobs.paths("recent") == ["recent/0"]

    asyncio.run(scenario())


def test_a_folder_that_was_removed_is_made_again(blobs: Folder, tmp_path: Path) -> None:
    async def scenario() -> None:
        await started(blobs, 1)
        shutil.rmtree(tmp_path)
        assert await blobs.paths("recent") == []
        await (await started(blobs, 2)).write()
        assert await blobs.paths("recent") == ["recent/0"]

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_used_is_a_transient_error(blobs: Folder, tmp_path: Path) -> None:
    (tmp_path / "recent").write_text("a file where a folder should be")

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable, match=r"recent/0 .* cannot be used now"):
            await started(blobs, 1)

    asyncio.run(scenario())


def test_blobs_of_another_layout_are_rejected(blobs: Folder) -> None:
    async def scenario() -> None:
        await blobs.put("recent/1", pack(Recent(99, "1", 1, 0, 0, 0, {})), None)
        with pytest.raises(Misconfigured, match="layout 99"):
            await Keeper(blobs, "1", 1).start()
        with pytest.raises(Misconfigured, match="no aggregates here"):
            await read_about(blobs)

    asyncio.run(scenario())


def test_an_invalid_location_of_blobs_is_rejected() -> None:
    with pytest.raises(Misconfigured, match="not ftp://"):
        open_blobs("ftp://somewhere/else")


def test_a_sensor_says_since_when_it_is_as_it_is(blobs: Folder) -> None:
    async def scenario() -> None:
        keeper = await started(blobs, 1)
        keeper.add(stored([report(1, BEGIN_MS + 60_000 * n, "door", "open" if n > 4 else "closed") for n in range(9)]))
        await keeper.write()
        view = await read_home(blobs, About(LAYOUT, 1, 40), 1)
        assert view is not None
        assert [(one.sensor, one.state, one.since_ms) for one in view.sensors] == [
            ("door", "open", BEGIN_MS + 5 * 60_000)
        ]

    asyncio.run(scenario())
