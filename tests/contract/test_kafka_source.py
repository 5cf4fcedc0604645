from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from evenflow.sources.kafka.options import KafkaOptions
from evenflow.sources.kafka.sender import KafkaSender
from evenflow.sources.kafka.source import KafkaSource
from evenflow.testing.dead_letters_contract import DeadLettersContract
from evenflow.testing.source.contract import SourceContract, SourceWorld
from evenflow.urls import open_dead_letters
from tests.servers.kafka import shared_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event
    from evenflow.ports import DeadLetters


@pytest.fixture(autouse=True, scope="module")
def kafka() -> None:
    """Started before the first test's time runs."""
    shared_or_skip()


class KafkaWorld(SourceWorld):
    """A topic of the shared broker, and a producer beside the source that reads it."""

    def __init__(self, partitions: int) -> None:
        self.kafka = shared_or_skip()
        self.topic = self.kafka.make_topic(partitions)
        self.source = KafkaSource(self.kafka.servers, self.topic)
        self.sender = KafkaSender(KafkaOptions(self.kafka.servers, self.topic, {}))
        self.removed: dict[str, int] = {}

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        await self.sender.send(events, int(partition))

    async def trim(self, partition: str, count: int) -> None:
        self.removed[partition] = self.removed.get(partition, 0) + count
        await asyncio.to_thread(self.kafka.trim, self.topic, int(partition), self.removed[partition])

    async def grow(self, more: int) -> None:
        await asyncio.to_thread(self.kafka.grow, self.topic, 2 + more)

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = KafkaSource(self.kafka.servers, self.topic)

    async def remake(self) -> None:
        await asyncio.to_thread(self.kafka.delete_topic, self.topic)
        await asyncio.to_thread(self.kafka.make_topic, 2, self.topic)

    async def aclose(self) -> None:
        await self.source.aclose()
        await self.sender.aclose()


class TestKafkaSource(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        world = KafkaWorld(partitions)
        try:
            yield world
        finally:
            await world.aclose()


class TestKafkaDeadLetters(DeadLettersContract):
    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        kafka = shared_or_skip()
        most = "32000000"  # a dead letter may be larger than what brokers and clients take by default
        url = f"{kafka.url(kafka.make_topic(2, max_message_bytes=most))}?message.max.bytes={most}"
        one, other = open_dead_letters(url), open_dead_letters(url)
        try:
            yield one, other
        finally:
            await one.aclose()
            await other.aclose()
