"""The source contract on the local hub, through the official client. The server runs in a thread of its own."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from evenflow.sources.eventhubs.source import EventHubsSource
from evenflow.testing import event_hub
from evenflow.testing.source.contract import SourceContract, SourceWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event
    from evenflow.testing import EventHub

GROUP = "alerts"


class EventHubsWorld(SourceWorld):
    exclusive = True

    def __init__(self, ends: ExitStack, partitions: int) -> None:
        self._ends = ends
        self.served: EventHub = ends.enter_context(event_hub(partitions, groups=[GROUP]))
        self.open()

    def open(self) -> None:
        self.parent = EventHubsSource(connection_string=self.served.connection_string)
        self.source = self.parent.of_group(GROUP)

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        """One row an event, so that they can be trimmed one by one."""
        for event in events:
            await self.served.hub.send(event, partition=partition)

    async def trim(self, partition: str, count: int) -> None:
        log = self.served.hub.opened().log(int(partition))
        log.remove_before(log.state().oldest + count)

    async def grow(self, more: int) -> None:
        self.served.hub.add_partitions(more)

    async def restart(self) -> None:
        await self.parent.aclose()
        self.open()

    async def remake(self) -> None:
        """On the same port, as in a namespace in which a hub is deleted and made again."""
        self._ends.close()
        self.served = self._ends.enter_context(event_hub(2, groups=[GROUP], port=self.served.port))


class TestEventHubsSource(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        with ExitStack() as stack:
            world = EventHubsWorld(stack, partitions)
            try:
                yield world
            finally:
                await world.parent.aclose()
