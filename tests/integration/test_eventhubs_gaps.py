"""Events that are missing when they should come: retention was faster, which is told, or the hub is compacted, which
is no loss.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Event, Every, PositionGone, Processor
from evenflow.emulators.eventhubs.receive_links import HubReceiveLink
from evenflow.signals import Gone
from evenflow.sources.eventhubs.source import EventHubsSource
from evenflow.stores.memory import MemoryStore
from evenflow.testing import event_hub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from evenflow.embedded.hub.records import StoredEvent
    from evenflow.emulators.eventhubs.partition_feed import PartitionFeed
    from evenflow.testing import EventHub

GROUP = "alerts"
PATIENCE_S = 60.0
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 20.0, "margin_s": 0.2, "refresh_s": 0.5}
"""A lease outlasts what a busy machine holds up: no test waits for one to lapse."""
EVENTS = 1_450
BODY = b"." * 1_000
"""More than a server reads ahead for a receiver that takes a few."""


@pytest.fixture
def served() -> Iterator[EventHub]:
    with event_hub(1, groups=[GROUP]) as found:
        yield found


async def fill(served: EventHub) -> None:
    """One row for every ten events, so that they can be removed."""
    for _ in range(0, EVENTS, 10):
        await served.hub.send([Event(BODY)] * 10, partition="0")


def remove_before(served: EventHub, sequence: int) -> None:
    served.hub.opened().log(0).remove_before(sequence)


@asynccontextmanager
async def reading(served: EventHub) -> AsyncIterator[tuple[EventHubsSource, Any]]:
    source = EventHubsSource(connection_string=served.connection_string, prefetch=10)
    try:
        joined = source.of_group(GROUP)
        reader = await joined.open("0", await joined.resolve("0", "earliest"), epoch=1)
        yield joined, reader
        await reader.aclose()
    finally:
        await source.aclose()


async def sequences(reader: Any, until: int) -> list[int]:
    found: list[int] = []
    while not found or found[-1] < until:
        found += [event.sequence for event in (await reader.read(100, 1 << 20, PATIENCE_S)).events]
    return found


async def take_all(reader: Any, found: list[int]) -> None:
    while True:
        found += await sequences(reader, found[-1] + 1)


def test_a_reader_that_retention_overtakes_is_told_what_it_lost(served: EventHub) -> None:
    async def main() -> None:
        await fill(served)
        async with reading(served) as (_, reader):
            first = await reader.read(1, 1 << 20, PATIENCE_S)
            assert [event.sequence for event in first.events] == [0]
            remove_before(served, EVENTS - 10)
            found = [0]
            with pytest.raises(PositionGone, match=f"to {EVENTS - 11} are no longer kept") as told:
                await take_all(reader, found)
            assert found == list(range(len(found)))
            assert f"events {len(found)} to" in str(told.value)
            assert len(found) < EVENTS - 10

    asyncio.run(main())


def test_a_gap_in_what_is_kept_is_no_loss(served: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a hub that is compacted: here the server leaves most events out, but never the last."""
    write = HubReceiveLink._write

    def write_some(outlet: HubReceiveLink, feed: PartitionFeed, events: list[StoredEvent]) -> None:
        if kept := [one for one in events if one.sequence % 7 == 0]:
            write(outlet, feed, kept)

    monkeypatch.setattr(HubReceiveLink, "_write", write_some)

    async def main() -> None:
        await fill(served)
        async with reading(served) as (_, reader):
            assert await sequences(reader, EVENTS - 1) == list(range(0, EVENTS, 7))

    asyncio.run(main())


def test_a_processor_goes_where_on_gone_says_and_tells_what_was_passed_over(served: EventHub) -> None:
    async def main() -> None:
        await fill(served)
        handled: list[int] = []
        gone: list[Gone] = []
        may_go_on = asyncio.Event()
        source = EventHubsSource(connection_string=served.connection_string, prefetch=10)
        processor = Processor(
            source,
            MemoryStore(),
            GROUP,
            checkpoint=Every(seconds=0.1),
            prefetch_events=20,
            batch_events=10,
            on_gone="earliest",
            **TIMES,
        )
        processor.listen(lambda one: gone.append(one) if isinstance(one, Gone) else None)

        @processor.on_event
        async def handle(event: Event, partition: Any) -> None:
            handled.append(event.sequence or 0)
            if len(handled) == 5:
                remove_before(served, EVENTS - 10)
                may_go_on.set()

        async with processor, asyncio.timeout(PATIENCE_S):
            await may_go_on.wait()
            while not handled or handled[-1] != EVENTS - 1:  # noqa: ASYNC110 - the handler is called by others
                await asyncio.sleep(0.01)
        await source.aclose()
        (told,) = gone
        assert told.events is not None
        assert len(handled) + told.events == EVENTS, "what was not handled is counted"
        assert handled == sorted(set(handled))

    asyncio.run(main())
