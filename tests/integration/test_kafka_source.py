"""The Kafka source on a real broker, beyond the contract that all sources keep: bad input, transactions, groups."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from evenflow import Event, Every, HubReplaced, Misconfigured, PartitionHalted, PositionOutOfRange, Processor, Retry
from evenflow.errors import SourceUnavailable
from evenflow.model import Action, Group, Letter, Position, Steering
from evenflow.observe.happenings import Committed, Gone, Trouble
from evenflow.sources import kafka as module
from evenflow.sources import kafka_lane, kafka_looks, kafka_mirror, kafka_reader
from evenflow.sources.kafka import KafkaSource
from evenflow.sources.kafka_group import GroupOffsets
from evenflow.sources.kafka_options import Options
from evenflow.stores.memory import MemoryStore
from evenflow.urls import open_letters
from tests.servers.kafka import USERS, Kafka, shared_or_skip, skip_without_kafka

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from evenflow import OwnedPartition
    from evenflow.observe.happenings import Happening
    from evenflow.ports import Reader

MUCH = 1 << 30
LONG_S = 20.0
TIMES: dict[str, Any] = {"beat_s": 0.2, "ttl_s": 5.0, "margin_s": 0.5, "refresh_s": 0.5}


@pytest.fixture
def kafka() -> Kafka:
    return shared_or_skip()


@asynccontextmanager
async def opened(kafka: Kafka, topic: str, **config: Any) -> AsyncIterator[KafkaSource]:
    own = {name: config.pop(name) for name in ("mirror_group",) if name in config}
    settings = {name.replace("_", "."): value for name, value in config.items()}
    source = KafkaSource(kafka.servers, topic, settings, **own)
    try:
        yield source
    finally:
        await source.aclose()


async def reader_of(source: KafkaSource, partition: str = "0", start: Any = "earliest") -> Reader:
    return await source.open(partition, await source.resolve(partition, start), epoch=1)


async def read(reader: Reader, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(LONG_S):
        while len(found) < count:
            batch = await reader.read(1000, MUCH, 0.5)
            found += [event.body for event in batch.events]
    return found


async def until(look: Callable[[], object], what: str, within_s: float = LONG_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not look():  # noqa: ASYNC110 - what it waits for comes from threads and tasks
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def events(start: int, stop: int) -> list[Event]:
    return [Event(body) for body in texts(start, stop)]


class Run:
    """A processor on a topic, what it handled and what it told."""

    def __init__(self, source: KafkaSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.handled: list[tuple[str, bytes]] = []
        self.happenings: list[Happening] = []
        self.store = store or MemoryStore()
        self.processor = Processor(source, self.store, "group", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.happenings.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.handled += [(partition.id, event.body) for event in events]

    def of(self, kind: type[Happening]) -> list[Any]:
        return [one for one in self.happenings if isinstance(one, kind)]


# --- who may not, and what is not there
def test_a_topic_that_does_not_exist_is_told_at_once(kafka: Kafka) -> None:
    async def main() -> None:
        async with opened(kafka, "no-such-topic") as source:
            with pytest.raises(Misconfigured, match=r"topic no-such-topic at .* does not exist. Make it"):
                await Run(source).processor.serve()

    asyncio.run(main())


@pytest.mark.parametrize("option", [("fetch.min.bytes", "abc"), ("isolation.level", "bogus"), ("max.poll.no", "1")])
def test_a_wrong_option_of_readers_is_told_at_once(kafka: Kafka, option: tuple[str, str]) -> None:
    async def main() -> None:
        source = KafkaSource(kafka.servers, kafka.make_topic(1), dict([option]))
        with pytest.raises(Misconfigured, match="an option is wrong"):
            await Run(source).processor.serve(until="caught_up")
        with pytest.raises(Misconfigured, match="an option is wrong"):
            await source.waiting_since({"0": Position("-1", -1)})
        await source.aclose()

    asyncio.run(main())


def test_a_source_may_be_used_in_one_event_loop_after_another(kafka: Kafka) -> None:
    source, store = KafkaSource(kafka.servers, kafka.make_topic(1), mirror_group=kafka.fresh("mirror")), MemoryStore()

    async def main(turn: int) -> None:
        await source.send(events(5 * turn, 5 * turn + 5), "0")
        run = Run(source, store)
        async with asyncio.timeout(kafka_reader.SILENT_S):
            await run.processor.serve(until="caught_up")
        assert [body for _, body in run.handled] == texts(5 * turn, 5 * turn + 5)
        assert not run.of(Trouble)

    for turn in range(3):
        asyncio.run(main(turn))
    asyncio.run(source.aclose())


def test_a_user_without_the_right_is_told_which_one_is_missing(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        source = KafkaSource(kafka.secure_servers, topic, kafka.secure("bob"))
        try:
            with pytest.raises(Misconfigured, match=r"does not exist|may not do that"):
                await Run(source).processor.serve()
        finally:
            await source.aclose()

    asyncio.run(main())


def right_to(operation: str, topic: str, user: str = "bob") -> AclBinding:
    """An ACL that lets a user do that with a topic."""
    allowed = AclOperation[operation], AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", *allowed)


def grant(kafka: Kafka, acl: AclBinding) -> None:
    for done in kafka.admin.create_acls([acl]).values():
        done.result(LONG_S)


def revoke(kafka: Kafka, acl: AclBinding) -> None:
    fields = acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host
    for done in kafka.admin.delete_acls([AclBindingFilter(*fields, acl.operation, acl.permission_type)]).values():
        assert len(done.result(LONG_S)) == 1


def test_a_user_who_may_see_a_topic_but_not_read_it_is_told_at_the_start(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        await asyncio.to_thread(grant, kafka, right_to("WRITE", topic))
        source = KafkaSource(kafka.secure_servers, topic, kafka.secure("bob"))
        try:
            await source.send(events(0, 1))
            with pytest.raises(Misconfigured, match=r"this user may not read it. Give it the right by an ACL"):
                await Run(source).processor.serve()
        finally:
            await source.aclose()

    asyncio.run(main())


def test_rights_that_are_taken_while_it_runs_are_trouble_and_it_goes_on_when_they_are_back(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1)
        right = right_to("READ", topic)
        await asyncio.to_thread(grant, kafka, right)
        source = KafkaSource(kafka.secure_servers, topic, kafka.secure("bob"))
        async with opened(kafka, topic) as writer:
            run = Run(source)
            async with run.processor:
                await writer.send(events(0, 3), "0")
                await until(lambda: len(run.handled) == 3, "the first events")
                await asyncio.to_thread(revoke, kafka, right)
                # The partition is let go, and taken again: its seal asks the broker, which refuses.
                action = Action(kind="pause", by="anna", why="rights", what="")
                [group] = await run.store.groups()
                await run.store.steer(group, Steering(pause=("0",)), action)
                await until(lambda: not run.processor.owned, "the pause")
                await writer.send(events(3, 6), "0")
                await run.store.steer(group, Steering(resume=("0",)), action)
                await until(lambda: run.of(Trouble) and run.processor.owned, "somebody to tell")
                await asyncio.to_thread(grant, kafka, right)
                await until(lambda: len(run.handled) == 6, "the other events")
            assert [body for _, body in run.handled] == texts(0, 6)
        await source.aclose()

    asyncio.run(main())


def test_who_is_not_let_in_is_told_so_quickly_and_without_the_password(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        source = KafkaSource(kafka.secure_servers, kafka.make_topic(1), kafka.secure("alice", "wr0ng-secret"))
        try:
            async with asyncio.timeout(8.0):
                with pytest.raises(Misconfigured, match=r"does not let this client in") as told:
                    await Run(source).processor.serve()
            assert "wr0ng-secret" not in str(told.value) + caplog.text
        finally:
            await source.aclose()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())


@pytest.mark.parametrize("way", ["password", "token"])
def test_sasl_and_tls_options_are_passed_on_to_whatever_speaks_to_the_broker(kafka: Kafka, way: str) -> None:
    async def main() -> None:
        config = kafka.secure("alice") if way == "password" else kafka.secure_by_token("alice")
        topic, group = kafka.make_topic(2), kafka.fresh("mirror")
        source = KafkaSource(kafka.secure_servers, topic, config, mirror_group=group)
        try:
            await source.send(events(0, 5), "0")
            assert await read(await reader_of(source), 5) == texts(0, 5)
            assert await source.waiting_since({"0": Position("3", 3)})
            source.committed({"0": Position("3", 3)})
            await until_offsets(kafka, group, topic, {0: 4})
            assert USERS["alice"] not in repr(source)
        finally:
            await source.aclose()

    asyncio.run(main())


def test_a_broker_that_is_not_there_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_looks, "ANSWER_S", 1.0)

    async def main() -> None:
        source = KafkaSource("127.0.0.1:1", "homes", {"socket.timeout.ms": 1000})
        try:
            with pytest.raises(SourceUnavailable, match=r"127.0.0.1:1.*Connection refused"):
                await source.identity()
        finally:
            await source.aclose()

    asyncio.run(main())


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
            monkeypatch.setattr(kafka_looks, "ANSWER_S", 1.0)
            kafka.nodes[0].pause()
            try:
                answers = await asyncio.gather(
                    source.resolve("0", "earliest"),
                    source.resolve("0", "latest"),
                    source.resolve("0", long_ago),
                    source.resolve("0", Position("5", 5)),
                    source.open("0", Position("5", 5), epoch=1),
                    source.bounds(["0"]),
                    source._looks.at_time(0, 0),
                    return_exceptions=True,
                )
                assert {type(answer) for answer in answers} == {SourceUnavailable}
            finally:
                kafka.nodes[0].resume()
            monkeypatch.undo()
            assert await source.resolve("0", "latest") == Position("9", 9)

    asyncio.run(main())


@pytest.mark.parametrize("year", [1, 1969])
def test_a_start_before_all_times_is_the_beginning(kafka: Kafka, year: int) -> None:
    async def main() -> None:
        async with opened(kafka, kafka.make_topic(1)) as source:
            await source.send(events(0, 3), "0")
            assert await source.resolve("0", datetime(year, 12, 31, 23, 59, 59, 999000, UTC)) == Position("-1", -1)

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


def test_silence_is_not_the_end(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty batch would pass for having caught up."""
    monkeypatch.setattr(kafka_reader, "SILENT_S", 1.0)

    def nothing(self: kafka_lane.Lane, consumer: Consumer) -> list[object]:
        self._called.wait(0.02)
        return []

    monkeypatch.setattr(kafka_lane.Lane, "_read", nothing)

    async def main() -> None:
        topic = kafka.make_topic(1)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 3))
            with pytest.raises(SourceUnavailable, match=r"Nothing came of partition 0 for 1 s, not even its end"):
                await (await reader_of(source)).read(10, MUCH, 0.1)

    asyncio.run(main())


def test_a_reading_that_breaks_says_why(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(self: kafka_lane.Lane, consumer: Consumer) -> None:
        raise ZeroDivisionError("our own")

    monkeypatch.setattr(kafka_lane.Lane, "_step", mistake)

    async def main() -> None:
        async with opened(kafka, kafka.make_topic(1)) as source:
            with pytest.raises(SourceUnavailable, match=r"The reading of .* broke: ZeroDivisionError\('our own'\)"):
                await (await reader_of(source)).read(10, MUCH, LONG_S)

    asyncio.run(main())


def test_who_wants_to_hear_what_the_driver_complains_of_hears_it() -> None:
    """It is asked of the lane itself: nothing is opened where brokers are away."""
    heard: list[Any] = []

    async def main() -> None:
        lane = kafka_lane.Lane(Options("127.0.0.1:1", "homes", {"error_cb": heard.append}))
        feed = lane.open(0, 0)
        await until(lambda: heard and lane.said, "a complaint")
        lane.close(feed)
        await lane.aclose()

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
            monkeypatch.setattr(kafka_lane, "MUCH_EVENTS", 10)
            monkeypatch.setattr(kafka_lane, "ENOUGH_EVENTS", 5)
            monkeypatch.setattr(kafka_lane, "READ_EVENTS", 10)
            reader = await reader_of(source)
            lane = source._lanes[0]
            await until(lambda: lane.feeds[0].is_paused, "the partition to be paused")
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
            monkeypatch.setattr(module, "_made", lambda topic_id: "another")
            with pytest.raises(SourceUnavailable, match=r"was deleted, or made again, while it was read"):
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
    monkeypatch.setattr(kafka_lane, "ENOUGH_EVENTS", 100)
    monkeypatch.setattr(kafka_lane, "MUCH_EVENTS", 400)
    monkeypatch.setattr(kafka_lane, "READ_EVENTS", 200)

    async def main() -> None:
        topic = kafka.make_topic(2)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 5000), "0")
            await source.send(events(0, 5000), "1")
            slow, quick = await reader_of(source, "0"), await reader_of(source, "1")
            assert await read(quick, 5000) == texts(0, 5000)
            feed = source._lanes[0].feeds[0]
            assert feed.waits()[0] <= 400 + 2 * 200, "what waits for a slow reader is bounded"
            assert feed.is_paused
            assert await read(slow, 5000) == texts(0, 5000)

    asyncio.run(main())


# --- groups of Kafka's own
def _offsets(kafka: Kafka, group: str, topic: str) -> dict[int, int]:
    asked = kafka.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    places = asked.result(LONG_S).topic_partitions or ()
    return {place.partition: place.offset for place in places if place.topic == topic}


def test_checkpoints_are_mirrored_into_a_kafka_group(kafka: Kafka) -> None:
    async def main() -> None:
        topic, group = kafka.make_topic(2), kafka.fresh("mirror")
        async with opened(kafka, topic, mirror_group=group) as source:
            await source.send(events(0, 7), "0")
            await source.send(events(0, 3), "1")
            run = Run(source, checkpoint=Every(seconds=0.2))
            async with run.processor:
                await until(lambda: len(run.handled) == 10 and run.of(Committed), "a commit")
        assert await asyncio.to_thread(_offsets, kafka, group, topic) == {0: 7, 1: 3}

    asyncio.run(main())


def test_a_mirror_that_cannot_be_written_changes_nothing_and_is_told(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody is in that group: Kafka does not let outsiders commit for it."""

    async def main() -> None:
        topic, group = kafka.make_topic(1), kafka.fresh("taken")
        config = {"bootstrap.servers": kafka.servers, "group.id": group, "log_level": 0}
        member = Consumer({**config, "auto.offset.reset": "earliest"})
        member.subscribe([topic])
        await asyncio.to_thread(member.poll, 3.0)
        async with opened(kafka, topic, mirror_group=group) as source:
            await source.send(events(0, 7))
            run = Run(source, checkpoint=Every(seconds=0.2))
            await run.processor.serve(until="caught_up")
        await asyncio.to_thread(member.close)
        assert len(run.handled) == 7

    with caplog.at_level(logging.WARNING, "evenflow.kafka"):
        asyncio.run(main())
    assert [record for record in caplog.records if "are not mirrored" in record.message]


def test_a_mirror_goes_on_after_the_broker_was_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kafka()
    monkeypatch.setattr(kafka_mirror, "PAUSE_S", 0.2)
    kafka = Kafka()

    async def main() -> None:
        topic, group = kafka.make_topic(2), kafka.fresh("mirror")
        async with opened(kafka, topic, mirror_group=group) as source:
            source.committed({"0": Position("1", 1)})
            await until_offsets(kafka, group, topic, {0: 2})
            await asyncio.to_thread(kafka.kill)
            source.committed({"1": Position("0", 0)})
            for offset in range(100):
                source.committed({"0": Position(str(offset), offset)})
                await asyncio.sleep(0.01)
            await asyncio.to_thread(kafka.start)
            await until_offsets(kafka, group, topic, {0: 100, 1: 1})

    try:
        asyncio.run(main())
    finally:
        kafka.remove()


def test_what_others_left_in_the_mirrored_group_is_overwritten_also_where_nothing_happens(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that no longer owns a partition may be the last to copy its offset; and Kafka forgets old ones."""
    monkeypatch.setattr(module, "WATCH_S", 0.1)
    monkeypatch.setattr(kafka_mirror, "AGAIN_S", 0.3)

    async def main() -> None:
        topic, group = kafka.make_topic(2), kafka.fresh("mirror")
        async with opened(kafka, topic, mirror_group=group) as source:
            await source.send(events(0, 4), "0")
            run = Run(source)
            async with run.processor:
                await until_offsets(kafka, group, topic, {0: 4, 1: 0})
                late = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2)])
                await asyncio.wrap_future(kafka.admin.alter_consumer_group_offsets([late])[group])
                await until_offsets(kafka, group, topic, {0: 4, 1: 0})

    asyncio.run(main())


async def until_offsets(kafka: Kafka, group: str, topic: str, wanted: dict[int, int]) -> None:
    asked, found = GroupOffsets(Options(kafka.servers, topic, {}), group), dict[int, int]()
    try:
        async with asyncio.timeout(2 * LONG_S):
            while found != wanted:
                with suppress(SourceUnavailable):  # its coordinator is not there yet
                    found = await asked.left([0, 1])
                await asyncio.sleep(0.1)
    finally:
        asked.close()


def test_the_mirror_shows_a_partition_in_which_nothing_is_handled(kafka: Kafka) -> None:
    async def main() -> None:
        topic, group = kafka.make_topic(1), kafka.fresh("mirror")
        async with opened(kafka, topic) as source:
            await source.send(events(0, 4), "0")
        async with opened(kafka, topic, mirror_group=group) as source:
            await Run(source, start="latest").processor.serve(until="caught_up")
        assert await asyncio.to_thread(_offsets, kafka, group, topic) == {0: 4}

    asyncio.run(main())


def test_a_group_begins_where_a_kafka_group_stopped(kafka: Kafka) -> None:
    async def main() -> None:
        topic, group = kafka.make_topic(2), kafka.fresh("old")
        async with opened(kafka, topic) as source:
            await source.send(events(0, 10), "0")
            await source.send(events(0, 4), "1")
            left = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 6)])]
            done = kafka.admin.alter_consumer_group_offsets(left)[group]
            await asyncio.wrap_future(done)
            run = Run(source, start=f"group:{group}")
            await run.processor.serve(until="caught_up")
            assert [body for name, body in run.handled if name == "0"] == texts(6, 10)
            assert [body for name, body in run.handled if name == "1"] == texts(0, 4), "it had stopped nowhere"
            await asyncio.wrap_future(kafka.admin.delete_consumer_groups([group])[group])
            again = Run(source, run.store, start=f"group:{group}")
            await again.processor.serve(until="caught_up")
            assert again.handled == [], "the checkpoint wins, also when the Kafka group is gone"

    asyncio.run(main())


def test_a_kafka_group_that_left_nothing_is_told(kafka: Kafka) -> None:
    async def main() -> None:
        async with opened(kafka, kafka.make_topic(1)) as source:
            with pytest.raises(Misconfigured, match=r"The Kafka group 'nobody' has left no offsets"):
                await Run(source, start="group:nobody").processor.serve()

    asyncio.run(main())


# --- for people, and for letters
def test_how_long_the_first_event_waits_is_known(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(2)
        async with opened(kafka, topic) as source:
            await source.send(events(0, 3), "0")
            reader = await reader_of(source)
            first, second, _ = (await reader.read(3, MUCH, LONG_S)).events
            found = await source.waiting_since({"0": first.position, "1": Position("-1", -1)})
            assert found == {"0": second.enqueued_at}

    asyncio.run(main())


def test_a_time_that_is_no_date_is_known_as_the_last_one(kafka: Kafka) -> None:
    async def main() -> None:
        topic = kafka.make_topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
        producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0})
        producer.produce(topic, b"in microseconds", partition=0, timestamp=1_700_000_000_000_123)
        producer.flush(LONG_S)
        async with opened(kafka, topic) as source:
            found = await source.waiting_since({"0": Position("-1", -1)})
            assert found == {"0": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)}

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
            letters = open_letters(kafka.url(dead))
            [found] = [one async for one in letters.read(Group(identity.namespace, topic, "group"))]
            await letters.aclose()
            assert isinstance(found, Letter)
            assert (found.event.body, found.event.key, found.event.properties) == (b"bad", "key", {"n": 5})

    asyncio.run(main())


@pytest.mark.parametrize("operation", ["", "READ"])
def test_a_target_of_dead_letters_that_cannot_be_written_is_told_at_the_start(kafka: Kafka, operation: str) -> None:
    async def main() -> None:
        topic, dead = kafka.make_topic(1), "no-such-topic"
        if operation:
            dead = kafka.make_topic(1)
            await asyncio.to_thread(grant, kafka, right_to(operation, dead))
        target = KafkaSource(kafka.secure_servers, dead, kafka.secure("bob" if operation else "alice"))
        async with opened(kafka, topic) as source:
            why = "may not write it" if operation else f"topic {dead} .* does not exist"
            with pytest.raises(Misconfigured, match=why):
                await Run(source, dead_letter=target).processor.serve()
        await target.aclose()

    asyncio.run(main())


def test_what_a_group_left_is_asked_once_for_all_partitions(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    left = GroupOffsets.left

    async def counted(self: GroupOffsets, numbers: Sequence[int]) -> dict[int, int]:
        asked.append(len(numbers))
        return await left(self, numbers)

    monkeypatch.setattr(GroupOffsets, "left", counted)

    async def main() -> None:
        topic, group = kafka.make_topic(8), kafka.fresh("old")
        places = [TopicPartition(topic, number, 0) for number in range(8)]
        await asyncio.wrap_future(
            kafka.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group]
        )
        async with opened(kafka, topic) as source:
            found = await asyncio.gather(*(source.resolve(str(number), f"group:{group}") for number in range(8)))
            assert {place.sequence for place in found} == {-1}
            assert asked == [8]

    asyncio.run(main())


def test_an_idle_consumer_is_asked_seldom(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    read_it, reads = kafka_lane.Lane._read, 0

    def counted(self: kafka_lane.Lane, consumer: Consumer) -> list[Any]:
        nonlocal reads
        reads += 1
        return read_it(self, consumer)

    monkeypatch.setattr(kafka_lane.Lane, "_read", counted)

    async def main() -> None:
        async with opened(kafka, kafka.make_topic(1)) as source:
            reader = await reader_of(source)
            assert not (await reader.read(10, MUCH, 0.5)).events
            before = reads
            assert not (await reader.read(10, MUCH, 1.0)).events
            assert reads - before <= 1.0 / kafka_lane.IDLE_POLL_S + 3

    asyncio.run(main())
