"""The hub source beyond the contract of all sources."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.embedded.hub import Hub
from evenflow.embedded.hub.log import PartitionLog
from evenflow.errors import (
    Corrupt,
    Misconfigured,
    NotAHub,
    PositionGone,
    PositionOutOfRange,
    SourceUnavailable,
)
from evenflow.model import BEGINNING, Bounds, Event, Position
from evenflow.sources.hub import reader as module
from evenflow.sources.hub.source import HubSource, from_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from evenflow.ports import Reader

MUCH = 1 << 30
DEADLINE_S = 60.0


class Scene:
    """A hub that one opened hub writes and another reads."""

    def __init__(self, path: Path, partitions: int) -> None:
        self.path = path
        self.hub = Hub.create(path, partitions)
        self.source = HubSource(path)

    async def send(self, *texts: str, partition: int = 0) -> None:
        await self.hub.send(list(texts), partition=partition)

    def append_without_ring(self, *texts: str) -> None:
        """Like a writer that is killed right after its commit."""
        self.hub.opened().log(0).append([[Event(text.encode()) for text in texts]], 0)

    async def reader(self, partition: str = "0", start: str = "earliest") -> Reader:
        return await self.source.open(partition, await self.source.resolve(partition, start), epoch=1)


@asynccontextmanager
async def scene(path: Path, partitions: int = 2) -> AsyncIterator[Scene]:
    scene = Scene(path / "hub", partitions)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield scene
    finally:
        await scene.source.aclose()
        await scene.hub.aclose()


def play(tmp_path: Path, test: Callable[[Scene], Awaitable[None]], partitions: int = 2) -> None:
    async def main() -> None:
        async with scene(tmp_path, partitions) as stage:
            await test(stage)

    asyncio.run(main())


async def bodies(reader: Reader, count: int, max_events: int = 1000) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        batch = await reader.read(max_events, MUCH, DEADLINE_S)
        found += [event.body.decode() for event in batch.events]
    return found


class Fetches:
    """Counts the reads of logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = PartitionLog.read

        def read(log: PartitionLog, *limits: int) -> Any:
            self.count += 1
            return real(log, *limits)

        monkeypatch.setattr(PartitionLog, "read", read)


def test_its_identity_is_the_hubs_name_and_creation(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        identity = await stage.source.identity()
        assert (identity.namespace, identity.hub, identity.made) == ("local", "hub", stage.hub.info().made)

    play(tmp_path, test)


def test_it_reports_since_when_the_next_event_has_waited(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        for body in ("one", "two"):
            await stage.hub.send([body, body], partition=0)
            await asyncio.sleep(0.002)
        reader = await stage.source.open("0", BEGINNING, epoch=1)
        events: list[Event] = []
        while len(events) < 4:
            events += (await reader.read(10, MUCH, DEADLINE_S)).events
        await reader.aclose()
        for place in (-1, 0, 1, 2):
            after = {"0": Position(str(place), place), "1": BEGINNING}
            assert await stage.source.waiting_since(after) == {"0": events[place + 1].enqueued_at}
        assert await stage.source.waiting_since({"0": events[3].position}) == {}

    play(tmp_path, test)


def test_an_idle_reader_does_not_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = Fetches(monkeypatch)
    monkeypatch.setattr(module, "FETCH_EVERY_S", 60.0)

    async def test(stage: Scene) -> None:
        await stage.send("a")
        reader = await stage.reader()
        assert await bodies(reader, 1) == ["a"]
        for _ in range(20):
            assert not (await reader.read(10, MUCH, 0.005)).events
        assert fetches.count == 1
        await stage.send("b", partition=1)
        assert not (await reader.read(10, MUCH, 0.05)).events
        assert fetches.count == 1, "the ring of another partition causes no fetch"

    play(tmp_path, test)


def test_a_ring_wakes_a_reader_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_EVERY_S", 60.0)

    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        waits_s = []
        for n in range(50):
            reading = asyncio.create_task(reader.read(10, MUCH, DEADLINE_S))
            await asyncio.sleep(0.001)
            await stage.send(str(n))
            started_s = time.perf_counter()
            assert [event.body for event in (await reading).events] == [b"%d" % n]
            waits_s.append(time.perf_counter() - started_s)
        assert sorted(waits_s)[25] < 0.02

    play(tmp_path, test)


def test_an_event_committed_without_a_ring_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_EVERY_S", 0.1)

    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        assert not (await reader.read(10, MUCH, 0.0)).events
        stage.append_without_ring("a")
        assert await bodies(reader, 1) == ["a"]

    play(tmp_path, test)


def test_a_ring_during_a_fetch_causes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch has read nothing when the event is committed and the bell rung, and returns only then."""
    monkeypatch.setattr(module, "FETCH_EVERY_S", 60.0)

    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        real = PartitionLog.read

        def read(log: PartitionLog, *limits: int) -> Any:
            found = real(log, *limits)
            monkeypatch.setattr(PartitionLog, "read", real)
            stage.append_without_ring("late")
            stage.hub.opened().bell.ring(1)
            return found

        monkeypatch.setattr(PartitionLog, "read", read)
        assert await bodies(reader, 1) == ["late"]

    play(tmp_path, test)


def test_added_partitions_are_found_without_a_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stage: Scene) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stage.hub.opened().bell, "ring", lambda slot: None)
            stage.hub.add_partitions(1)
        assert len(await stage.source.partitions()) == 3

    play(tmp_path, test)


def test_many_readers_get_everything_while_it_is_written(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        readers = [await stage.reader(str(n % 4)) for n in range(8)]
        reading = [asyncio.create_task(bodies(reader, 200)) for reader in readers]
        for n in range(200):
            await asyncio.gather(*[stage.send(str(n), partition=partition) for partition in range(4)])
        assert [await one for one in reading] == [[str(n) for n in range(200)]] * 8

    play(tmp_path, test, partitions=4)


def test_a_large_log_is_read_in_several_fetches_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_EVENTS", 50)
    texts = [str(n) for n in range(500)]

    async def test(stage: Scene) -> None:
        for start in range(0, 500, 20):
            await stage.send(*texts[start : start + 20])
        for max_events in (1, 7, 20, 33, 1000):
            assert await bodies(await stage.reader(), 500, max_events) == texts
        reader = await stage.source.open("0", Position("250"), epoch=1)
        assert await bodies(reader, 249, 13) == texts[251:]

    play(tmp_path, test)


def test_readers_share_the_memory_for_fetched_rows(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        pool = stage.source._pool
        readers = [await stage.reader() for _ in range(16)]
        assert 16 * pool.fetch_bytes == 4 * 1024 * 1024
        for reader in readers[1:]:
            await reader.aclose()
            await reader.aclose()
        assert pool.readers == 1
        assert pool.fetch_bytes == 4 * 1024 * 1024

    play(tmp_path, test)


def test_small_rows_are_joined_into_one_batch(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        for n in range(100):
            await stage.send(str(n))
        batch = await (await stage.reader()).read(1000, MUCH, 1.0)
        assert [event.body for event in batch.events] == [b"%d" % n for n in range(100)]
        assert batch.resume == Position("99", 99)
        assert batch.size_bytes > 0

    play(tmp_path, test)


def test_every_read_raises_the_error_until_its_cause_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_EVERY_S", 60.0)

    async def test(stage: Scene) -> None:
        await stage.send("a")
        reader = await stage.reader()
        path = stage.hub.opened().log(0).path
        path.rename(f"{path}.kept")
        for _ in range(3):
            with pytest.raises(SourceUnavailable, match=r"00000\.sqlite is missing"):
                await reader.read(10, MUCH, DEADLINE_S)
        path.with_name(f"{path.name}.kept").rename(path)
        assert await bodies(reader, 1) == ["a"]

    play(tmp_path, test)


def test_a_damaged_partition_does_not_touch_the_others(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        await stage.send("a")
        await stage.send("b", partition=1)
        await stage.hub.aclose()
        stage.hub.path.joinpath("partitions", "00000.sqlite").write_bytes(b"")
        for use in (stage.source.resolve("0", "earliest"), stage.source.open("0", BEGINNING, epoch=1)):
            with pytest.raises(Corrupt, match=r"00000\.sqlite is damaged"):
                await use
        assert await bodies(await stage.reader("1"), 1) == ["b"]
        bounds = await stage.source.bounds(["0", "1"])
        assert bounds["0"] == Bounds()
        assert bounds["1"].newest == Position("0", 0)

    play(tmp_path, test)


@pytest.mark.parametrize("max_events", [1, 1000])
@pytest.mark.parametrize("fetch_events", [1, 2, 1000])
def test_damage_is_named_and_nothing_is_skipped_because_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetch_events: int, max_events: int
) -> None:
    monkeypatch.setattr(module, "FETCH_EVENTS", fetch_events)

    async def test(stage: Scene) -> None:
        for n in range(9):
            await stage.send(str(n))
        log = stage.hub.opened().log(0)
        with log._use() as connection:
            connection.execute("UPDATE batches SET crc = crc + 1 WHERE first = 3")
        reader = await stage.reader()
        assert await bodies(reader, 3, max_events) == ["0", "1", "2"]
        for _ in range(20):
            with pytest.raises(Corrupt, match="checksum of events 3 to 3"):
                await reader.read(max_events, MUCH, 1.0)
        with log._use() as connection:
            connection.execute("UPDATE batches SET crc = crc - 1 WHERE first = 3")
        assert await bodies(reader, 6, max_events) == ["3", "4", "5", "6", "7", "8"]

    play(tmp_path, test)


def test_a_reader_that_retention_overtakes_gets_an_error(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        for n in range(5):
            await stage.send(str(n))
        stage.hub.opened().log(0).remove_before(3)
        for _ in range(2):
            with pytest.raises(PositionGone, match="it holds 3 to 4"):
                await reader.read(10, MUCH, DEADLINE_S)

    play(tmp_path, test)


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        (Position("5"), PositionOutOfRange, "it holds 0 to 1"),
        (Position("-2"), PositionGone, "it holds 0 to 1"),
        (Position("4:1:17"), PositionOutOfRange, "'4:1:17' is not an offset of a hub"),
        ("yesterday", Misconfigured, "start='yesterday' is invalid"),
        (datetime(2026, 1, 2), Misconfigured, "no time zone"),  # noqa: DTZ001
    ],
)
def test_an_invalid_start_is_refused(tmp_path: Path, start: Any, error: type[Exception], message: str) -> None:
    async def test(stage: Scene) -> None:
        await stage.send("a", "b")
        with pytest.raises(error, match=message):
            await stage.source.resolve("0", start)
        if isinstance(start, Position):
            with pytest.raises(error, match=message):
                await stage.source.open("0", start, epoch=1)

    play(tmp_path, test)


@pytest.mark.parametrize("partition", ["2", "-1", "first", ""])
def test_a_partition_that_does_not_exist_is_refused(tmp_path: Path, partition: str) -> None:
    async def test(stage: Scene) -> None:
        for use in (stage.source.resolve(partition, "latest"), stage.source.bounds([partition])):
            with pytest.raises(Misconfigured, match="its partitions are 0 to 1"):
                await use

    play(tmp_path, test)


def test_a_deleted_hub_wakes_its_readers_with_an_error(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        reading = asyncio.create_task(reader.read(10, MUCH, DEADLINE_S))
        await asyncio.sleep(0.01)
        shutil.rmtree(stage.path)
        with pytest.raises(SourceUnavailable, match="was deleted or recreated"):
            await reading
        for use in (stage.source.identity(), stage.source.partitions(), stage.source.bounds(["0"])):
            with pytest.raises(SourceUnavailable, match="was deleted while it was in use"):
                await use

    play(tmp_path, test)


def test_a_recreated_hub_is_another_hub_and_old_readers_end(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        await stage.send("old")
        before = await stage.source.identity()
        reader = await stage.reader()
        assert await bodies(reader, 1) == ["old"]
        stage.path.rename(stage.path.with_name("aside"))
        await stage.hub.aclose()
        stage.hub = Hub.create(stage.path, 3)
        await stage.send("new")
        with pytest.raises(SourceUnavailable, match="was deleted or recreated"):
            await reader.read(10, MUCH, DEADLINE_S)
        after = await stage.source.identity()
        assert after.made == stage.hub.info().made != before.made
        assert len(await stage.source.partitions()) == 3
        assert await bodies(await stage.reader(), 1) == ["new"]

    play(tmp_path, test)


def test_a_closed_source_ends_its_readers(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        source = HubSource(stage.hub)
        other = await source.open("0", BEGINNING, epoch=1)
        await source.aclose()
        with pytest.raises(SourceUnavailable, match="was closed"):
            await other.read(10, MUCH, DEADLINE_S)
        await stage.send("the hub itself is open")
        assert await bodies(reader, 1) == ["the hub itself is open"]

    play(tmp_path, test)


def test_a_reader_closes_during_a_fetch(tmp_path: Path) -> None:
    async def test(stage: Scene) -> None:
        reader = await stage.reader()
        reading = asyncio.create_task(reader.read(10, MUCH, DEADLINE_S))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await reader.aclose()
        await reader.aclose()

    play(tmp_path, test)


def test_a_url_names_the_folder(tmp_path: Path) -> None:
    Hub.create(tmp_path / "hub", 1).close()

    async def main() -> None:
        source = from_url(f"hub:{tmp_path / 'hub'}")
        assert (await source.identity()).hub == "hub"
        await source.aclose()

    asyncio.run(main())
    with pytest.raises(NotAHub, match="the folder does not exist"):
        from_url(f"hub:{tmp_path / 'nothing'}")
    with pytest.raises(Misconfigured, match="names no folder"):
        from_url("hub:")
