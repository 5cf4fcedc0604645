"""The consumer of a Kafka source and its reader, without a broker: what they report, and how often they poll."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka import consumer as kafka_consumer
from evenflow.sources.kafka import reader as kafka_reader
from evenflow.sources.kafka.consumer import SharedConsumer
from evenflow.sources.kafka.options import KafkaOptions
from evenflow.sources.kafka.reader import KafkaReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from confluent_kafka import Consumer

    from evenflow.sources.kafka.buffers import PartitionBuffer

LONG_S = 90.0


@asynccontextmanager
async def consumer_of(**config: Any) -> AsyncIterator[tuple[SharedConsumer, PartitionBuffer, KafkaReader]]:
    """A consumer that reads a partition and cannot reach a broker."""
    consumer = SharedConsumer(KafkaOptions("127.0.0.1:1", "homes", config))
    buffer = consumer.open(0, 0)
    try:
        yield consumer, buffer, KafkaReader(consumer, buffer, -1, "utf-8", lambda: None, lambda consumer: None)
    finally:
        consumer.close(buffer)
        await consumer.aclose()


def test_silence_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty batch would look like having caught up."""
    monkeypatch.setattr(kafka_reader, "SILENT_S", 0.5)

    async def main() -> None:
        async with consumer_of() as (_, _, reader):
            with pytest.raises(SourceUnavailable, match=r"sent nothing for partition 0 in .*, not even its end"):
                await reader.read(10, 1 << 20, 0.1)

    asyncio.run(main())


def test_a_consumer_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(self: SharedConsumer, consumer: Consumer) -> None:
        raise ZeroDivisionError("our own")

    monkeypatch.setattr(SharedConsumer, "_step", mistake)

    async def main() -> None:
        async with consumer_of() as (_, _, reader):
            with pytest.raises(SourceUnavailable, match=r"Reading .* failed: ZeroDivisionError\('our own'\)"):
                await reader.read(10, 1 << 20, LONG_S)

    asyncio.run(main())


def test_an_application_that_asks_for_the_errors_of_the_driver_gets_them() -> None:
    heard: list[Any] = []

    async def main() -> None:
        async with asyncio.timeout(LONG_S), consumer_of(error_cb=heard.append) as (consumer, _, _):
            while not (heard and consumer.driver_error):  # noqa: ASYNC110 - the driver calls on a thread of its own
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_an_idle_consumer_is_polled_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    read_it, reads = SharedConsumer._read, 0

    def counted(self: SharedConsumer, consumer: Consumer) -> list[Any]:
        nonlocal reads
        reads += 1
        return read_it(self, consumer)

    monkeypatch.setattr(SharedConsumer, "_read", counted)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LONG_S), consumer_of() as (consumer, _, _):
            while consumer._poll_s < kafka_consumer.IDLE_POLL_S:  # noqa: ASYNC110 - the consumer has a thread of its own
                await asyncio.sleep(0.01)
            before, began_s = reads, loop.time()
            await asyncio.sleep(0.5)
            assert reads - before <= (loop.time() - began_s) / kafka_consumer.IDLE_POLL_S + 1

    asyncio.run(main())
