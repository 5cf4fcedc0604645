"""Kafka groups on a real broker: checkpoints that are mirrored into one, and groups that begin where one stopped."""

from __future__ import annotations

import asyncio
import logging

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from evenflow import Every, Misconfigured
from evenflow.model import Position
from evenflow.signals import Committed
from evenflow.sources.kafka import mirror as kafka_mirror
from evenflow.sources.kafka import source as module
from tests.integration.kafka_scene import LONG_S, Run, events, opened, texts, until, until_offsets
from tests.servers.kafka import Kafka, shared_or_skip, skip_without_kafka


@pytest.fixture
def kafka() -> Kafka:
    return shared_or_skip()


def _offsets(kafka: Kafka, group: str, topic: str) -> dict[int, int]:
    asked = kafka.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    places = asked.result(LONG_S).topic_partitions or ()
    return {place.partition: place.offset for place in places if place.topic == topic}


def test_checkpoints_are_mirrored_into_a_kafka_group(kafka: Kafka) -> None:
    """Also of a partition in which nothing is handled."""

    async def main() -> None:
        topic, group, idle = kafka.make_topic(2), kafka.fresh("mirror"), kafka.fresh("idle")
        async with opened(kafka, topic, mirror_group=group) as source:
            await source.send(events(0, 7), "0")
            await source.send(events(0, 3), "1")
            run = Run(source, checkpoint=Every(seconds=0.2))
            async with run.processor:
                await until(lambda: len(run.handled) == 10 and run.of(Committed), "a commit")
        assert await asyncio.to_thread(_offsets, kafka, group, topic) == {0: 7, 1: 3}
        async with opened(kafka, topic, mirror_group=idle) as source:
            await Run(source, start="latest").processor.serve(until="caught_up")
        assert await asyncio.to_thread(_offsets, kafka, idle, topic) == {0: 7, 1: 3}

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
        async with asyncio.timeout(LONG_S):
            while not member.assignment():
                await asyncio.to_thread(member.poll, 0.1)
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
    monkeypatch.setattr(kafka_mirror, "REPEAT_S", 0.3)

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
            with pytest.raises(Misconfigured, match=rf"The Kafka group '{group}' has no committed offsets"):
                await Run(source, start=f"group:{group}").processor.serve()

    asyncio.run(main())
