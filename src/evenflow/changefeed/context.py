"""The context that a handler gets with its changes: their lease, and how to checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import Misconfigured
from evenflow.ports import Charged, Ranged
from evenflow.runtime.partition import called

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from evenflow.model import Event
    from evenflow.ports import Source
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.runtime.transaction import PartitionTransaction


class ChangeContext:
    """The context of one call. All changes of a call belong to one lease."""

    def __init__(self, partition: OwnedPartition, source: Source, events: Sequence[Event], changes: list[Any]) -> None:
        self.partition = partition
        """The partition of the lease, as a handler of a `Processor` gets it."""
        self.events = events
        """The events of the changes, with their keys, positions and times."""
        self._source: object = source
        self._changes = tuple(changes)  # a copy: the handler may sort or empty its list

    @property
    def lease_token(self) -> str:
        """The id of the range. A container never uses an id for another range."""
        return self.partition.id

    @property
    def feed_range(self) -> tuple[str, str] | None:
        """The effective partition keys of the range, (from, before); None if the source has no such ranges."""
        return self._source.range_of(self.lease_token) if isinstance(self._source, Ranged) else None

    @property
    def epoch(self) -> int:
        """The fencing token: write it with your effects, and reject a write with a lower one."""
        return self.partition.epoch

    @property
    def is_stopping(self) -> bool:
        """Whether the lease is being released. A long handler should check this and return early."""
        return self.partition.is_stopping

    @property
    def request_charge(self) -> float | None:
        """Request units that this host has spent on reading the monitored container so far; None if none are counted.

        It is not the cost of these changes alone: a page that was read ahead may be handled in several calls.
        """
        return round(sum(self._source.charges().values()), 2) if isinstance(self._source, Charged) else None

    def checkpoint(self, change: Any = None) -> Awaitable[None]:
        """Durably mark all changes of this call as handled, or those up to `change`, like `partition.checkpoint()`.

        `await` it in an async handler; in a plain handler it blocks until it is done.
        """
        return called(self.partition.checkpoint(self._event_of(change, "checkpoint")), "context.checkpoint")

    def transaction(self, change: Any = None) -> PartitionTransaction:
        """A transaction for effects in the lease store's own database and this checkpoint, like
        `partition.transaction()`.
        """
        return self.partition.transaction(self._event_of(change, "transaction"))

    def _event_of(self, change: Any, what: str) -> Event | None:
        if change is None:
            return None
        for event, candidate in zip(self.events, self._changes, strict=True):
            if candidate is change:
                return event
        raise Misconfigured(f"context.{what}(change) got an object that is none of the handler's changes; pass one.")

    def __repr__(self) -> str:
        return f"<lease {self.lease_token} epoch {self.epoch}>"
