"""A batch: events already assigned to partitions. It can be sent any number of times and is stored once."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

from evenflow.embedded.hub.deduplication import PartitionSend
from evenflow.errors import EvenflowError, SendFailed, Transient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from evenflow.embedded.hub.writer import Sent
    from evenflow.model import Event

_ids = count()


def _reset_ids() -> None:
    """Start the ids at a random number in every process, including forked ones."""
    global _ids
    _ids = count(int.from_bytes(os.urandom(ID_BYTES), "little") >> 1)


ID_BYTES = 8
_reset_ids()
os.register_at_fork(after_in_child=_reset_ids)


class Batch:
    """Events for one hub, each with its partition. `hub.send(batch)` stores them once, however often it is called.

    A batch is valid in the process that made it and for this incarnation of the hub only. Iterating yields its events.
    """

    __slots__ = ("made", "parts", "stored")

    def __init__(self, made: str, parts: Mapping[int, Sequence[Event]], producer: str = "", number: int = 0) -> None:
        self.made = made
        batch = next(_ids)
        self.parts = {partition: PartitionSend(events, batch, producer, number) for partition, events in parts.items()}
        self.stored: dict[int, Sent] = {}
        """Partitions that have confirmed their events, and where they stored them."""

    def missing(self) -> list[int]:
        """The partitions that have not confirmed their events."""
        return [partition for partition in self.parts if partition not in self.stored] if self.stored else [*self.parts]

    def __len__(self) -> int:
        return sum([len(part.events) for part in self.parts.values()])

    def __iter__(self) -> Iterator[Event]:
        for part in self.parts.values():
            yield from part.events

    def __repr__(self) -> str:
        return f"Batch({len(self)} events for partitions {', '.join(map(str, self.parts))})"

    def failed(self, errors: Mapping[int, BaseException]) -> SendFailed:
        """Build the error for a send that these partitions did not confirm."""
        causes = list(errors.values())
        cause = next((error for error in causes if not isinstance(error, Transient)), causes[0])
        kind = _error_type(type(cause)) if isinstance(cause, EvenflowError) else SendFailed
        failure = kind(self._message(errors, cause))
        failure.batch = self
        failure.stored = {str(partition): sent for partition, sent in self.stored.items()}
        named = {str(partition): error for partition, error in errors.items()}
        in_doubt = {str(partition) for partition in errors if self.parts[partition].in_doubt}
        failure.in_doubt = {partition: named[partition] for partition in named if partition in in_doubt}
        failure.not_stored = {partition: named[partition] for partition in named if partition not in in_doubt}
        failure.__cause__ = cause
        return failure

    def _message(self, errors: Mapping[int, BaseException], cause: BaseException) -> str:
        if len(self.parts) == 1:
            return str(cause)
        return (
            f"{len(errors)} of {len(self.parts)} partitions ({', '.join(map(str, errors))}) did not confirm that they "
            f"stored their events: {cause}"
        )


_error_types: dict[type[EvenflowError], type[SendFailed]] = {}


def _error_type(cause: type[EvenflowError]) -> type[SendFailed]:
    """A `SendFailed` that also subclasses the cause's type, so that a caller can catch either."""
    if cause not in _error_types:
        _error_types[cause] = type(SendFailed.__name__, (SendFailed, cause), {"__module__": SendFailed.__module__})
    return _error_types[cause]
