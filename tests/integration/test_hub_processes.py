"""The embedded hub in several real processes, which are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow.embedded.hub import Batch, Hub
from evenflow.errors import SendFailed, SourceUnavailable, StorageFull
from evenflow.model import BEGINNING
from evenflow.sources.hub.source import HubSource
from tests.integration.programs import slowness
from tests.servers import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.model import Event

pytestmark = pytest.mark.process

MUCH = 1 << 30


@contextmanager
def worker(role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.hub_worker", role, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lines(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.read().split("\n")[:-1]


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Hub.create(tmp_path / "hub", 2).close()
    return tmp_path / "hub"


def everything(path: Path) -> list[Event]:
    with Hub(path) as hub:
        log = hub.opened().log(0)
        return [event for row in log.read(-1, MUCH, MUCH).rows for event in log.events(row)]


def test_two_writers_and_a_reader(path: Path) -> None:
    with (
        worker("read", path, 4000) as reader,
        worker("write", path, "one", 100, 20) as one,
        worker("write", path, "two", 100, 20) as two,
    ):
        assert line(reader) == "ready"
        found = lines(reader)
        acknowledged = {name: lines(writer)[1:] for name, writer in (("one", one), ("two", two))}
    for name, answers in acknowledged.items():
        assert [text for text in found if text.startswith(name)] == [f"{name}:{n}" for n in range(2000)]
        for answer in answers:
            first, last, start, end = map(int, answer.split())
            assert found[start : end + 1] == [f"{name}:{n}" for n in range(first, last + 1)]
    stored = everything(path)
    assert [event.sequence for event in stored] == list(range(4000))
    assert [event.enqueued_us for event in stored] == sorted(event.enqueued_us for event in stored)


def test_nothing_acknowledged_is_lost_when_a_writer_is_killed(path: Path) -> None:
    chance = random.Random(20)
    acknowledged: list[tuple[str, list[int]]] = []
    for turn in range(20):
        with worker("write", path, f"turn{turn}", 100_000, 7) as writer:
            assert line(writer) == "ready"
            said = [line(writer) for _ in range(chance.randrange(12))]
            # Somewhere in the next transaction or between two.
            for _ in range(chance.randrange(20_000)):
                pass
            writer.kill()
            said += lines(writer)
        acknowledged += [(f"turn{turn}", [int(part) for part in text.split()]) for text in said]
    stored = everything(path)
    assert [event.sequence for event in stored] == list(range(len(stored)))
    assert len(acknowledged) > 20
    for name, (first, last, start, end) in acknowledged:
        texts = [event.body.decode() for event in stored[start : end + 1]]
        assert texts == [f"{name}:{n}" for n in range(first, last + 1)]
    assert len(stored) % 7 == 0, "a send is there whole or not at all"
    for file in (path / "partitions").glob("*.sqlite"):
        assert apsw.Connection(str(file)).pragma("integrity_check") == "ok"


def test_a_killed_sender_that_numbers_its_sends_repeats_them_and_stores_none_twice(path: Path) -> None:
    chance = random.Random(14)
    acknowledged: list[str] = []
    kills = 0
    while not acknowledged or not acknowledged[-1].startswith("119 "):
        with worker("number", path, 120) as sender:
            assert line(sender) == "ready"
            said = [line(sender) for _ in range(chance.randrange(5, 30))]
            # Somewhere in the next transaction or between two.
            for _ in range(chance.randrange(20_000)):
                pass
            sender.kill()
            kills += 1
            acknowledged += [text for text in [*said, *lines(sender)] if text]
    assert kills > 3
    stored = [event.body.decode() for event in everything(path)]
    assert stored == [f"{n}:{part}" for n in range(120) for part in range(3)]
    numbers = [text.split()[0] for text in acknowledged]
    assert len(numbers) > len(set(numbers)) == 120, "none was sent again, which shows nothing"
    for number, start, end in (text.split() for text in acknowledged):
        assert stored[int(start) : int(end) + 1] == [f"{number}:{part}" for part in range(3)]


def test_a_reader_wakes_within_milliseconds_of_a_send_elsewhere(path: Path) -> None:
    async def main(writer: subprocess.Popen[str]) -> list[float]:
        source = HubSource(path)
        reader = await source.open("0", BEGINNING, epoch=1)
        waits_ms = []
        for _ in range(100):
            reading = asyncio.create_task(reader.read(10, MUCH, 30.0))
            await asyncio.sleep(0)
            tell(writer)
            (event,) = (await reading).events
            waits_ms.append((time.monotonic_ns() - int(event.body)) / 1e6)
        await source.aclose()
        return waits_ms

    with worker("send_when_told", path) as writer:
        assert line(writer) == "ready"
        waits_ms = asyncio.run(main(writer))
    assert statistics.median(waits_ms) < 20 * slowness(), sorted(waits_ms)


def test_a_stopped_reader_does_not_block_writers(path: Path) -> None:
    async def send_while_stopped(reader: subprocess.Popen[str]) -> None:
        async with Hub(path, busy_timeout_s=1.0) as hub:
            for _ in range(20):
                await hub.send([bytes(10_000)] * 20, partition=0)
            for _ in range(10):
                os.kill(reader.pid, signal.SIGSTOP)
                for _ in range(10):
                    await hub.send([bytes(10_000)] * 20, partition=0)
                os.kill(reader.pid, signal.SIGCONT)

    with worker("read_for_ever", path) as reader:
        assert line(reader) == "ready"
        asyncio.run(send_while_stopped(reader))
    assert len(everything(path)) == 2400


def test_a_stopped_writer_shows_as_unavailable_and_readers_go_on(path: Path) -> None:
    async def main(holder: subprocess.Popen[str]) -> None:
        async with Hub(path, busy_timeout_s=0.2) as hub:
            await hub.send(b"free", partition=1)
            with pytest.raises(SourceUnavailable, match=rf"00000\.sqlite is locked .*\(pid {holder.pid}\)"):
                await hub.send(b"x", partition=0)
            source = HubSource(hub)
            reader = await source.open("0", BEGINNING, epoch=1)
            assert [event.body for event in (await reader.read(10, MUCH, 5.0)).events] == [b"before"]
            holder.kill()
            holder.wait()
            assert (await hub.send(b"after", partition=0))[0].first == 1
            assert [event.body for event in (await reader.read(10, MUCH, 5.0)).events] == [b"after"]
            await source.aclose()

    with Hub(path) as hub:
        asyncio.run(hub.send(b"before", partition=0))
    with worker("hold", path) as holder:
        assert line(holder) == "ready"
        os.kill(holder.pid, signal.SIGSTOP)
        asyncio.run(main(holder))


def test_idle_readers_cost_next_to_nothing(tmp_path: Path) -> None:
    Hub.create(tmp_path / "wide", 16).close()
    with worker("idle", tmp_path / "wide", 4.0) as idle:
        assert float(line(idle)) < 0.01


def test_growth_by_another_process_is_seen(path: Path) -> None:
    async def main() -> None:
        source = HubSource(path)
        assert len(await source.partitions()) == 2
        with worker("grow", path, 3) as grower:
            assert grower.wait(30) == 0
        assert [one.id for one in await source.partitions()] == ["0", "1", "2", "3", "4"]
        await source.hub.send(b"new", partition=4)
        reader = await source.open("4", BEGINNING, epoch=1)
        assert (await reader.read(10, MUCH, 5.0)).events
        await source.aclose()

    asyncio.run(main())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with processes.small_disk(tmp_path / "small", "4m") as place:
        yield place


def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: Path) -> None:
    Hub.create(small_disk / "hub", 1).close()

    async def fill() -> tuple[int, Batch]:
        sent = 0
        async with Hub(small_disk / "hub") as hub:
            while sent < 1000:
                refused = hub.batch([b"%d" % sent + bytes(20_000)] * 5, partition=0)
                try:
                    sent = (await hub.send(refused))[0].last + 1
                except SendFailed:
                    break
            for _ in range(3):
                with pytest.raises(StorageFull, match="free some disk space"):
                    await hub.send([bytes(300_000)], partition=0)
        return sent, refused

    def bodies() -> list[bytes]:
        return [event.body.rstrip(b"\0") for event in everything(small_disk / "hub")]

    sent, refused = asyncio.run(fill())
    assert sent >= 5
    found: list[Any] = bodies()
    assert found == [b"%d" % (n - n % 5) for n in range(sent)]
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    with Hub(small_disk / "hub") as hub:
        for _ in range(2):
            assert asyncio.run(hub.send(refused))[0].first == sent
        assert asyncio.run(hub.send(b"room", partition=0))[0].first == sent + 5
    assert bodies() == [*found, *[b"%d" % sent] * 5, b"room"]
