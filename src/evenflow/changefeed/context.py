"""What a handler of changes is given beside them: which lease they are of, and how to checkpoint."""

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
    """Of one call: its changes all are of one lease."""

    def __init__(self, partition: OwnedPartition, source: Source, events: Sequence[Event], changes: list[Any]) -> None:
        self.partition = partition
        """The partition behind the lease, with all that a handler of a `Processor` is given."""
        self.events = events
        """The events that the changes came in: with their keys, positions and times."""
        self._source: object = source
        self._changes = tuple(changes)  # the list is the handler's, to sort and to empty

    @property
    def lease_token(self) -> str:
        """The id of the range, which no other range of the container ever has."""
        return self.partition.id

    @property
    def feed_range(self) -> tuple[str, str] | None:
        """From which effective partition key to before which; None where the source has no such ranges."""
        return self._source.range_of(self.lease_token) if isinstance(self._source, Ranged) else None

    @property
    def epoch(self) -> int:
        """The fencing token: write it along with your effects, and refuse a lower one."""
        return self.partition.epoch

    @property
    def is_stopping(self) -> bool:
        """A long handler may look at this, and return early: no further call begins."""
        return self.partition.is_stopping

    @property
    def request_charge(self) -> float | None:
        """The request units that reading the monitored container has cost this host so far, not those of these changes
        alone: a page that was read ahead may be handled in several calls. None where none are counted."""
        return round(sum(self._source.charges().values()), 2) if isinstance(self._source, Charged) else None

    def checkpoint(self, change: Any = None) -> Awaitable[None]:
        """Mark all changes of this call as handled, or those up to `change`, durably: as `partition.checkpoint()`.

        `await` it in an async handler; in a plain one it blocks, and is done when it returns.
        """
        return called(self.partition.checkpoint(self._event_of(change, "checkpoint")), "context.checkpoint")

    def transaction(self, change: Any = None) -> PartitionTransaction:
        """Effects in the lease store's own database, and this checkpoint, in one transaction: as
        `partition.transaction()`."""
        return self.partition.transaction(self._event_of(change, "transaction"))

    def _event_of(self, change: Any, what: str) -> Event | None:
        if change is None:
            return None
        for event, candidate in zip(self.events, self._changes, strict=True):
            if candidate is change:
                return event
        raise Misconfigured(f"context.{what}(change) takes one of the changes that the handler was given.")

    def __repr__(self) -> str:
        return f"<lease {self.lease_token} epoch {self.epoch}>"
