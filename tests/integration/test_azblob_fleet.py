"""A mixed fleet on one group: ours beside azure-eventhub's own processors, on a real hub and a real Azurite.

Shares become even to one, nothing is lost, each goes on from the other's checkpoints, and no call of ours runs while
another processor's call of the same partition does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from azure.eventhub.aio import EventHubConsumerClient
from msgspec import structs

from evenflow import Event, Every, Processor
from evenflow.model import Group
from evenflow.sources.eventhubs.source import EventHubsSource
from evenflow.sources.hub.source import HubSource
from evenflow.stores.azblob.store import from_url
from evenflow.testing.event_hubs import event_hub
from tests.servers.azurite import shared_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from evenflow import OwnedPartition
    from evenflow.model import Identity, Ledger
    from evenflow.testing.event_hubs import EventHub
    from tests.servers.azurite import Azurite

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
ROUND_S = 1.0
EXPIRY_S = 6 * ROUND_S
PATIENCE_S = 120.0


class Call(NamedTuple):
    began_s: float
    ended_s: float
    who: str
    sequence: int


class SameHub(HubSource):
    """The hub by the name that its other clients have for it."""

    namespace = ""

    async def identity(self) -> Identity:
        return structs.replace(await super().identity(), namespace=self.namespace)


class Fleet:
    def __init__(self, hub: EventHub, azurite: Azurite) -> None:
        self.hub = hub
        self.azurite = azurite
        self.container = azurite.make_container()
        self.group = Group(f"127.0.0.1:{hub.port}", hub.name, "$Default")
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.sent = 0

    @property
    def url(self) -> str:
        return self.azurite.url(self.container, more=f"&peer_expiry_s={EXPIRY_S}")

    async def handle(self, who: str, partition: str, sequence: int) -> None:
        began_s = monotonic()
        await asyncio.sleep(0.002)
        self.calls[partition].append(Call(began_s, monotonic(), who, sequence))

    @asynccontextmanager
    async def official(self, name: str) -> AsyncIterator[None]:
        """azure-eventhub's own processor, in a process of its own: it leaves connections behind that it gave up."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.official_processor", self.container, str(ROUND_S)),
            cwd=ROOT,
            env={**os.environ, "HUB": self.hub.connection_string, "BLOBS": self.azurite.connection_string},
            stdout=asyncio.subprocess.PIPE,
        )
        listening = asyncio.create_task(self._listen(name, process))
        try:
            yield
        finally:
            process.terminate()
            await listening
            assert await process.wait() == 0

    async def _listen(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            partition, began_s, ended_s, sequence = json.loads(line)
            self.calls[partition].append(Call(began_s, ended_s, name, sequence))

    def ours(self, name: str) -> Processor:
        source = SameHub(self.hub.hub)
        source.namespace = self.group.namespace
        often = Every(events=1)  # as the others do
        processor = Processor(
            source, self.url, "$Default", instance_id=name, heartbeat_s=0.5, ttl_s=6.0, checkpoint=often
        )

        @processor.on_event
        async def handle(event: Event, partition: OwnedPartition) -> None:
            await self.handle(name, partition.id, event.sequence or 0)

        return processor

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """So little that a busy machine keeps up: Azure's own processors write a checkpoint for each event."""

        async def send() -> None:
            while True:
                await self.hub.hub.send([Event(b"x", key=str(number)) for number in range(20)])
                self.sent += 20
                await asyncio.sleep(0.5)

        sending = asyncio.create_task(send())
        try:
            yield
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    async def wait_for_shares(self, *counts: int) -> None:
        store = from_url(self.url)

        async def is_so() -> bool:
            return sorted(_shares(await store.peek(self.group)).values()) == sorted(counts)

        try:
            await _until(is_so)
        finally:
            await store.aclose()

    async def wait_until_nothing_moves(self) -> None:
        """For three rounds."""
        store = from_url(self.url)
        seen, since_s = -1, monotonic()

        async def is_quiet() -> bool:
            nonlocal seen, since_s
            moved = len(await store.moves(self.group, 1000))
            if moved != seen:
                seen, since_s = moved, monotonic()
            return monotonic() - since_s > 3 * ROUND_S

        try:
            await _until(is_quiet)
        finally:
            await store.aclose()

    async def wait_until_all_is_handled(self) -> None:
        async def is_so() -> bool:
            return sum(len({call.sequence for call in calls}) for calls in self.calls.values()) >= self.sent

        await _until(is_so)

    async def wait_for_calls_of(self, *names: str) -> None:
        """From now on."""
        since_s = monotonic()

        async def is_so() -> bool:
            active = {call.who for calls in self.calls.values() for call in calls if call.began_s > since_s}
            return set(names) <= active

        await _until(is_so)

    def overlaps(self) -> list[tuple[Call, Call]]:
        """Calls of one partition of which one began before the other had ended, and one was ours."""
        return [
            (one, two)
            for calls in self.calls.values()
            for one, two in pairwise(sorted(calls))
            if two.began_s < one.ended_s and "ours" in (one.who[:4], two.who[:4])
        ]


def _shares(ledger: Ledger | None) -> Counter[str]:
    return Counter(lease.owner.id for lease in ledger.leases if lease.owner) if ledger is not None else Counter()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    azurite = shared_or_skip()
    with event_hub(partitions=PARTITIONS, name="homes") as hub:
        yield Fleet(hub, azurite)


def test_ours_and_azures_processors_share_one_group(fleet: Fleet) -> None:
    async def play() -> None:
        async with fleet.load():
            async with fleet.official("azure-1"):
                await fleet.wait_for_shares(4)
                async with fleet.ours("ours-1"):
                    await fleet.wait_for_shares(2, 2)
                    async with fleet.official("azure-2"), fleet.ours("ours-2"):
                        await fleet.wait_for_shares(1, 1, 1, 1)
                        await fleet.wait_until_nothing_moves()
                        await fleet.wait_for_shares(1, 1, 1, 1)
                        await fleet.wait_for_calls_of("ours-1", "ours-2", "azure-1", "azure-2")
            async with fleet.ours("ours-3"):
                await fleet.wait_for_shares(4)
                await fleet.wait_until_all_is_handled()
        async with fleet.ours("ours-4"):
            await fleet.wait_until_all_is_handled()

    asyncio.run(play())
    assert fleet.overlaps() == []
    repeated = sum(len(calls) - len({call.sequence for call in calls}) for calls in fleet.calls.values())
    assert repeated < fleet.sent / 10, "each goes on from the other's checkpoints"


def test_where_azures_take_part_readers_have_their_owner_level_so_that_they_are_let_in(fleet: Fleet) -> None:
    """By Event Hubs itself: with the lease's epoch as owner level, theirs, who have level 0, could never read again."""

    async def play() -> None:
        source = EventHubsSource(connection_string=fleet.hub.connection_string)
        processor = Processor(source, fleet.url, "$Default", instance_id="ours", heartbeat_s=0.5, ttl_s=6.0)

        @processor.on_event
        async def handle(event: Event, partition: OwnedPartition) -> None:
            await fleet.handle("ours", partition.id, event.sequence or 0)

        client = EventHubConsumerClient.from_connection_string(fleet.hub.connection_string, "$Default")
        got: list[int] = []
        refused: list[Exception] = []

        async def on_event(_: Any, event: Any) -> None:
            got.append(event.sequence_number)

        async def on_error(_: Any, error: Exception) -> None:
            refused.append(error)

        async def is_handled() -> bool:
            return bool(fleet.calls["0"])

        async def is_told() -> bool:
            return bool(got or refused)

        await fleet.hub.hub.send([b"x"], partition=0)
        async with processor, client:
            await _until(is_handled)
            theirs = client.receive(
                on_event, partition_id="0", owner_level=0, starting_position="-1", on_error=on_error
            )
            receiving = asyncio.create_task(theirs)
            await _until(is_told)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        await source.aclose()
        assert got, refused

    asyncio.run(play())


async def _until(look: Callable[[], Awaitable[bool]]) -> None:
    end_s = monotonic() + PATIENCE_S
    while not await look():
        assert monotonic() < end_s, f"not so within {PATIENCE_S} s"
        await asyncio.sleep(0.1)
