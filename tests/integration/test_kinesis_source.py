"""A processor over a server of Kinesis: shards that split, merge and expire, limits, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, Manual, Misconfigured, PartitionHalted, Processor
from evenflow.errors import PositionGone
from evenflow.model import BEGINNING, DeadLetter, Event, Group, Position
from evenflow.operate.dead_letters.hub import HubDeadLetters
from evenflow.operate.inspect.survey import survey
from evenflow.ports import Writable
from evenflow.signals import Ended, Gone, PartitionStarted, Signal, Trouble
from evenflow.sources.kinesis.client import ANSWER_S
from evenflow.sources.kinesis.codec import position_at_time
from evenflow.sources.kinesis.source import POLL_S, KinesisSource
from evenflow.stores.memory import MemoryStore
from tests.integration.calls import boot_s
from tests.integration.programs import wait_for
from tests.servers.kinesis import KEYS, REGION, Kinesis, Stream, shared
from tests.servers.processes import standing_still

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from evenflow import OwnedPartition

pytestmark = pytest.mark.timeout(180)

LONG_S = 60.0
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"], "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"]}


@pytest.fixture(scope="module")
def server() -> Kinesis:
    return shared()


@pytest.fixture
def stream(server: Kinesis) -> Iterator[Stream]:
    made = server.stream(2)
    yield made
    made.delete()


def opened(stream: Stream) -> KinesisSource:
    return KinesisSource(stream.name, region=REGION, endpoint=stream.server.endpoint, poll_s=0.2, options=KEYS)


@asynccontextmanager
async def source_of(stream: Stream) -> AsyncIterator[KinesisSource]:
    source = opened(stream)
    try:
        yield source
    finally:
        await source.aclose()


class Run:
    """A processor in this process, and what it handled."""

    def __init__(self, source: KinesisSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.store = store or MemoryStore()
        self.handled: list[tuple[str, bytes]] = []
        self.signals: list[Signal] = []
        self.processor = Processor(source, self.store, "group", refresh_s=0.5, heartbeat_s=0.5, ttl_s=5.0, **options)
        self.processor.on_event(self._handle)
        self.processor.listen(self.signals.append)

    async def _handle(self, event: Event, partition: OwnedPartition) -> None:
        self.handled.append((partition.id, event.body))

    def told(self, kind: type[Signal]) -> list[Signal]:
        return [one for one in self.signals if isinstance(one, kind)]

    async def caught_up(self) -> list[tuple[str, bytes]]:
        async with asyncio.timeout(LONG_S):
            await self.processor.serve(until="caught_up")
        return self.handled


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not look():  # noqa: ASYNC110 - some of what is looked at is in other processes
            await asyncio.sleep(0.02)


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def events(start: int, stop: int) -> list[Event]:
    return [Event(text, "a") for text in texts(start, stop)]


# --- shards that end
def test_a_run_goes_through_splits_and_merges_in_order(stream: Stream) -> None:
    left, right = stream.open_shards()
    stream.put(left, events(0, 5))
    stream.split(left)
    one, other, _ = stream.open_shards()
    stream.put(one, events(5, 8))
    stream.put(other, events(8, 10))
    stream.merge(one, other)
    merged, _ = stream.open_shards()
    stream.put(merged, events(10, 12))

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source)
            handled = await run.caught_up()
            assert [body for _, body in handled[:5]] == texts(0, 5)
            assert sorted(body for _, body in handled[5:10]) == sorted(texts(5, 10))
            assert handled[10:] == [(merged, b"10"), (merged, b"11")]
            assert {told.partition for told in run.told(Ended)} == {left, one, other}  # type: ignore[attr-defined]
            assert await Run(source, run.store).caught_up() == []

    asyncio.run(main())
    assert right in stream.shards()


def test_latest_is_a_place_that_stays_and_children_begin_at_their_beginning(stream: Stream) -> None:
    left, right = stream.open_shards()
    stream.put(left, events(0, 3))

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source, start="latest")
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.processor.owned) == 2)
            await until(lambda: len(run.told(PartitionStarted)) == 2)
            await asyncio.to_thread(stream.put, left, events(3, 5))
            await asyncio.to_thread(stream.put, right, events(20, 22))
            await asyncio.to_thread(stream.split, left)
            child = (await asyncio.to_thread(stream.open_shards))[0]
            await asyncio.to_thread(stream.put, child, events(5, 8))
            await until(lambda: len(run.handled) >= 7)
            run.processor.stop()
            await serving
            assert [body for name, body in run.handled if name != right] == texts(3, 8)

    asyncio.run(main())


def test_a_group_that_begins_after_a_split_reads_parents_that_are_still_there(stream: Stream) -> None:
    left, _ = stream.open_shards()
    stream.put(left, events(0, 4))
    stream.split(left)
    child = stream.open_shards()[0]
    stream.put(child, events(4, 6))

    async def main() -> None:
        async with source_of(stream) as source:
            assert [body for _, body in await Run(source).caught_up()] == texts(0, 6)
        stream.expire(left)
        async with source_of(stream) as source:
            assert [body for _, body in await Run(source).caught_up()] == texts(4, 6)

    asyncio.run(main())


def test_a_shard_that_expired_unread_is_reported_and_its_children_go_on(stream: Stream) -> None:
    left, right = stream.open_shards()
    stream.put(left, events(0, 4))

    async def main() -> None:
        async with source_of(stream) as source:
            first = Run(source)
            await first.caught_up()
            stream.put(left, events(4, 6))
            stream.split(left)
            child = stream.open_shards()[0]
            stream.put(child, events(6, 8))
            stream.expire(left)
            run = Run(source, first.store)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: [body for _, body in run.handled] == texts(6, 8) and run.told(Gone))
            run.processor.stop()
            await serving
            assert "the whole shard has expired" in str(run.told(Gone)[0])
            last = Run(source, first.store, on_gone="latest")
            assert await last.caught_up() == []
            assert [one.partition for one in last.told(Ended)] == [left]  # type: ignore[attr-defined]

    asyncio.run(main())
    assert right in stream.shards()


def test_records_that_expired_unread_halt_the_shard_or_are_skipped_and_reported(stream: Stream) -> None:
    left, _ = stream.open_shards()
    stream.put(left, events(0, 4))

    async def main() -> None:
        async with source_of(stream) as source:
            first = Run(source)
            await first.caught_up()
            stream.put(left, events(4, 10))
            stream.trim(left, 3)
            assert [body for _, body in await Run(source, first.store).caught_up()] == texts(4, 10), "none was lost"
            stream.put(left, events(10, 16))
            stream.trim(left, 10)
            with pytest.raises(PartitionHalted, match="may have expired before they were read"):
                await Run(source, first.store).caught_up()
            last = Run(source, first.store, on_gone="earliest")
            assert [body for _, body in await last.caught_up()] == texts(13, 16)
            assert len(last.told(Gone)) == 1

    asyncio.run(main())


def test_a_quiet_shard_whose_last_record_has_expired_goes_on(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time takes the place of that record, long before. Nothing comes twice by it."""
    monkeypatch.setattr("evenflow.sources.kinesis.reader.QUIET_S", 1.5)
    monkeypatch.setattr("evenflow.sources.kinesis.reader.QUIET_SINCE", timedelta(seconds=0))
    left, right = stream.open_shards()
    stream.put(left, events(0, 4))

    async def main() -> None:
        async with source_of(stream) as source:
            first = Run(source, checkpoint=Every(seconds=0.1))
            serving = asyncio.create_task(first.processor.serve())
            group = Group(f"kinesis.{REGION}.123456789012", stream.name, "group")

            async def is_a_time() -> bool:
                records = await first.store.checkpoints(group)
                return {one.partition for one in records if one.position.offset.startswith("@")} == {left, right}

            async with asyncio.timeout(LONG_S):
                while not await is_a_time():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
            first.processor.stop()
            await serving
            stream.trim(left, 4)
            stream.put(left, events(4, 6))
            again = Run(source, first.store)
            assert [body for _, body in await again.caught_up()] == texts(4, 6)
            assert not again.told(Gone)

    asyncio.run(main())


def test_a_time_before_all_that_is_kept_is_the_beginning_and_a_checkpoint_there_is_gone(stream: Stream) -> None:
    left, _ = stream.open_shards()

    async def main() -> None:
        async with source_of(stream) as source:
            long_ago = datetime.now(UTC) - timedelta(days=30)
            assert await source.resolve(left, long_ago) == BEGINNING
            with pytest.raises(PositionGone, match="may have expired"):
                await source.open(left, position_at_time(long_ago), epoch=1)

    asyncio.run(main())


def test_an_end_is_marked_by_hand_where_checkpoints_are(stream: Stream) -> None:
    left, _ = stream.open_shards()
    stream.put(left, events(0, 4))
    stream.split(left)

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source, checkpoint=Manual())

            @run.processor.on_partition_stop
            async def stop(partition: OwnedPartition, reason: str) -> None:
                if reason == "ended":
                    await partition.checkpoint()

            assert [body for _, body in await run.caught_up()] == texts(0, 4)
            assert run.told(Ended)

    asyncio.run(main())


# --- limits and trouble
def test_who_reads_too_often_backs_off_in_place_and_keeps_its_lease(server: Kinesis, stream: Stream) -> None:
    left, _ = stream.open_shards()
    stream.put(left, events(0, 20))

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) == 20)
            with server.faulty("GetRecords", "ProvisionedThroughputExceededException"):
                before = server.refused()
                await asyncio.to_thread(stream.put, left, events(20, 30))
                await until(lambda: server.refused() >= before + 6)
                assert len(run.handled) == 20
            await until(lambda: len(run.handled) == 30)
            run.processor.stop()
            await serving
            assert not run.told(Trouble)
            moves = await run.store.moves(Group(f"kinesis.{REGION}.123456789012", stream.name, "group"))
            assert {move.kind for move in moves} == {"claimed", "released"}

    asyncio.run(main())


def test_a_shard_that_is_throttled_for_long_is_reported(
    server: Kinesis, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.sources.kinesis.reader.REFUSED_S", 1.0)
    left, _ = stream.open_shards()

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.told(PartitionStarted)) == 2)
            with server.faulty("GetRecords", "ProvisionedThroughputExceededException"):
                await until(lambda: run.told(Trouble))
            assert "has been throttled for" in str(run.told(Trouble)[0])
            await asyncio.to_thread(stream.put, left, events(0, 5))
            await until(lambda: len(run.handled) == 5)
            run.processor.stop()
            await serving

    asyncio.run(main())


@pytest.mark.process
def test_a_service_that_hangs_holds_up_no_end(tmp_path: Path) -> None:
    """Its requests may take longer than a process may take to leave: nothing waits for them."""
    server = Kinesis()
    stream = server.stream(4)
    worker = Worker("one", stream, tmp_path)
    try:
        for shard in stream.open_shards():
            stream.put(shard, events(0, 1))
        wait_for(lambda: len(worker.lines()) == 4, "it to read")
        with standing_still(server):
            still_s = boot_s()
            wait_for(lambda: boot_s() > still_s + 4 * POLL_S, "it to ask in vain")
            worker.process.terminate()
            assert worker.process.wait(60) == 0
            assert boot_s() - still_s < ANSWER_S / 2
    finally:
        worker.process.kill()
        worker.process.wait()
        server.remove()


def test_an_iterator_that_expired_is_replaced(server: Kinesis, stream: Stream) -> None:
    """Each fifth: a new one is looked at before it is read, and either shard must get an answer in between."""
    left, _ = stream.open_shards()

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            with server.faulty("GetRecords", "ExpiredIteratorException", every=5):
                for start in range(0, 30, 10):
                    await asyncio.to_thread(stream.put, left, events(start, start + 10))
                    await until(lambda start=start: len(run.handled) == start + 10)  # type: ignore[misc]
            run.processor.stop()
            await serving
            assert [body for _, body in run.handled] == texts(0, 30)
            assert not run.told(Trouble)

    asyncio.run(main())


def test_a_client_that_the_service_refuses_is_reported(server: Kinesis, stream: Stream) -> None:
    async def main() -> None:
        async with source_of(stream) as source:
            for error in "AccessDeniedException", "UnrecognizedClientException":
                with (
                    server.faulty("DescribeStreamSummary", error),
                    pytest.raises(Misconfigured, match="access was denied"),
                ):
                    await source.identity()

    asyncio.run(main())


def test_a_stream_a_shard_or_a_place_that_there_is_not_is_reported(server: Kinesis, stream: Stream) -> None:
    async def main() -> None:
        source = KinesisSource("nowhere", region=REGION, endpoint=server.endpoint, options=KEYS)
        with pytest.raises(Misconfigured, match=r"stream nowhere of Kinesis in eu-north-1 does not exist.*correct the"):
            await Run(source).processor.serve()
        await source.aclose()
        async with source_of(stream) as source:
            with pytest.raises(Misconfigured, match="has no shard 'shardId-000000000077'"):
                await source.open("shardId-000000000077", BEGINNING, epoch=1)
            for offset in ("homes", "@noon"):
                with pytest.raises(Exception, match=r"is not a Kinesis sequence number|is not a time"):
                    await source.open(stream.open_shards()[0], Position(offset), epoch=1)

    asyncio.run(main())


# --- what is told
def test_how_long_events_have_waited_is_known_and_how_many_is_not(stream: Stream) -> None:
    left, right = stream.open_shards()
    stream.put(left, events(0, 3))

    async def main() -> None:
        async with source_of(stream) as source:
            run = Run(source)
            await run.caught_up()
            stream.put(left, events(3, 5))
            group = Group(f"kinesis.{REGION}.123456789012", stream.name, "group")
            found = await survey(run.store, group, source)
            assert found.waiting[left] > datetime.now(UTC) - timedelta(minutes=5)
            assert right not in found.waiting

    asyncio.run(main())


# --- writing
def test_what_is_sent_keeps_the_order_of_its_keys_and_all_of_an_event(server: Kinesis, stream: Stream) -> None:
    """Also where records are refused, and sent again."""
    sent = [Event(b"%d" % number, f"key-{number % 7}", {"n": number}) for number in range(1300)]
    sent += [Event(b"plain", "x" * 300), Event(b"no key"), Event(b"\x00evenflow\x01 looks like one", "y")]

    async def main() -> None:
        async with source_of(stream) as source:
            assert isinstance(source, Writable)
            with server.faulty("PutRecords", "ProvisionedThroughputExceededException", every=20):
                await source.send(sent)
            found: list[Event] = []
            for partition in await source.partitions():
                reader = await source.open(partition.id, BEGINNING, epoch=1)
                while batch := (await reader.read(1000, 1 << 20, 0.0)).events:
                    found += batch
            assert len(found) == len(sent)
            for key in {event.key for event in sent}:
                mine = [(event.body, event.properties) for event in found if event.key == key]
                assert mine == [(event.body, event.properties) for event in sent if event.key == key]

    asyncio.run(main())


def test_dead_letters_may_go_into_a_stream(stream: Stream) -> None:
    async def main() -> None:
        async with source_of(stream) as source:
            dead_letters, group = HubDeadLetters(source), Group("a", "b", "c")
            dead_letter = DeadLetter(
                partition="0", event=Event(b"bad", "k", None, 7, 0), reason="poison", error="ValueError"
            )
            await dead_letters.file(group, "0", [dead_letter])
            assert [record async for record in dead_letters.read(group)] == [dead_letter]

    asyncio.run(main())


# --- processes
class Worker:
    def __init__(self, name: str, stream: Stream, folder: Path) -> None:
        self.diary = folder / f"{name}.txt"
        self.diary.touch()
        orders = [stream.url, f"sqlite:{folder / 'leases'}", name, str(self.diary)]
        with (folder / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.kinesis_worker", *orders],
                stdout=log,
                stderr=log,
                env=os.environ | ENVIRONMENT,
            )

    def lines(self) -> list[tuple[float, str, str, int]]:
        found = [line.split() for line in self.diary.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [(float(at), shard, key, int(body)) for at, shard, key, body in found]


class Load:
    """Sends numbered events of some keys all the time."""

    def __init__(self, stream: Stream, keys: int) -> None:
        self._stream, self._stop = stream, Flag()
        self.sent = dict.fromkeys((f"key-{number}" for number in range(keys)), 0)
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        client = self._stream.server.client
        while not self._stop.wait(0.05):
            records = [{"Data": str(count).encode(), "PartitionKey": key} for key, count in self.sent.items()]
            client.put_records(StreamName=self._stream.name, Records=records)
            self.sent = {key: count + 1 for key, count in self.sent.items()}


def handled(workers: Sequence[Worker]) -> list[tuple[float, str, str, int]]:
    return sorted(line for worker in workers for line in worker.lines())


@pytest.mark.process
def test_two_processes_go_through_splits_and_merges_and_one_is_killed(stream: Stream, tmp_path: Path) -> None:
    workers = [Worker(name, stream, tmp_path) for name in ("one", "other")]
    try:
        with Load(stream, 12) as load:
            wait_for(lambda: all(worker.lines() for worker in workers), "both to handle something")
            left, right = stream.open_shards()
            stream.split(left)
            stream.split(right)
            first, second, third, _ = stream.open_shards()
            wait_for(lambda: {first, second, third} <= {line[1] for line in handled(workers)}, "children")
            stream.merge(second, third)
            workers[0].process.kill()
            merged = stream.open_shards()[1]
            wait_for(lambda: merged in {line[1] for line in workers[1].lines()}, "the merged child")
            stream.split(merged)
            workers.append(Worker("third", stream, tmp_path))
            wait_for(lambda: workers[2].lines(), "a newcomer")
        wanted = {(key, number) for key, count in load.sent.items() for number in range(count)}
        wait_for(lambda: wanted <= {(key, body) for _, _, key, body in handled(workers)}, "all events")
        for worker in workers[1:]:
            worker.process.terminate()
            assert worker.process.wait(30) == 0
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    reached = dict.fromkeys(load.sent, -1)
    for _, shard, key, number in handled(workers):
        assert number <= reached[key] + 1, f"{key}: {number} in {shard} came before {reached[key] + 1}"
        reached[key] = max(reached[key], number)
