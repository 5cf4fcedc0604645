"""A batch: events that were divided among partitions, as a value that may be sent again and is stored once."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

from evenflow.embedded.hub.marks import Mark
from evenflow.errors import EvenflowError, SendFailed, Transient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from evenflow.embedded.hub.writer import Sent
    from evenflow.model import Event

_ids = count()


def _number_anew() -> None:
    """Ids begin at a random place in each process, also in one that was forked."""
    global _ids
    _ids = count(int.from_bytes(os.urandom(ID_BYTES), "little") >> 1)


ID_BYTES = 8
_number_anew()
os.register_at_fork(after_in_child=_number_anew)


class Batch:
    """Events for one hub, each with its partition. `hub.send(batch)` stores them once, however often it is called.

    It is good for this program and this making of the hub. Iterating gives the events.
    """

    __slots__ = ("made", "parts", "places")

    def __init__(self, made: str, parts: Mapping[int, Sequence[Event]], producer: str = "", number: int = 0) -> None:
        self.made = made
        batch = next(_ids)
        self.parts = {partition: Mark(events, batch, producer, number) for partition, events in parts.items()}
        self.places: dict[int, Sent] = {}
        """The partitions that have answered that their events are stored."""

    def missing(self) -> list[int]:
        """The partitions that have not answered that their events are stored."""
        return [partition for partition in self.parts if partition not in self.places] if self.places else [*self.parts]

    def __len__(self) -> int:
        return sum([len(part.events) for part in self.parts.values()])

    def __iter__(self) -> Iterator[Event]:
        for part in self.parts.values():
            yield from part.events

    def __repr__(self) -> str:
        return f"Batch({len(self)} events for partitions {', '.join(map(str, self.parts))})"

    def failed(self, errors: Mapping[int, BaseException]) -> SendFailed:
        """The error for a send of which these partitions did not answer that it is stored."""
        causes = list(errors.values())
        cause = next((error for error in causes if not isinstance(error, Transient)), causes[0])
        kind = _kind(type(cause)) if isinstance(cause, EvenflowError) else SendFailed
        failure = kind(self._text(errors, cause))
        failure.batch = self
        failure.stored = {str(partition): sent for partition, sent in self.places.items()}
        named = {str(partition): error for partition, error in errors.items()}
        in_doubt = {str(partition) for partition in errors if self.parts[partition].in_doubt}
        failure.in_doubt = {partition: named[partition] for partition in named if partition in in_doubt}
        failure.not_stored = {partition: named[partition] for partition in named if partition not in in_doubt}
        failure.__cause__ = cause
        return failure

    def _text(self, errors: Mapping[int, BaseException], cause: BaseException) -> str:
        if len(self.parts) == 1:
            return str(cause)
        return (
            f"{len(errors)} of {len(self.parts)} partitions ({', '.join(map(str, errors))}) did not answer that they "
            f"stored their events: {cause}"
        )


_kinds: dict[type[EvenflowError], type[SendFailed]] = {}


def _kind(cause: type[EvenflowError]) -> type[SendFailed]:
    """`SendFailed` that is of the cause's kind as well, so that a caller may catch either."""
    if cause not in _kinds:
        _kinds[cause] = type(SendFailed.__name__, (SendFailed, cause), {"__module__": SendFailed.__module__})
    return _kinds[cause]
