"""The Kafka source on a real broker, beyond the contract that all sources keep: bad input, transactions, groups."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from evenflow import Event, HubReplaced, Misconfigured, PartitionHalted, PositionOutOfRange, Processor, Retry
from evenflow.errors import SourceUnavailable
from evenflow.model import DeadLetter, Group, Position
from evenflow.signals import Gone, Trouble
from evenflow.sources.kafka import buffers as kafka_buffers
from evenflow.sources.kafka import queries as kafka_queries
from evenflow.sources.kafka import reader as kafka_reader
from evenflow.sources.kafka import source as module
from evenflow.sources.kafka.source import KafkaSource
from evenflow.stores.memory import MemoryStore
from evenflow.urls import open_dead_letters
from tests.integration.kafka_scene import (
    LONG_S,
    MUCH,
    TIMES,
    Run,
    events,
    opened,
    read,
    reader_of,
    texts,
    until,
)
from tests.servers.kafka import Kafka, shared_or_skip

if TYPE_CHECKING:
    from evenflow import OwnedPartition


@pytest.fixture
def kafka() -> Kafka:
    return shared_or_skip()


# --- who may not, and what is not there
def test_a_topic_that_does_not_exist_is_told_at_once(kafka: Kafka) -> None:
    async def main() -> None:
        async with opened(kafka, "no-such-topic") as source:
            with pytest.raises(Misconfigured, match=r"topic no-such-topic at .* does not exist. Create it"):
                await Run(source).processor.serve()

    asyncio.run(main())


def test_a_wrong_option_of_readers_is_reported_at_once(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        for option in ("fetch.min.bytes", "abc"), ("isolation.level", "bogus"), ("max.poll.no", "1"):
            source = KafkaSource(kafka.servers, topic, dict([option]))
            with pytest.raises(Misconfigured, match="an option is invalid"):
                await Run(source).processor.serve(until="caught_up")
            with pytest.raises(Misconfigured, match="an option is invalid"):
                await source.waiting_since({"0": Position("-1", -1)})
            await source.aclose()

    asyncio.run(main())


def test_a_source_may_be_used_in_one_event_loop_after_another(kafka: Kafka) -> None:
    source, store = KafkaSource(kafka.servers, kafka.make_topic(1), mirror_group=kafka.fresh("mirror")), MemoryStore()

    async def main(turn: int) -> None:
        await source.send(events(5 * turn, 5 * turn + 5), "0")
        run = Run(source, store)
        async with asyncio.timeout(LONG_S):
            await run.processor.serve(until="caught_up")
        assert [body for _, body in run.handled] == texts(5 * turn, 5 * turn + 5)
        assert not run.of(Trouble), "nothing was silent for so long that it is reported"

    for turn in range(3):
        asyncio.run(main(turn))
    asyncio.run(source.aclose())


# --- what is in a log beside events
def _transactions(kafka: Kafka, topic: str) -> None:
    """Five that are committed, five that are not, three that are: 13 events, of which 8 count, and three marks."""
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": kafka.fresh("tx"), "log_level": 0})
    producer.init_transactions(LONG_S)
    for bodies, end in ((texts(0, 5), "commit"), (texts(5, 10), "abort"), (texts(10, 13), "commit")):
        producer.begin_transaction()
        for body in bodies:
            producer.produce(topic, body, partition=0)
        producer.flush(LONG_S)
        if end == "commit":
            producer.commit_transaction(LONG_S)
        else:
            producer.abort_transaction(LONG_S)


def test_what_transactions_left_is_passed_over_and_the_end_is_reached(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        await asyncio.to_thread(_transactions, kafka, topic)
        async with opened(kafka, topic) as source:
            reader = await reader_of(source)
            assert await read(reader, 8) == [*texts(0, 5), *texts(10, 13)]
            assert (await reader.read(10, MUCH, 0.5)).resume == Position("15", 15)
            assert (await source.bounds(["0"]))["0"].newest == Position("15", 15)
            run = Run(source)
            async with asyncio.timeout(LONG_S):
                await run.processor.serve(until="caught_up")
            assert [body for _, body in run.handled] == [*texts(0, 5), *texts(10, 13)]
            identity = await source.identity()
            [record] = await run.store.checkpoints(Group(identity.namespace, identity.hub, "group"))
            assert record.position == Position("15", 15), "nothing is left, so there is no lag"
        async with opened(kafka, topic, isolation_level="read_uncommitted") as source:
            assert await read(await reader_of(source), 13) == texts(0, 13)

    asyncio.run(main())


def test_events_of_an_open_transaction_wait_and_a_start_at_latest_does_not_lose_them(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        config = {"bootstrap.servers": kafka.servers, "transactional.id": kafka.fresh("tx"), "log_level": 0}
        producer = Producer(config)
        await asyncio.to_thread(producer.init_transactions, LONG_S)
        producer.begin_transaction()
        for body in texts(0, 3):
            producer.produce(topic, body, partition=0)
        await asyncio.to_thread(producer.flush, LONG_S)
        async with opened(kafka, topic) as source:
            reader = await reader_of(source, start="latest")
            assert not (await reader.read(10, MUCH, 0.3)).events
            await asyncio.to_thread(producer.commit_transaction, LONG_S)
            assert await read(reader, 3) == texts(0, 3)

    asyncio.run(main())


def test_a_position_beyond_the_first_open_transaction_is_not_beyond_the_end(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        writer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": kafka.fresh("tx"), "log_level": 0})
        async with (
            opened(kafka, topic) as source,
            opened(kafka, topic, isolation_level="READ_UNCOMMITTED") as careless,
        ):
            await source.send(events(0, 3), "0")
            writer.init_transactions(LONG_S)
            writer.begin_transaction()
            writer.produce(topic, b"open", partition=0)
            writer.flush(LONG_S)
            assert (await source.bounds(["0"]))["0"].newest == Position("2", 2)
            assert (await careless.bounds(["0"]))["0"].newest == Position("3", 3)
            reader = await source.open("0", Position("3", 3), epoch=1)
            with pytest.raises(PositionOutOfRange, match="beyond the end"):
                await source.open("0", Position("4", 4), epoch=1)
            writer.commit_transaction(LONG_S)
            await source.send(events(3, 4), "0")
            assert await read(reader, 1) == [b"3"]
            await reader.aclose()

    asyncio.run(main())


def test_a_broker_that_stands_still_has_told_nothing_about_the_ends(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(kafka, kafka.make_topic(1)) as source:
            await source.send(events(0, 10), "0")
            long_ago = datetime(2001, 1, 1, tzinfo=UTC)
            assert await source.resolve("0", long_ago) == Position("-1", -1)
            monkeypatch.setattr(kafka_queries, "ANSWER_S", 1.0)
            kafka.nodes[0].pause()
            try:
                answers = await asyncio.gather(
                    source.resolve("0", "earliest"),
                    source.resolve("0", "latest"),
                    source.resolve("0", long_ago),
                    source.resolve("0", Position("5", 5)),
                    source.open("0", Position("5", 5), epoch=1),
                    source.bounds(["0"]),
                    source._queries.at_time(0, 0),
                    return_exceptions=True,
                )
                assert {type(answer) for answer in answers} == {SourceUnavailable}
            finally:
                kafka.nodes[0].resume()
            monkeypatch.undo()
            assert await source.resolve("0", "latest") == Position("9", 9)

    asyncio.run(main())


def test_a_start_before_all_times_is_the_beginning(kafka: Kafka) -> None:
    async def main() -> None:
        async with opened(kafka, kafka.make_topic(1)) as source:
            await source.send(events(0, 3), "0")
            for year in (1, 1969):
                start = datetime(year, 12, 31, 23, 59, 59, 999000, UTC)
                assert await source.resolve("0", start) == Position("-1", -1), year

    asyncio.run(main())


# --- sizes
def test_a_message_larger_than_the_fetch_limits_still_comes(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(
            kafka, topic, fetch_message_max_bytes=1000, fetch_max_bytes=900_000, message_max_bytes=900_000
        ) as source:
            await source.send([Event(b"small"), Event(bytes(800_000)), Event(b"after")])
            assert [len(body) for body in await read(await reader_of(source), 3)] == [5, 800_000, 5]

    asyncio.run(main())


def test_a_message_that_the_client_may_not_receive_is_told_and_not_skipped(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "SILENT_S", 2.0)

    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic) as source:
            await source.send([Event(b"before"), Event(bytes(900_000)), Event(b"after")])
        limits = {"fetch_max_bytes": 100_000, "message_max_bytes": 100_000, "receive_message_max_bytes": 200_000}
        async with opened(kafka, topic, **limits) as source:
            run = Run(source)
            async with run.processor:
                await until(lambda: run.of(Trouble), "somebody to tell")
            assert "receive.message.max.bytes" in str(run.of(Trouble)[0])
            assert (b"after" in [body for _, body in run.handled]) is False

    asyncio.run(main())


# --- retention, and topics that go away
def test_what_retention_removed_before_it_was_read_is_told(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 20))
            store = MemoryStore()
            await Run(source, store).processor.serve(until="caught_up")
            await source.send(events(20, 40))
            await asyncio.to_thread(kafka.trim, topic, 0, 30)
            with pytest.raises(PartitionHalted, match=r"the oldest is 30 and the newest 39"):
                await Run(source, store).processor.serve(until="caught_up")
            run = Run(source, store, on_gone="earliest")
            await run.processor.serve(until="caught_up")
            assert [body for _, body in run.handled] == texts(30, 40)
            assert [(one.after.sequence, one.events) for one in run.of(Gone)] == [(19, 10)]
            await source.send(events(40, 60))
            await asyncio.to_thread(kafka.trim, topic, 0, 50)
            last = Run(source, store, on_gone="latest")
            await last.processor.serve(until="caught_up")
            assert last.handled == []
            assert [(one.after.sequence, one.events) for one in last.of(Gone)] == [(39, 20)]

    asyncio.run(main())


def test_a_reader_that_retention_overtakes_raises(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker says so to the consumer, long after the reader was opened."""

    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic, fetch_message_max_bytes=1000) as source:
            await source.send([Event(bytes(1000)) for _ in range(400)])
            monkeypatch.setattr(kafka_buffers, "FULL_EVENTS", 10)
            monkeypatch.setattr(kafka_buffers, "ENOUGH_EVENTS", 5)
            monkeypatch.setattr(kafka_buffers, "READ_EVENTS", 10)
            reader = await reader_of(source)
            consumer = source._consumers[0]
            await until(lambda: consumer.buffers[0].is_paused, "the partition to be paused")
            await asyncio.to_thread(kafka.trim, topic, 0, 300)
            with pytest.raises(PositionOutOfRange, match=r"outside the log"):
                await read(reader, 400)

    asyncio.run(main())


def test_a_topic_that_is_made_again_ends_the_processor_and_nothing_of_it_is_taken_for_the_old(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 10))
            run = Run(source)
            serving = asyncio.create_task(run.processor.serve())
            await until(lambda: len(run.handled) == 10, "the old topic to be handled")
            await asyncio.to_thread(kafka.delete_topic, topic)
            await asyncio.to_thread(kafka.make_topic, 1, topic)
            with pytest.raises(HubReplaced, match=r"was deleted and made again"):
                await asyncio.wait_for(serving, LONG_S)
            with pytest.raises(HubReplaced, match=r"belong to another hub of that name"):
                await Run(source, run.store).processor.serve()

    asyncio.run(main())


def test_a_reader_notices_by_itself_that_its_topic_was_made_again(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the new one has as many events as the old one had, nothing else tells: the driver reads on in it."""
    monkeypatch.setattr(module, "WATCH_S", 0.1)

    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 3))
            reader = await reader_of(source)
            assert await read(reader, 3) == texts(0, 3)
            monkeypatch.setattr(module, "_topic_id", lambda topic_id: "another")
            with pytest.raises(SourceUnavailable, match=r"was deleted or recreated while it was being read"):
                await read(reader, 1)

    asyncio.run(main())


# --- growth, and partitions that differ
def test_partitions_that_a_topic_gets_later_are_handled_from_their_beginning(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic) as source:
            run = Run(source, start="latest")
            async with run.processor:
                await until(lambda: run.processor.owned, "the first partition")
                await asyncio.to_thread(kafka.grow, topic, 3)
                await source.send(events(0, 4), "2")
                await until(lambda: len(run.handled) == 4, "the new partition to be handled")
            assert run.handled == [("2", body) for body in texts(0, 4)]

    asyncio.run(main())


def test_a_slow_partition_is_paused_and_holds_up_no_other(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_buffers, "ENOUGH_EVENTS", 100)
    monkeypatch.setattr(kafka_buffers, "FULL_EVENTS", 400)
    monkeypatch.setattr(kafka_buffers, "READ_EVENTS", 200)

    async def main() -> None:
        topic = kafka.make_topic(2)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 5000), "0")
            await source.send(events(0, 5000), "1")
            slow, quick = await reader_of(source, "0"), await reader_of(source, "1")
            assert await read(quick, 5000) == texts(0, 5000)
            buffer = source._consumers[0].buffers[0]
            assert buffer.size()[0] <= 400 + 2 * 200, "what waits for a slow reader is bounded"
            assert buffer.is_paused
            assert await read(slow, 5000) == texts(0, 5000)

    asyncio.run(main())


# --- for people, and for dead letters
def test_how_long_the_first_event_waits_is_known(kafka: Kafka) -> None:
    """A time beyond all dates, as of a producer that counts microseconds, is the last date."""

    async def main() -> None:
        topic = kafka.make_topic(3, message_timestamp_after_max_ms=str(2**63 - 1))
        producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0})
        producer.produce(topic, b"in microseconds", partition=2, timestamp=1_700_000_000_000_123)
        producer.flush(LONG_S)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 3), "0")
            reader = await reader_of(source)
            first, second, _ = (await reader.read(3, MUCH, LONG_S)).events
            never = Position("-1", -1)
            found = await source.waiting_since({"0": first.position, "1": never, "2": never})
            assert found == {"0": second.enqueued_at, "2": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)}

    asyncio.run(main())


def test_poison_events_go_into_a_topic_and_come_back(kafka: Kafka) -> None:
    async def main() -> None:
        topic, dead = kafka.make_topic(1), kafka.make_topic(2)
        async with opened(kafka, topic) as source:
            await source.send([Event(b"good"), Event(b"bad", "key", {"n": 5}), Event(b"good")])
            processor = Processor(
                source, MemoryStore(), "group", retry=Retry(attempts=1), dead_letter=kafka.url(dead), **TIMES
            )

            @processor.on_event
            async def handle(event: Event, partition: OwnedPartition) -> None:
                if event.body == b"bad":
                    raise ValueError("no")

            await processor.serve(until="caught_up")
            identity = await source.identity()
            dead_letters = open_dead_letters(kafka.url(dead))
            [found] = [one async for one in dead_letters.read(Group(identity.namespace, topic, "group"))]
            await dead_letters.aclose()
            assert isinstance(found, DeadLetter)
            assert (found.event.body, found.event.key, found.event.properties) == (b"bad", "key", {"n": 5})

    asyncio.run(main())
