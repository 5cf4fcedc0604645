"""One way to read a Kafka topic from its beginning, in a process of its own: how many events a second.

    python -m benchmarks._kafka_ways '{"way": "bare", "servers": ..., "topic": ..., "partitions": 16, "events": ...}'

The time runs from when the first event was handled to when the last one was, for every way alike.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow import Event, OwnedPartition, Processor

LOOK_S = 0.001
AT_ONCE = 1_000


def bare(options: dict[str, Any]) -> float:
    """confluent-kafka's own loop. It reads value, key, offset and timestamp of every message."""
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": options["servers"], "group.id": "bare", "enable.auto.commit": False}
    consumer = Consumer(config | options.get("config", {}))
    consumer.assign([TopicPartition(options["topic"], number, 0) for number in range(options["partitions"])])
    seen, started_s = 0, None
    while seen < options["events"]:
        messages = consumer.consume(AT_ONCE, 1.0)
        if started_s is None and messages:
            started_s = perf_counter()
        for message in messages:
            message.value()
            message.key()
            message.offset()
            message.timestamp()
        seen += len(messages)
    assert started_s is not None
    taken_s = perf_counter() - started_s
    consumer.close()
    return taken_s


async def _nothing(events: Sequence[Event], partition: OwnedPartition) -> None:
    pass


async def _reading(events: Sequence[Event], partition: OwnedPartition) -> None:
    for event in events:
        event.body  # noqa: B018
        event.key  # noqa: B018
        event.sequence  # noqa: B018
        event.enqueued_us  # noqa: B018


async def _each(event: Event, partition: OwnedPartition) -> None:
    pass


def through(options: dict[str, Any]) -> float:
    """A processor with a checkpoint every second."""
    import uvloop

    from evenflow import Every, Processor

    processor = Processor(
        f"kafka://{options['servers']}/{options['topic']}",
        options["store"],
        options["group"],
        checkpoint=Every(seconds=1.0),
    )
    ways: dict[str, Callable[[], object]] = {
        "on_batch": lambda: processor.on_batch(_nothing),
        "on_batch, reading": lambda: processor.on_batch(_reading),
        "on_event": lambda: processor.on_event(_each),
    }
    ways[options["way"]]()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measured(processor, options["events"]))


async def _measured(processor: Processor, events: int) -> float:
    async with processor:
        assert processor._engine is not None
        holds = processor._engine.coordinator.holds

        def handled() -> int:
            return sum([hold.handled for hold in holds.values()])

        while not (first := handled()):  # noqa: ASYNC110 - an event would be work in the handler
            await asyncio.sleep(LOOK_S)
        started_s = perf_counter()
        while handled() < events:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return (perf_counter() - started_s) * events / (events - first)


async def aiokafka(options: dict[str, Any]) -> float:
    from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

    consumer = AIOKafkaConsumer(
        bootstrap_servers=options["servers"],
        group_id=options["group"],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1000,
    )
    await consumer.start()
    consumer.assign([TopicPartition(options["topic"], number) for number in range(options["partitions"])])
    take = _one_by_one if options["way"] == "aiokafka, one by one" else _many
    try:
        return await take(consumer, options["events"])
    finally:
        await consumer.stop()


async def _many(consumer: Any, events: int) -> float:
    """Batches, of which every message's fields are read, as by the bare loop."""
    seen, started_s = 0, 0.0
    while seen < events:
        for messages in (await consumer.getmany(timeout_ms=1000, max_records=AT_ONCE)).values():
            started_s = started_s or perf_counter()
            for message in messages:
                message.value  # noqa: B018
                message.key  # noqa: B018
                message.offset  # noqa: B018
                message.timestamp  # noqa: B018
            seen += len(messages)
    return perf_counter() - started_s


async def _one_by_one(consumer: Any, events: int) -> float:
    """As its documentation begins: `async for message in consumer`."""
    seen, started_s = 0, 0.0
    async for _ in consumer:
        started_s = started_s or perf_counter()
        seen += 1
        if seen == events:
            break
    return perf_counter() - started_s


def main(options: dict[str, Any]) -> None:
    logging.disable(logging.CRITICAL)
    if options["way"] == "bare":
        taken_s = bare(options)
    elif options["way"].startswith("aiokafka"):
        taken_s = asyncio.run(aiokafka(options))
    else:
        taken_s = through(options)
    print(options["events"] / taken_s)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
