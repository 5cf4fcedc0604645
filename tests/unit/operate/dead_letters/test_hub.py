"""Dead letters in a hub: one that is made, one that grows, one that others use too, and one that is unreachable."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from evenflow.embedded.hub import Hub
from evenflow.errors import DeadLettersUnavailable, Misconfigured, NotAHub, SourceUnavailable, StorageFull
from evenflow.model import BEGINNING, Batch, Bounds, Event, Group, Position
from evenflow.operate.dead_letters import hub as hub_module
from evenflow.operate.dead_letters.encoding import encode
from evenflow.operate.dead_letters.hub import MARKER, HubDeadLetters, from_url
from evenflow.testing.dead_letters_contract import numbered, read
from evenflow.testing.fakes import FakeSource
from tests.unit.operate.dead_letters.damage import until_damage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from evenflow.model import DeadLetterRecord, PartitionId

GROUP = Group("local", "homes", "alerts")


class Target(FakeSource):
    """Another kind of hub; its errors, its knowledge of its end and where keys go can be chosen."""

    def __init__(self, partitions: int = 2) -> None:
        self.now_us = 0
        super().__init__(partitions, wall_us=lambda: self.now_us)
        self.error: Exception | None = None
        self.knows_end = True

    async def send(self, events: Sequence[Event]) -> None:
        if self.error is not None:
            raise self.error
        for event in events:
            self.append(str(len(self.partition_ids) - 1), event.body, event.key, event.properties)

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        found = await super().bounds(partitions)
        return found if self.knows_end else {partition: Bounds() for partition in partitions}


def run(target: Target, *records: DeadLetterRecord) -> list[DeadLetterRecord]:
    async def main() -> list[DeadLetterRecord]:
        dead_letters = HubDeadLetters(target)
        await dead_letters.file(GROUP, "0", records)
        return await read(dead_letters, GROUP)

    return asyncio.run(main())


def test_a_hub_is_made_for_writers_and_not_for_those_who_look(tmp_path: Path) -> None:
    url = f"hub:{tmp_path / 'dead'}"
    with pytest.raises(NotAHub):
        from_url(url, create=False)
    assert not (tmp_path / "dead").exists()

    async def main() -> None:
        first, second = from_url(url), from_url(url)
        await first.file(GROUP, "0", numbered(0, 1))
        assert await read(second, GROUP) == numbered(0, 1)
        await first.aclose()
        await second.aclose()

    asyncio.run(main())


def test_two_that_make_it_at_once_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dead"
    opened = Hub

    class Late(Hub):
        """Another instance creates it between our check and our creation."""

        @classmethod
        def create(cls, *arguments: object, **options: object) -> Hub:
            opened.create(path, 3).close()
            return opened.create(path, 5)

    monkeypatch.setattr(hub_module, "Hub", Late)

    async def main() -> None:
        dead_letters = from_url(f"hub:{path}")
        await dead_letters.file(GROUP, "0", numbered(0, 1))
        assert await read(dead_letters, GROUP) == numbered(0, 1)
        await dead_letters.aclose()

    asyncio.run(main())
    with opened(path) as hub:
        assert len(hub.info().partitions) == 3


@pytest.mark.parametrize("path", ["file", "other"])
def test_what_is_something_else_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thing").touch()
    with pytest.raises(Misconfigured):
        from_url(f"hub:{tmp_path / path}")
    with pytest.raises(Misconfigured, match="names no folder"):
        from_url("hub:")


def test_a_hub_that_was_given_stays_open(tmp_path: Path) -> None:
    async def main() -> None:
        with Hub.create(tmp_path / "dead", 2) as hub:
            dead_letters = HubDeadLetters(hub)
            await dead_letters.file(GROUP, "0", numbered(0, 1))
            await dead_letters.aclose()
            await hub.send("still open")

    asyncio.run(main())


def test_order_is_kept_when_the_hub_grows() -> None:
    """The key's records are in two partitions then, and the newer ones may be in the one that is read first."""
    target = Target(2)
    for number in range(6):
        target.now_us += 1
        (record,) = numbered(number, number + 1)
        body = encode(GROUP, "0", record)
        target.append("1" if number < 3 else "0", body, "key", {MARKER: "dead_letters"})
    assert run(target) == numbered(0, 6)


def test_times_that_go_back_do_not_change_the_order_of_a_partition() -> None:
    async def main() -> None:
        log = [Event(b"", sequence=number, enqueued_us=us) for number, us in enumerate((5, 3, 9))]
        other = [Event(b"", sequence=number, enqueued_us=us) for number, us in enumerate((4, 6))]
        target = Target(2)
        for partition, events in (("0", log), ("1", other)):
            for event in events:
                target.append(partition, b"%d" % event.enqueued_us)
                target._logs[partition].events[-1] = event
        dead_letters = HubDeadLetters(target)
        merged = [(where, event.enqueued_us) async for where, event in hub_module._merged(await dead_letters._logs())]
        assert merged == [("1", 4), ("0", 5), ("0", 3), ("1", 6), ("0", 9)]

    asyncio.run(main())


def test_what_others_keep_in_the_hub_is_passed_over() -> None:
    target = Target()
    target.append("1", b"not ours")
    target.append("1", b'{"record": "dead_letter"}', properties={"theirs": 1})
    assert run(target, *numbered(0, 1)) == numbered(0, 1)


def test_a_damaged_record_is_reported_after_all_the_rest() -> None:
    target = Target()
    target.append("1", b"damaged", properties={MARKER: "dead_letters"})

    async def main() -> None:
        dead_letters = HubDeadLetters(target)
        await dead_letters.file(GROUP, "0", numbered(0, 2))
        seen = await until_damage(dead_letters, "Event 0 of partition 1 of the dead letters is damaged")
        assert seen == numbered(0, 2)

    asyncio.run(main())


def test_a_source_without_a_known_end_is_read_until_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "QUIET_S", 0.01)
    target = Target()
    target.knows_end = False
    assert run(target, *numbered(0, 3)) == numbered(0, 3)


class Silent:
    """A reader that gives nothing."""

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        return Batch((), BEGINNING)

    async def aclose(self) -> None: ...


def test_a_source_that_gives_less_than_it_has_is_not_taken_for_empty() -> None:
    log = hub_module._Log("1", Silent(), Bounds(Position("0", 0), Position("7", 7)))
    with pytest.raises(DeadLettersUnavailable, match="before its end"):
        asyncio.run(log.next())


def test_errors_are_those_of_dead_letters() -> None:
    target = Target()
    target.error = SourceUnavailable("the broker is unreachable")
    with pytest.raises(DeadLettersUnavailable, match="the broker is unreachable"):
        run(target, *numbered(0, 1))
    target.error = StorageFull()
    with pytest.raises(StorageFull):
        run(target, *numbered(0, 1))


def test_a_hub_that_is_deleted_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        dead_letters = from_url(f"hub:{tmp_path / 'dead'}")
        shutil.rmtree(tmp_path / "dead")
        with pytest.raises(DeadLettersUnavailable, match="was deleted"):
            await dead_letters.file(GROUP, "0", numbered(0, 1))
        with pytest.raises(DeadLettersUnavailable, match="was deleted"):
            await read(dead_letters, GROUP)
        Hub.create(tmp_path / "dead", 1).close()
        await dead_letters.file(GROUP, "0", numbered(0, 1))
        assert await read(dead_letters, GROUP) == numbered(0, 1)
        await dead_letters.aclose()

    asyncio.run(main())
