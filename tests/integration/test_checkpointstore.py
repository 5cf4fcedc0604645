"""azure-eventhub's own client, unmodified, with a store of ours: it shares, it stops, and another one goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventHubConsumerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncEventHubConsumerClient

from evenflow import Event, Processor
from evenflow.compat.checkpointstore import EvenflowCheckpointStore
from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore as AsyncEvenflowCheckpointStore
from evenflow.sources.eventhubs.source import EventHubsSource
from evenflow.testing import event_hub
from tests.servers.postgres import shared_or_skip
from tests.servers.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from evenflow import OwnedPartition
    from evenflow.testing.event_hubs import EventHub

PARTITIONS = 4
PACE: dict[str, Any] = {"load_balancing_interval": 0.5, "partition_ownership_expiration_interval": 30.0}
PATIENCE_S = 90.0


class Record:
    """What one client handled, and of which partitions."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, int]] = []
        self.has: set[str] = set()

    def took(self, context: Any, event: Any) -> None:
        self.handled.append((context.partition_id, event.sequence_number))

    def of(self, partition: str) -> list[int]:
        return [sequence for name, sequence in self.handled if name == partition]


@pytest.fixture
def url() -> str:
    """The other tests have a store in files."""
    server = shared_or_skip()
    return f"{server.url()}?schema={server.fresh()}"


def send(hub: EventHub, count: int) -> None:
    """Directly: the official producer takes half a second a partition."""

    async def send_all() -> None:
        for partition in range(len(hub.hub.info().partitions)):
            await hub.hub.send([Event(b"x")] * count, partition=partition)

    asyncio.run(send_all())


@asynccontextmanager
async def running(hub: EventHub, url: str, record: Record) -> AsyncIterator[None]:
    async def handle(context: Any, event: Any) -> None:
        record.took(context, event)
        await context.update_checkpoint(event)

    async def begin(context: Any) -> None:
        record.has.add(context.partition_id)

    async def end(context: Any, reason: object) -> None:
        record.has.discard(context.partition_id)

    async with AsyncEvenflowCheckpointStore(url, **PACE) as store:
        client = AsyncEventHubConsumerClient.from_connection_string(
            hub.connection_string, "$Default", checkpoint_store=store, **PACE
        )
        async with client:
            receiving = asyncio.create_task(
                client.receive(handle, starting_position="-1", on_partition_initialize=begin, on_partition_close=end)
            )
            yield
        await receiving


@contextmanager
def running_plainly(hub: EventHub, url: str, record: Record) -> Iterator[None]:
    def handle(context: Any, event: Any) -> None:
        record.took(context, event)
        context.update_checkpoint(event)

    with EvenflowCheckpointStore(url, **PACE) as store:
        client = EventHubConsumerClient.from_connection_string(
            hub.connection_string, "$Default", checkpoint_store=store, **PACE
        )
        options: dict[str, Any] = {
            "starting_position": "-1",
            "on_partition_initialize": lambda context: record.has.add(context.partition_id),
            "on_partition_close": lambda context, reason: record.has.discard(context.partition_id),
        }
        receiving = threading.Thread(target=client.receive, args=(handle,), kwargs=options)
        with client:
            receiving.start()
            yield
        receiving.join()


async def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def check(records: list[Record], partitions: int, sent: int) -> None:
    """Each event once: nothing moved but while all was handled and marked."""
    handled = Counter(one for record in records for one in record.handled)
    assert handled == Counter((str(partition), number) for partition in range(partitions) for number in range(sent))


@pytest.mark.process
def test_two_clients_share_and_one_goes_on_for_both(url: str) -> None:
    async def scene(hub: EventHub) -> None:
        first, second = records = Record(), Record()

        def total() -> int:
            return sum(len(record.handled) for record in records)

        async with running(hub, url, second):
            async with running(hub, url, first):
                await until(lambda: len(first.has) == len(second.has) == 2 and not first.has & second.has)
                await asyncio.to_thread(send, hub, 10)
                await until(lambda: total() == 10 * PARTITIONS)
                left = set(first.has)
            await until(lambda: len(second.has) == PARTITIONS)
            await asyncio.to_thread(send, hub, 5)
            await until(lambda: total() == 15 * PARTITIONS)
        check(list(records), PARTITIONS, 15)
        assert {partition: second.of(partition) for partition in left} == {
            partition: [*range(10, 15)] for partition in left
        }

    with event_hub(PARTITIONS) as hub:
        asyncio.run(scene(hub))


@pytest.mark.process
def test_a_processor_joins_official_clients_and_goes_on_alone(tmp_path: Path) -> None:
    """The way over: both at the same time, then only ours. What a client had not marked may be handled again."""
    url = f"sqlite:{tmp_path / 'leases'}"

    async def scene(hub: EventHub) -> None:
        theirs, ours = Record(), Record()
        source = EventHubsSource(connection_string=hub.connection_string)
        processor = Processor(source, url, "$Default", heartbeat_s=0.5, ttl_s=20.0)

        @processor.on_event
        async def handle(event: Event, partition: OwnedPartition) -> None:
            ours.handled.append((partition.id, event.sequence or 0))

        try:
            async with running(hub, url, theirs):
                await until(lambda: len(theirs.has) == PARTITIONS)
                async with processor:
                    await until(lambda: len(theirs.has) == len(processor.owned) == 2)
                    await asyncio.to_thread(send, hub, 10)
                    await until(lambda: len({*theirs.handled, *ours.handled}) == 10 * PARTITIONS)
                    left = set(theirs.has)
                await until(lambda: len(theirs.has) == PARTITIONS)  # and back
                async with processor:
                    await until(lambda: len(theirs.has) == len(processor.owned) == 2)
                    left = set(theirs.has)
            async with processor:
                await until(lambda: len(processor.owned) == PARTITIONS)
                await asyncio.to_thread(send, hub, 5)
                await until(lambda: len({*theirs.handled, *ours.handled}) == 15 * PARTITIONS)
        finally:
            await source.aclose()
        check([theirs, ours], PARTITIONS, 15)
        assert all(10 in ours.of(partition) for partition in left)

    with event_hub(PARTITIONS) as hub:
        asyncio.run(scene(hub))


@pytest.mark.process
def test_clients_of_plain_code_do_so_too(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'leases'}"
    first, second = Record(), Record()

    def waited_for(handled: int) -> None:
        wait_until(lambda: len(first.handled) + len(second.handled) == handled, f"{handled} events", PATIENCE_S)

    with event_hub(2) as hub, running_plainly(hub, url, second):
        with running_plainly(hub, url, first):
            wait_until(lambda: first.has | second.has == {"0", "1"} and first.has != second.has, "shares", PATIENCE_S)
            wait_until(lambda: len(first.has) == len(second.has) == 1, "an even share", PATIENCE_S)
            send(hub, 10)
            waited_for(20)
        wait_until(lambda: len(second.has) == 2, "the other's share", PATIENCE_S)
        send(hub, 5)
        waited_for(30)
    check([first, second], 2, 15)
