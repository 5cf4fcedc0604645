"""The PartitionContext that callbacks get: a subclass of the official one that writes evenflow's checkpoints."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, wait
from typing import TYPE_CHECKING, Any

from azure.eventhub import PartitionContext as OfficialContext
from azure.eventhub.aio import PartitionContext as OfficialAsyncContext
from azure.eventhub.exceptions import OwnershipLostError
from msgspec import Struct

from evenflow.errors import LeaseLost, Misconfigured

if TYPE_CHECKING:
    from azure.eventhub import EventData

    from evenflow.runtime.partition import OwnedPartition
    from evenflow.sources.eventhubs.codec import AnnotatedEvent

MARK = "_evenflow_mark"
CHECK_S = 1.0
"""How often a blocked checkpoint checks whether the session still runs."""


class EventMark(Struct, frozen=True):
    """Attached to an EventData that a callback got: its partition and epoch, and its ordinal."""

    context: CheckpointingContext
    owned: OwnedPartition
    ordinal: int
    event: AnnotatedEvent


class CheckpointingContext:
    """Shared by both kinds of context: the current tenure of the partition, and how to checkpoint one of its events."""

    partition_id: str
    _last_received_event: Any

    _owned: OwnedPartition | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def belongs_to(self, owned: OwnedPartition) -> None:
        """From now on this context belongs to the partition under this epoch."""
        self._owned, self._last_received_event = owned, None

    def given(self, events: list[AnnotatedEvent], before: int) -> list[EventData]:
        """The official event objects for a callback, each with its `EventMark`."""
        assert self._owned is not None
        found = []
        for number, event in enumerate(events, before + 1):
            data = event.data
            setattr(data, MARK, EventMark(self, self._owned, number, event))
            found.append(data)
        self._last_received_event = found[-1]
        return found

    async def mark(self, event: EventData | None) -> None:
        """Checkpoint an event under the epoch of its delivery, which fails if the partition was lost since."""
        chosen = event or self._last_received_event
        if chosen is None:
            return
        mark: EventMark | None = getattr(chosen, MARK, None)
        if mark is None:
            raise Misconfigured(
                "update_checkpoint(event) got an event that did not come from a callback of this client, so its"
                " position in the partition is unknown. Pass an event that the callback got."
            )
        if mark.context is not self:
            whose = "another client" if mark.context.partition_id == self.partition_id else "another partition"
            raise Misconfigured(
                f"update_checkpoint(event) of partition {self.partition_id} got an event of {whose}. Call it on the"
                " partition_context that came with the event."
            )
        try:
            await mark.owned.mark(mark.ordinal, mark.event)
        except LeaseLost as error:
            raise OwnershipLostError(str(error)) from error


class AsyncContext(CheckpointingContext, OfficialAsyncContext):
    async def update_checkpoint(self, event: EventData | None = None, **kwargs: Any) -> None:
        await self.mark(event)


class PlainContext(CheckpointingContext, OfficialContext):
    def update_checkpoint(self, event: EventData | None = None, **kwargs: Any) -> None:
        """Blocks until the checkpoint is written. Once `receive` has returned, another owner may have the partition."""
        loop = self._loop
        assert loop is not None
        marking = self.mark(event)
        try:
            written = asyncio.run_coroutine_threadsafe(marking, loop)
        except RuntimeError as error:
            marking.close()
            raise self._over() from error
        while not wait([written], timeout=CHECK_S).done:
            if loop.is_closed():
                raise self._over()
        try:
            written.result()
        except CancelledError as error:
            raise self._over() from error

    def _over(self) -> OwnershipLostError:
        return OwnershipLostError(
            f"partition {self.partition_id}: the checkpoint was not written, because receive() has ended and handed the"
            " partition over."
        )
