"""The PartitionContext that callbacks are given: the official one, whose checkpoints are this project's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from azure.eventhub import PartitionContext as OfficialContext
from azure.eventhub.aio import PartitionContext as OfficialAsyncContext
from azure.eventhub.exceptions import OwnershipLostError

from evenflow.errors import LeaseLost, Misconfigured

if TYPE_CHECKING:
    from azure.eventhub import EventData

    from evenflow.runtime.partition import OwnedPartition
    from evenflow.sources.eventhubs_events import AnnotatedEvent

MARK = "_evenflow_mark"
"""On an EventData that was given to a callback: its event, and how many came up to it."""


class Marking:
    """What both kinds of context have: which partition it is now, and how to mark an event of it."""

    partition_id: str
    _last_received_event: Any

    _owned: OwnedPartition | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def belongs_to(self, owned: OwnedPartition) -> None:
        """From now on this context stands for the partition under this epoch."""
        self._owned, self._last_received_event = owned, None

    def given(self, events: list[AnnotatedEvent], before: int) -> list[EventData]:
        """As callbacks get them: the official objects, each with what it takes to mark it."""
        found = []
        for number, event in enumerate(events, before + 1):
            data = event.data
            setattr(data, MARK, (number, event))
            found.append(data)
        self._last_received_event = found[-1]
        return found

    async def mark(self, event: EventData | None) -> None:
        chosen = event or self._last_received_event
        if chosen is None:
            return
        mark = getattr(chosen, MARK, None)
        if mark is None:
            raise Misconfigured(
                "update_checkpoint(event) takes an event that a callback of this client was given: its place among the"
                " others is not known otherwise."
            )
        assert self._owned is not None
        try:
            await self._owned.mark(*mark)
        except LeaseLost as error:
            raise OwnershipLostError(str(error)) from error


class AsyncContext(Marking, OfficialAsyncContext):
    async def update_checkpoint(self, event: EventData | None = None, **kwargs: Any) -> None:
        await self.mark(event)


class PlainContext(Marking, OfficialContext):
    def update_checkpoint(self, event: EventData | None = None, **kwargs: Any) -> None:
        """Blocks until it is written."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self.mark(event), self._loop).result()
