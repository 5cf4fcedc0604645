"""The container source beyond the contract of all sources."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from evenflow import urls
from evenflow.embedded.container import Container
from evenflow.errors import Misconfigured, NotAContainer, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import BEGINNING, MICROSECONDS, Bounds, Position
from evenflow.ports import Dated, Vanishing
from evenflow.sources.container import reader as container_reader
from evenflow.sources.container.source import ContainerSource, from_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from evenflow.model import Event
    from evenflow.ports import Reader

MUCH = 1 << 30
DEADLINE_S = 60.0


class Scene:
    """A container that one opened container writes and another reads."""

    def __init__(self, path: Path, mode: str, options: dict[str, Any]) -> None:
        self.path = path
        self.now_us = 1_700_000_000 * MICROSECONDS
        self.container = Container.create(path, wall_us=lambda: self.now_us, **options)
        self.source = ContainerSource(path, mode=mode)
        self.source.container._handle._open.wall_us = lambda: self.now_us

    def write(self, *names: str, **more: Any) -> None:
        for name in names:
            self.container.upsert({"id": name, **more})

    async def reader(self, partition: str = "0", start: Any = "earliest") -> Reader:
        return await self.source.open(partition, await self.source.resolve(partition, start), epoch=1)

    async def read(self, partition: str = "0", start: Any = "earliest", max_bytes: int = MUCH) -> list[Event]:
        reader = await self.reader(partition, start)
        found: list[Event] = []
        while events := (await reader.read(1000, max_bytes, 0.0)).events:
            found += events
        await reader.aclose()
        return found


@asynccontextmanager
async def scene(path: Path, *, mode: str = "latest", **options: Any) -> AsyncIterator[Scene]:
    scene = Scene(path / "orders", mode, options)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield scene
    finally:
        await scene.source.aclose()
        scene.container.close()


def play(work: Any) -> None:
    asyncio.run(work)


def body(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(event.body)
    return found


# --- opening one
def test_a_url_and_a_container_open_it(tmp_path: Path) -> None:
    with Container.create(tmp_path / "orders") as container:
        for given in (container, f"container:{tmp_path}/orders", f"container:{tmp_path}/orders?mode=all&poll_s=0.5"):
            source = urls.open_source(given)
            assert isinstance(source, ContainerSource)
            assert isinstance(source, Vanishing)
            assert isinstance(source, Dated)
            assert source.mode == ("all" if "mode=all" in str(given) else "latest")
            play(source.aclose())
        assert container.info().documents == 0, "a source does not close a container that it did not open"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("container:", "names no folder"),
        ("container:PATH?mode=newest", '"latest" or "all", not \'newest\''),
        ("container:PATH?pol_s=1", "URL: pol_s. Its options are mode and poll_s"),
        ("container:PATH?poll_s=soon", "poll_s='soon': give a number"),
        ("container:PATH?poll_s=0", "poll_s=0.0: give a number of seconds above 0"),
    ],
)
def test_a_wrong_url_is_refused(tmp_path: Path, url: str, message: str) -> None:
    Container.create(tmp_path / "orders").close()
    with pytest.raises(Misconfigured) as refused:
        from_url(url.replace("PATH", str(tmp_path / "orders")))
    assert message in str(refused.value)


def test_a_path_without_a_container_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAContainer, match=r"Create one with Container.create"):
        from_url(f"container:{tmp_path}/orders")


def test_all_versions_of_a_container_that_keeps_none_are_refused_at_once(tmp_path: Path) -> None:
    Container.create(tmp_path / "orders", retention_s=0).close()
    with pytest.raises(Misconfigured, match=r"keeps no log of all versions.*mode='latest'"):
        from_url(f"container:{tmp_path}/orders?mode=all")


def test_containers_with_the_same_name_have_different_identities(tmp_path: Path) -> None:
    async def act() -> None:
        identities = []
        for folder in ("one", "two"):
            with Container.create(tmp_path / folder / "orders") as container:
                source = ContainerSource(container)
                identities.append(await source.identity())
                await source.aclose()
        one, two = identities
        assert (one.namespace, one.hub) == (two.namespace, two.hub) == ("container", "orders")
        assert one.made != two.made

    play(act())


# --- what an event is
def test_of_the_latest_versions_an_event_is_a_document(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path, partition_key="/customer") as here:
            here.write("o-1", "o-2", customer="dan", total=1)
            here.write("o-1", customer="dan", total=2)
            found = await here.read()
            assert [(body(event)["id"], body(event)["total"], body(event)["_lsn"]) for event in found] == [
                ("o-2", 1, 2),
                ("o-1", 2, 3),
            ]
            assert [(event.key, event.sequence, event.enqueued_us) for event in found] == [
                ("dan", 2, here.now_us),
                ("dan", 3, here.now_us),
            ]

    play(act())


def test_of_all_versions_an_event_says_what_was_done_and_what_was_before(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path, mode="all", partition_key="/customer") as here:
            here.write("o-1", customer="dan", total=1)
            here.write("o-1", customer="dan", total=2)
            here.container.delete("o-1", "dan")
            made, changed, deleted = await here.read()
            seconds = here.now_us // MICROSECONDS
            assert body(made)["metadata"] == {"lsn": 1, "crts": seconds, "operationType": "create"}
            assert (body(made)["current"]["total"], "previous" in body(made)) == (1, False)
            assert body(changed)["metadata"]["operationType"] == "replace"
            assert (body(changed)["current"]["total"], body(changed)["previous"]["total"]) == (2, 1)
            metadata = body(deleted)["metadata"]
            assert body(deleted)["current"] == {}
            assert (metadata["operationType"], metadata["previousImageLSN"]) == ("delete", 2)
            assert (metadata["id"], metadata["partitionKey"]) == ("o-1", {"customer": "dan"})
            assert [event.key for event in (made, changed, deleted)] == ["dan"] * 3

    play(act())


@pytest.mark.parametrize(
    ("paths", "document", "key"),
    [
        ("/k", {"k": "dan"}, "dan"),
        ("/k", {"k": 7}, "7"),
        ("/k", {"k": True}, "true"),
        ("/k", {"k": None}, "null"),
        ("/k", {}, None),
        ("/a/b", {"a": {"b": "dan"}}, "dan"),
        ("/a/b", {"a": "dan"}, None),
        (["/a", "/b"], {"a": "dan", "b": 7}, '["dan",7]'),
        (["/a", "/b"], {"a": "dan"}, '["dan",null]'),
    ],
)
def test_the_key_of_an_event_is_the_partition_key_as_text(
    tmp_path: Path, paths: Any, document: dict[str, Any], key: str | None
) -> None:
    async def act() -> None:
        async with scene(tmp_path, partition_key=paths) as here:
            here.write("o-1", **document)
            assert [event.key for event in await here.read()] == [key]

    play(act())


@pytest.mark.parametrize("max_bytes", [1_000, 100_000, MUCH])
def test_latest_versions_are_the_same_many_at_once_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    async def act() -> None:
        async with scene(tmp_path, partition_key="/home/id", default_ttl_s=-1) as here:
            notes = ["", "x" * 100, "line\nbreak \x00 \u2028 \N{GRINNING FACE}", msgspec.Raw(b'{"a":1}')]
            many: list[dict[str, Any]] = [
                {"id": f"o-{n}", "home": {"id": n % 7}, "note": notes[n % 4]} for n in range(600)
            ]
            many += [{"id": f"short-lived-{n}", "home": {"id": n}, "ttl": 1} for n in range(12)]
            here.container.upsert_many(many)
            here.write("large", home={"id": 1}, note="y" * 50_000)
            here.write("in lines", home={"id": 2}, note=msgspec.Raw(b'{\n"a": 1\n}'))
            here.container.upsert_many(many[:300])
            here.container.delete("o-8", 1)
            here.now_us += 2 * MICROSECONDS
            at_once = await here.read(max_bytes=max_bytes)
            monkeypatch.setattr(container_reader, "read_feed_lines", lambda *_: None)
            assert at_once == await here.read(max_bytes=max_bytes)
            assert len(at_once) == 600 + 2 - 1

    play(act())


def test_an_expired_document_is_a_delete(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path, mode="all", default_ttl_s=10) as here:
            here.write("o-1")
            here.now_us += 11 * MICROSECONDS
            assert [body(event)["metadata"].get("timeToLiveExpired") for event in await here.read()] == [None, True]

    play(act())


# --- places
def test_a_delete_is_passed_without_an_event(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            here.write("o-1")
            reader = await here.reader()
            assert (await reader.read(10, MUCH, 0.0)).resume == Position("1", 1)
            here.container.delete("o-1", "o-1")
            assert (await reader.read(10, MUCH, 0.0)).resume == Position("2", 2)
            assert await here.source.bounds(["0"]) == {"0": Bounds(Position("1", 1), BEGINNING)}
            await reader.aclose()

    play(act())


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_a_checkpoint_may_lie_between_changes_with_the_same_lsn(tmp_path: Path, mode: str) -> None:
    """After a merge. Continuing between them neither loses nor repeats a change."""

    async def act() -> None:
        async with scene(tmp_path, mode=mode, ranges=2) as here:
            here.write(*(f"d-{number}" for number in range(12)))
            counts = {one.id: one.lsn for one in here.container.ranges()}
            here.container.merge("0", "1")
            events = await here.read("2")
            assert len(events) == 12
            twins = min(counts.values())
            assert [event.sequence for event in events].count(None) == twins
            assert len({event.offset for event in events}) == 12
            for at, event in enumerate(events[:-1]):
                rest = await here.source.open("2", event.position, epoch=1)
                assert (await rest.read(1, MUCH, 0.0)).events[0].body == events[at + 1].body
                await rest.aclose()

    play(act())


def test_a_merged_range_goes_on_where_each_of_its_parents_was(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path, ranges=2) as here:
            here.write(*(f"d-{number}" for number in range(20)))
            left, right = [await here.read(name) for name in ("0", "1")]
            handled = left[:2] + right[:5]
            here.container.merge("0", "1")
            after = {"0": left[1].position, "1": right[4].position}
            start = await here.source.child_start("2", after)
            assert start.sequence == 2
            here.write("d-3", "new")
            found = [body(event)["id"] for event in await here.read("2", start)]
            already = {body(event)["id"] for event in handled} - {"d-3"}
            assert sorted(found) == sorted({f"d-{number}" for number in range(20)} - already | {"new"})

    play(act())


def test_a_split_range_continues_in_its_children(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path, mode="all") as here:
            here.write(*(f"d-{number}" for number in range(6)))
            here.now_us += 10 * MICROSECONDS
            here.container.split("0")
            here.write(*(f"e-{number}" for number in range(6)))
            ends = {one.id: one.lsn for one in here.container.ranges()}
            latest = await here.source.resolve("0", "latest")
            assert await here.source.child_start("1", {"0": latest}) == Position(str(ends["1"]), ends["1"])
            assert await here.source.resolve("0", "earliest") == Position("0", 0)
            since = await here.source.resolve("0", datetime.fromtimestamp(here.now_us / MICROSECONDS, UTC))
            assert since == Position("6", 6)
            batch = await (await here.reader("0", latest)).read(10, MUCH, 0.0)
            assert [child.id for child in batch.ended or ()] == ["1", "2"]
            assert await here.source.waiting_since({"0": latest}) == {}

    play(act())


def test_a_range_that_was_rewound_and_then_split_goes_on_where_it_was_rewound_to(tmp_path: Path) -> None:
    """Its grandparent was further ahead, and still has a lease."""

    async def act() -> None:
        async with scene(tmp_path) as here:
            here.write(*(f"d-{number}" for number in range(6)))
            here.container.split("0")
            here.container.split("1")
            end, rewound = Position("6", 6), await here.source.resolve("1", "earliest")
            assert await here.source.child_start("3", {"0": end, "1": rewound}) == rewound
            assert await here.source.child_start("3", {"1": rewound, "0": end}) == rewound
            assert await here.source.child_start("3", {"0": end, "1": BEGINNING}) == end, "it never had a checkpoint"

    play(act())


def test_the_beginning_is_what_retention_has_left_in_each_part(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path, mode="all", ranges=2, retention_s=100) as here:
            here.write(*(f"d-{number}" for number in range(20)))
            here.now_us += 99 * MICROSECONDS
            here.write(*(f"e-{number}" for number in range(20)))
            here.now_us += 10 * MICROSECONDS
            here.container.trim()
            here.container.merge("0", "1")
            start = await here.source.resolve("2", "earliest")
            assert "@" in start.offset, "its parents were trimmed at different LSNs"
            assert sorted(body(event)["current"]["id"][0] for event in await here.read("2")) == ["e"] * 20
            with pytest.raises(PositionGone):
                await here.source.open("2", BEGINNING, epoch=1)
            assert (await here.source.bounds(["2"]))["2"].oldest is None

    play(act())


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_a_time_is_looked_up_in_each_log_of_a_merged_range(tmp_path: Path, mode: str) -> None:
    """One of them had many changes before that time, with LSNs above those of the other after it."""

    async def act() -> None:
        async with scene(tmp_path, mode=mode, ranges=4, retention_s=100) as here:

            def write(dead_letter: str) -> None:
                here.write(*(f"{dead_letter}-{number}" for number in range(40)))
                here.now_us += 10 * MICROSECONDS

            async def since(time_us: int) -> set[str]:
                (one,) = here.container.ranges()
                found = await here.read(one.id, datetime.fromtimestamp(time_us / MICROSECONDS, UTC))
                return {body(event).get("current", body(event))["id"][0] for event in found}

            write("a")
            first_us = here.now_us
            write("b")
            here.container.merge("0", "1")
            here.container.merge("2", "3")
            second_us = here.now_us
            write("c")
            here.container.merge(*(one.id for one in here.container.ranges()))
            third_us = here.now_us
            write("d")
            assert await since(first_us) == {"b", "c", "d"}
            assert await since(second_us) == {"c", "d"}
            assert await since(third_us) == {"d"}
            assert await since(here.now_us) == set()
            (one,) = here.container.ranges()
            start = await here.source.resolve(one.id, datetime.fromtimestamp(third_us / MICROSECONDS, UTC))
            assert "@" not in start.offset, "what comes after the last merge has one log"

    play(act())


@pytest.mark.parametrize("offset", ["99", "5,99@20"])
def test_a_place_beyond_the_end_of_a_part_is_out_of_range(tmp_path: Path, offset: str) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            here.write(*(f"d-{number}" for number in range(6)))
            with pytest.raises(PositionOutOfRange, match="99 is beyond the end"):
                await here.source.open("0", Position(offset), epoch=1)

    play(act())


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_what_was_overwritten_or_merged_is_not_taken_for_lost(tmp_path: Path, mode: str) -> None:
    """A checkpoint before the oldest event is shown as lost events."""

    async def act() -> None:
        async with scene(tmp_path, mode=mode, ranges=2) as here:
            here.write("d-0", *(f"d-{number}" for number in range(12)))
            at = {name: (await here.read(name))[0].position for name in ("0", "1")}
            here.container.merge("0", "1")
            here.write(*(f"d-{number}" for number in range(12)))
            after = await here.source.child_start("2", at)
            assert after.sequence == 1
            assert (await here.source.bounds(["2"]))["2"].oldest == Position("1", 1)

    play(act())


def test_it_reports_since_when_the_next_event_has_waited(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            here.write("d-1")
            first_us, here.now_us = here.now_us, here.now_us + 5 * MICROSECONDS
            here.write("d-2")
            moments = [datetime.fromtimestamp(time_us / MICROSECONDS, UTC) for time_us in (first_us, here.now_us)]
            waits = [await here.source.waiting_since({"0": Position(str(lsn), lsn)}) for lsn in (0, 1, 2)]
            assert waits == [{"0": moments[0]}, {"0": moments[1]}, {}]
            assert (await here.source.bounds(["0"]))["0"].newest_at == moments[1]

    play(act())


# --- waiting, and what goes wrong
def test_a_change_without_a_ring_is_found(tmp_path: Path) -> None:
    """Its writer was killed right after its commit."""

    async def act() -> None:
        async with scene(tmp_path) as here:
            source = ContainerSource(here.path, poll_s=0.05)
            reader = await source.open("0", await source.resolve("0", "latest"), epoch=1)
            waiting = asyncio.create_task(reader.read(10, MUCH, DEADLINE_S))
            here.container.opened().write_queue._ring = lambda slots: None
            here.write("o-1")
            assert [body(event)["id"] for event in (await waiting).events] == ["o-1"]
            await reader.aclose()
            await source.aclose()

    play(act())


def test_a_reader_ends_with_its_container_and_never_reads_another(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            reader = await here.reader()
            waiting = asyncio.create_task(reader.read(10, MUCH, DEADLINE_S))
            await asyncio.sleep(0)
            shutil.rmtree(here.path)
            with pytest.raises(SourceUnavailable, match="was deleted or recreated"):
                await waiting
            with pytest.raises(SourceUnavailable, match="Restore it, create it again, or stop"):
                await here.source.identity()
            with Container.create(here.path) as another:
                another.upsert({"id": "o-9"})
                assert (await here.source.identity()).made == another.info().rid
                with pytest.raises(SourceUnavailable):
                    await reader.read(10, MUCH, 0.0)
            await reader.aclose()

    play(act())


def test_a_fetch_that_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            here.write("o-1")
            reader = await here.reader()

            def fail(*_: Any) -> Any:
                raise SourceUnavailable("locked")

            monkeypatch.setattr(container_reader, "fetch", fail)
            with pytest.raises(SourceUnavailable, match="locked"):
                await reader.read(10, MUCH, 0.0)
            monkeypatch.undo()
            assert len((await reader.read(10, MUCH, 0.0)).events) == 1
            await reader.aclose()

    play(act())


def test_a_reader_whose_source_was_closed_says_so(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            reader = await here.reader()
            await here.source.aclose()
            with pytest.raises(SourceUnavailable):
                await reader.read(10, MUCH, 0.0)
            await reader.aclose()

    play(act())


def test_a_range_that_never_existed_is_refused(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path) as here:
            for wrong in ("7", "x", "-1"):
                with pytest.raises(Misconfigured, match="There is no range"):
                    await here.source.resolve(wrong, "earliest")
            with pytest.raises(Misconfigured, match="no time zone"):
                await here.source.resolve("0", datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
            with pytest.raises(Misconfigured, match=r"start='soon' is invalid: .* a time or a position"):
                await here.source.resolve("0", "soon")

    play(act())
