"""The consumer of a Kafka source and its reader, without a broker: what they report, and how often they ask."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.errors import SourceUnavailable
from evenflow.sources.kafka import consumer as kafka_lane
from evenflow.sources.kafka import reader as kafka_reader
from evenflow.sources.kafka.consumer import Lane
from evenflow.sources.kafka.options import Options
from evenflow.sources.kafka.reader import KafkaReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from confluent_kafka import Consumer

    from evenflow.sources.kafka.consumer import Feed

LONG_S = 90.0


@asynccontextmanager
async def lane_of(**config: Any) -> AsyncIterator[tuple[Lane, Feed, KafkaReader]]:
    """One that reads a partition, and finds no broker."""
    lane = Lane(Options("127.0.0.1:1", "homes", config))
    feed = lane.open(0, 0)
    try:
        yield lane, feed, KafkaReader(lane, feed, -1, "utf-8", lambda: None, lambda lane: None)
    finally:
        lane.close(feed)
        await lane.aclose()


def test_silence_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty batch would pass for having caught up."""
    monkeypatch.setattr(kafka_reader, "SILENT_S", 0.5)

    async def main() -> None:
        async with lane_of() as (_, _, reader):
            with pytest.raises(SourceUnavailable, match=r"Nothing came of partition 0 for .*, not even its end"):
                await reader.read(10, 1 << 20, 0.1)

    asyncio.run(main())


def test_a_reading_that_breaks_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(self: Lane, consumer: Consumer) -> None:
        raise ZeroDivisionError("our own")

    monkeypatch.setattr(Lane, "_step", mistake)

    async def main() -> None:
        async with lane_of() as (_, _, reader):
            with pytest.raises(SourceUnavailable, match=r"The reading of .* broke: ZeroDivisionError\('our own'\)"):
                await reader.read(10, 1 << 20, LONG_S)

    asyncio.run(main())


def test_an_application_that_asks_for_the_complaints_of_the_driver_gets_them() -> None:
    heard: list[Any] = []

    async def main() -> None:
        async with asyncio.timeout(LONG_S), lane_of(error_cb=heard.append) as (lane, _, _):
            while not (heard and lane.said):  # noqa: ASYNC110 - the driver calls on a thread of its own
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_an_idle_consumer_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    read_it, reads = Lane._read, 0

    def counted(self: Lane, consumer: Consumer) -> list[Any]:
        nonlocal reads
        reads += 1
        return read_it(self, consumer)

    monkeypatch.setattr(Lane, "_read", counted)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LONG_S), lane_of() as (lane, _, _):
            while lane._poll_s < kafka_lane.IDLE_POLL_S:  # noqa: ASYNC110 - the consumer has a thread of its own
                await asyncio.sleep(0.01)
            before, began_s = reads, loop.time()
            await asyncio.sleep(0.5)
            assert reads - before <= (loop.time() - began_s) / kafka_lane.IDLE_POLL_S + 1

    asyncio.run(main())
