"""The PartitionContext that callbacks are given: the official one, whose checkpoints are this project's."""

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
LOOK_S = 1.0
"""How often somebody who waits for a checkpoint looks whether there is still anybody who writes it."""


class Mark(Struct, frozen=True):
    """On an EventData that was given to a callback: whose event it is, and how many came up to it."""

    context: Marking
    owned: OwnedPartition
    ordinal: int
    event: AnnotatedEvent


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
        assert self._owned is not None
        found = []
        for number, event in enumerate(events, before + 1):
            data = event.data
            setattr(data, MARK, Mark(self, self._owned, number, event))
            found.append(data)
        self._last_received_event = found[-1]
        return found

    async def mark(self, event: EventData | None) -> None:
        """An event counts under the epoch that it was given in: who has lost the partition since cannot mark it."""
        chosen = event or self._last_received_event
        if chosen is None:
            return
        mark: Mark | None = getattr(chosen, MARK, None)
        if mark is None:
            raise Misconfigured(
                "update_checkpoint(event) takes an event that a callback of this client was given: its place among the"
                " others is not known otherwise."
            )
        if mark.context is not self:
            whose = "another client" if mark.context.partition_id == self.partition_id else "another partition"
            raise Misconfigured(
                f"update_checkpoint(event) of partition {self.partition_id} was given an event of {whose}: call it on"
                " the partition_context that came with the event."
            )
        try:
            await mark.owned.mark(mark.ordinal, mark.event)
        except LeaseLost as error:
            raise OwnershipLostError(str(error)) from error


class AsyncContext(Marking, OfficialAsyncContext):
    async def update_checkpoint(self, event: EventData | None = None, **kwargs: Any) -> None:
        await self.mark(event)


class PlainContext(Marking, OfficialContext):
    def update_checkpoint(self, event: EventData | None = None, **kwargs: Any) -> None:
        """Blocks until it is written. Once `receive` has returned, somebody else may have the partition."""
        loop = self._loop
        assert loop is not None
        marking = self.mark(event)
        try:
            written = asyncio.run_coroutine_threadsafe(marking, loop)
        except RuntimeError as error:
            marking.close()
            raise self._over() from error
        while not wait([written], timeout=LOOK_S).done:
            if loop.is_closed():
                raise self._over()
        try:
            written.result()
        except CancelledError as error:
            raise self._over() from error

    def _over(self) -> OwnershipLostError:
        return OwnershipLostError(
            f"partition {self.partition_id}: receive() has ended, and passed it on; this checkpoint was not written."
        )
