"""A processor over the local hub: links that are stolen, cut or fall silent, and settings that are wrong."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub.aio import EventHubConsumerClient

from evenflow import Event, Every, LeaseLost, Misconfigured, Processor, SourceUnavailable
from evenflow.signals import PartitionStopped, Trouble
from evenflow.sources.eventhubs import client as eventhubs_client
from evenflow.sources.eventhubs import reader as eventhubs_reader
from evenflow.sources.eventhubs.source import EventHubsSource, from_url
from evenflow.stores.memory import MemoryStore
from evenflow.testing import event_hub
from tests.servers.event_hubs import KEY, POLICY
from tests.servers.processes import LOOPBACK
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from evenflow.signals import Signal
    from evenflow.testing import EventHub

GROUP = "alerts"
PATIENCE_S = 60.0
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 20.0, "margin_s": 0.2, "refresh_s": 0.5}
"""A lease outlasts what a busy machine holds up: no test waits for one to lapse."""


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(2, groups=[GROUP]) as found:
        yield found


class Seen:
    """What a processor told, and what its handler was given."""

    def __init__(self) -> None:
        self.events: list[tuple[str, bytes]] = []
        self.signals: list[Signal] = []

    def of(self, kind: type[Signal]) -> list[Any]:
        return [one for one in self.signals if isinstance(one, kind)]

    async def until(self, look: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not look():  # noqa: ASYNC110 - what it waits for comes from many sides
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}; {[str(one) for one in self.signals]}") from None


@asynccontextmanager
async def running(source: EventHubsSource, **options: Any) -> AsyncIterator[Seen]:
    seen = Seen()
    processor = Processor(source, MemoryStore(), GROUP, checkpoint=Every(seconds=0.1), **TIMES, **options)
    processor.listen(seen.signals.append)

    @processor.on_event
    async def handle(event: Event, partition: Any) -> None:
        seen.events.append((partition.id, event.body))

    async with processor:
        yield seen
    await source.aclose()


@asynccontextmanager
async def reading(
    served: EventHub, group: str = GROUP, partition: str = "0", **options: Any
) -> AsyncIterator[tuple[EventHubsSource, Any]]:
    """A source, and a reader of one of its partitions."""
    source = EventHubsSource(connection_string=served.connection_string, **options)
    try:
        joined = source.of_group(group)
        reader = await joined.open(partition, await joined.resolve(partition, "earliest"), epoch=1)
        yield joined, reader
        await reader.aclose()
    finally:
        await source.aclose()


async def send(served: EventHub, *bodies: bytes, partition: str = "0") -> None:
    await served.hub.send([Event(body) for body in bodies], partition=partition)


@asynccontextmanager
async def official_receiver(served: EventHub, **options: Any) -> AsyncIterator[list[bytes]]:
    """What it reads of partition 0. It is closed however the test ends: nobody else would close its connection."""
    client, got = EventHubConsumerClient.from_connection_string(served.connection_string, GROUP), list[bytes]()

    async def on_event(context: Any, event: Any) -> None:
        got.append(event.body_as_str().encode())

    receiving = asyncio.create_task(client.receive(on_event, partition_id="0", **options))
    try:
        yield got
    finally:
        await client.close()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


def test_a_link_that_an_official_receiver_steals_is_a_lost_lease_and_comes_back(served: EventHub) -> None:
    async def main() -> None:
        source = EventHubsSource(connection_string=served.connection_string)
        async with running(source) as seen:
            await send(served, b"before")
            await seen.until(lambda: ("0", b"before") in seen.events, "the first event")
            began_s = asyncio.get_running_loop().time()
            # From the beginning: the link is taken before it is known where the latest event is.
            async with official_receiver(served, owner_level=1_000, starting_position="-1") as got:
                await seen.until(lambda: seen.of(PartitionStopped), "the loss")
                assert [(one.partition, one.reason) for one in seen.of(PartitionStopped)] == [("0", "lost")]
                await send(served, b"during")
                await seen.until(lambda: b"during" in got, "the thief to read")
                await seen.until(lambda: len(seen.of(PartitionStopped)) >= 4, "three more tries")
                # After 0.5, 1, 2 s, each time under a new epoch; an error loop would not take any time.
                assert asyncio.get_running_loop().time() - began_s >= 3.5
                assert not seen.of(Trouble)
            await send(served, b"after")
            await seen.until(lambda: ("0", b"after") in seen.events, "the partition to come back")
            assert [body for _, body in seen.events] == [b"before", b"during", b"after"]

    asyncio.run(main())


def test_a_connection_that_is_cut_is_made_again_without_a_word(served: EventHub) -> None:
    async def main() -> None:
        with Proxy(served.port) as proxy:
            source = EventHubsSource(
                connection_string=served.connection_string.replace(str(served.port), str(proxy.port))
            )
            async with running(source) as seen:
                for number in range(5):
                    # To both, so that no link is cut while it is first made.
                    for partition in ("0", "1"):
                        await send(served, b"%d" % number, partition=partition)
                    await seen.until(lambda number=number: len(seen.events) == 2 * number + 2, "the events")  # type: ignore[misc]
                    proxy.cut()
                for partition in ("0", "1"):
                    bodies = [body for where, body in seen.events if where == partition]
                    assert bodies == [b"%d" % number for number in range(5)]
                assert not [one for one in seen.of(Trouble) if one.partition is not None]

    asyncio.run(main())


def test_a_link_that_falls_silent_is_found_out(served: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stands, but nothing comes over it any more: a look at the partition tells."""
    monkeypatch.setattr(eventhubs_reader, "SILENCE_S", 0.5)
    monkeypatch.setattr(eventhubs_reader, "OWED_S", 0.5)
    monkeypatch.setattr(eventhubs_client, "WAIT_S", 0.2)

    async def main() -> None:
        async with reading(served) as (_, reader):
            await send(served, b"one")
            assert [event.body for event in (await reader.read(9, 1 << 20, PATIENCE_S)).events] == [b"one"]
            reader._link._handler._message_received_callback = _swallow
            await send(served, b"two")
            assert [event.body for event in (await reader.read(9, 1 << 20, PATIENCE_S)).events] == [b"two"]

    asyncio.run(main())


async def _swallow(message: Any) -> None:
    pass


def test_it_goes_on_after_being_idle_for_longer_than_the_idle_timeout(
    served: EventHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.emulators.eventhubs.connection.IDLE_MS", 1_000)

    async def main() -> None:
        async with running(EventHubsSource(connection_string=served.connection_string)) as seen:
            await send(served, b"one")
            await seen.until(lambda: len(seen.events) == 1, "the first")
            await asyncio.sleep(4.0)
            await send(served, b"two")
            await seen.until(lambda: len(seen.events) == 2, "the second")
            assert not seen.of(Trouble)

    asyncio.run(main())


def test_who_is_slow_takes_no_more_than_it_has_room_for(served: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventhubs_reader, "STAY_S", 0.2)

    async def main() -> None:
        async with reading(served, prefetch=10) as (_, reader):
            await served.hub.send([Event(b"%d" % number) for number in range(500)], partition="0")
            await asyncio.sleep(1.0)
            assert len(reader._events) <= 20
            found: list[bytes] = []
            while len(found) < 500:
                found += [event.body for event in (await reader.read(7, 1 << 20, PATIENCE_S)).events]
            assert found == [b"%d" % number for number in range(500)]

    asyncio.run(main())


def test_what_has_come_is_not_given_once_the_link_was_taken(served: EventHub) -> None:
    """By one of the same level, as Azure's processors have; also when nobody reads, as while a handler is busy."""

    async def main() -> None:
        async with reading(served, prefetch=10) as (source, reader):
            await served.hub.send([Event(b"%d" % number) for number in range(100)], partition="0")
            assert (await reader.read(1, 1 << 20, PATIENCE_S)).events
            thief = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
            assert "0" in str(await asyncio.wait_for(reader.revoked(), PATIENCE_S))
            assert reader._events
            with pytest.raises(LeaseLost):
                await reader.read(1, 1 << 20, PATIENCE_S)
            await thief.aclose()

    asyncio.run(main())


def test_a_reader_never_goes_on_in_another_hub_of_the_same_name() -> None:
    """Nor does it say that its position is not there, where the other hub has fewer events."""
    counts = {"0": 0, "1": 1, "2": 4}

    async def main() -> None:
        async with AsyncExitStack() as ends:
            with event_hub(len(counts), groups=[GROUP]) as served:
                readers = {}
                for name in counts:
                    await send(served, b"old", b"old", partition=name)
                    _, readers[name] = await ends.enter_async_context(reading(served, partition=name))
                    for _ in range(2):
                        batch = await readers[name].read(1, 1 << 20, PATIENCE_S)
                        assert [event.body for event in batch.events] == [b"old"]
            with event_hub(len(counts), groups=[GROUP], port=served.port) as made_again:
                for name, count in counts.items():
                    await send(made_again, *[b"new"] * count, partition=name)
                for name, count in counts.items():
                    with pytest.raises(SourceUnavailable, match="made again"):
                        await _nothing_from(readers[name], f"{count} events in the new hub")
                await ends.aclose()

    asyncio.run(main())


async def _nothing_from(reader: Any, where: str) -> None:
    while True:
        assert not (await reader.read(9, 1 << 20, PATIENCE_S)).events, where


# --- settings that are wrong
def _url(port: int, hub: str = "hub", key: str = KEY, more: str = "") -> str:
    return f"eventhubs://{POLICY}:{key}@{LOOPBACK}:{port}/{hub}?use_tls=false{more}"


def _told(source: str, group: str = GROUP) -> str:
    """What a processor ends with, traceback included."""
    processor = Processor(source, "memory:", group, **TIMES)
    processor.on_event(lambda event, partition: None)
    with pytest.raises(Misconfigured) as caught:
        processor.run(until="caught_up")
    return "".join(traceback.format_exception(caught.value))


def test_a_wrong_key_is_told_and_not_shown() -> None:
    with event_hub(1, key="correct") as served:
        told = _told(_url(served.port, key="wrong-and-secret"), "$Default")
    assert "refuses the credential. Is the key right" in told.splitlines()[-1]
    assert "wrong-and-secret" not in told


def test_a_host_that_nobody_knows_is_told() -> None:
    async def main() -> None:
        source = from_url(f"eventhubs://{POLICY}:{KEY}@no-such-host.invalid/hub")
        with pytest.raises(SourceUnavailable, match="nobody knows a host of this name"):
            await source.identity()
        await source.aclose()

    asyncio.run(main())


def test_a_hub_a_group_or_a_partition_that_is_not_there_is_reported(served: EventHub) -> None:
    async def main() -> None:
        with pytest.raises(Misconfigured, match="no consumer group 'unknown'"):
            async with reading(served, "unknown"):
                pass
        source = from_url(_url(served.port))
        with pytest.raises(Misconfigured, match="no such partition"):
            await source.resolve("7", "earliest")
        await source.aclose()

    assert "there is no such event hub" in _told(_url(served.port, hub="elsewhere"))
    asyncio.run(main())


async def _gone(task: asyncio.Task[Any]) -> None:
    """By somebody who is in a hurry. What is left open is found by `_nothing_is_left_open`."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


def test_who_is_cancelled_again_and_again_while_it_opens_leaves_nothing_behind(served: EventHub) -> None:
    async def main() -> None:
        for number in range(15):
            source = from_url(_url(served.port))
            after = await source.resolve("0", "earliest")
            opening = asyncio.create_task(source.open("0", after, epoch=number + 1))
            await asyncio.wait([opening], timeout=number * 0.002)
            await _gone(opening)
            await source.aclose()
            assert asyncio.all_tasks() == {asyncio.current_task()}, f"after {number * 2} ms"

    asyncio.run(main())


def test_a_question_that_is_asked_while_its_source_is_closed_leaves_no_connection(served: EventHub) -> None:
    async def main() -> None:
        for turns in range(1, 20):
            source = from_url(_url(served.port))
            await source.identity()
            asking = asyncio.create_task(source.partitions())
            for _ in range(turns):
                await asyncio.sleep(0)
            await source.aclose()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(main())
