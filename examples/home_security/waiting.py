"""Events that are stored and not handled yet: how many, and what they wait for. They are not lost. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.core.decide import paused_by
from evenflow.core.notes import notes_of
from evenflow.model import EVERYTHING
from evenflow.operate.steer.operator import called

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Checkpoint, Ledger, PartitionId
    from examples.home_security.fleet import ConsumerProcess


class Cause(Struct, frozen=True, kw_only=True):
    """Why no instance handles them, or will."""

    what: str
    todo: str
    is_wanted: bool
    """Whether an operator requested it."""


class Waiting(Struct, frozen=True, kw_only=True):
    """Of a group."""

    partitions: Mapping[PartitionId, int] = {}
    """How many in each; those that have none are not named."""
    cause: Cause | None = None
    """None: they wait for nothing but their turn."""

    @property
    def events(self) -> int:
        return sum(self.partitions.values())

    @property
    def is_fine(self) -> bool:
        return not self.partitions or (self.cause is not None and self.cause.is_wanted)


def cause_of(
    partitions: Sequence[PartitionId],
    ledger: Ledger | None,
    checkpoints: Sequence[Checkpoint],
    consumers: Sequence[ConsumerProcess],
) -> Cause | None:
    """Why events of all these partitions wait; None when at least one of them should go on by itself."""
    if not any(consumer.fate in ("running", "stopping") for consumer in consumers):
        return Cause(
            what="no instance of this group is running",
            todo="add an instance",
            is_wanted=all(consumer.fate != "died" for consumer in consumers),
        )
    pauses = ledger.state.pauses if ledger is not None else {}
    if EVERYTHING in pauses:
        return Cause(what=f"it is {paused_by(pauses[EVERYTHING])}", todo="resume it", is_wanted=True)
    stopped = {record.partition: note.error for record in checkpoints if (note := notes_of(record).stopped) is not None}
    if not all(partition in pauses or partition in stopped for partition in partitions):
        return None
    failed = [partition for partition in partitions if partition in stopped]
    if failed:
        return Cause(
            what=f"{called(failed)} stopped: {stopped[failed[0]]}",
            todo="do what it says, and resume it",
            is_wanted=False,
        )
    return Cause(
        what=f"{called(list(partitions))} {paused_by(pauses[partitions[0]])}", todo="resume it", is_wanted=True
    )
