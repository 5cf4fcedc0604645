"""The contract of dead letters, kept by each target."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evenflow.embedded.hub import Hub
from evenflow.emulators.eventhubs.server import EMULATOR_KEY, EMULATOR_KEY_NAME
from evenflow.errors import Misconfigured
from evenflow.operate.dead_letters.memory import MemoryDeadLetters
from evenflow.testing import event_hub
from evenflow.testing.dead_letters_contract import DeadLettersContract
from evenflow.testing.fakes import FakeSource
from evenflow.urls import open_dead_letters
from tests.servers.redis import skip_unless_counting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event
    from evenflow.ports import DeadLetters
    from tests.servers.redis import RedisServer


@asynccontextmanager
async def at(url: str) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
    with tempfile.TemporaryDirectory() as folder:
        one, other = (open_dead_letters(f"{url}:{Path(folder) / 'dead'}") for _ in range(2))
        try:
            yield one, other
        finally:
            await one.aclose()
            await other.aclose()


class TestMemoryDeadLetters(DeadLettersContract):
    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        dead_letters = MemoryDeadLetters()
        yield dead_letters, dead_letters


class TestFolderDeadLetters(DeadLettersContract):
    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        async with at("jsonl") as both:
            yield both


class TestHubDeadLetters(DeadLettersContract):
    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        async with at("hub") as both:
            yield both


class TestDeadLettersInAHubOfOnePartition(DeadLettersContract):
    """All that is kept apart is so by the records themselves."""

    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        with tempfile.TemporaryDirectory() as folder, Hub.create(Path(folder) / "dead", 1) as hub:
            one, other = open_dead_letters(hub), open_dead_letters(hub)
            yield one, other


class TestDeadLettersInAnEventHub(DeadLettersContract):
    """Through the official client; whoever wants to reads them, at the same time as others."""

    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        with event_hub(2, name="dead") as served:
            address = f"{EMULATOR_KEY_NAME}:{EMULATOR_KEY}@localhost:{served.port}"
            one, other = (open_dead_letters(f"eventhubs://{address}/dead?use_tls=false") for _ in range(2))
            try:
                yield one, other
            finally:
                await one.aclose()
                await other.aclose()

    @pytest.mark.xfail(strict=True, raises=Misconfigured, reason="an event hub's events have a megabyte at most")
    def test_a_large_dead_letter_and_many_small_ones(self) -> None:
        super().test_a_large_dead_letter_and_many_small_ones()


class TestDeadLettersInRedisStreams(DeadLettersContract):
    @pytest.fixture(autouse=True)
    def started(self, redis_server: RedisServer) -> None:
        """Where entries are not counted, an end is only known by a silence: that takes a second each time."""
        skip_unless_counting(redis_server)
        self.url = redis_server.url.replace("redis:", "redis-streams:").removesuffix("/0")

    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        name = f"dead-{secrets.token_hex(4)}"
        one, other = (open_dead_letters(f"{self.url}/{name}?partitions=2") for _ in range(2))
        try:
            yield one, other
        finally:
            await one.aclose()
            await other.aclose()


class WritableFake(FakeSource):
    """A hub of another kind: whatever is a source and can be sent to will do."""

    async def send(self, events: Sequence[Event]) -> None:
        for event in events:
            number = sum((event.key or "").encode()) % len(self.partition_ids)
            self.append(str(number), event.body, event.key, event.properties)


class TestDeadLettersInAnotherHub(DeadLettersContract):
    @asynccontextmanager
    async def dead_letters(self) -> AsyncIterator[tuple[DeadLetters, DeadLetters]]:
        hub = WritableFake(3)
        yield open_dead_letters(hub), open_dead_letters(hub)
