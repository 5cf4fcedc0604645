"""Signals about partitions: leases, starts and stops, progress, and the end of a partition."""

from __future__ import annotations

import logging
from typing import ClassVar

from evenflow.model import BEGINNING, PartitionId, Position, show_epoch
from evenflow.signals.base import Signal, as_sentence, command_flags
from evenflow.text import count_of, listed

BLOCKED_LEAST_S = 0.5
"""A shorter block of the event loop does not explain a missed heartbeat."""


class PartitionStarted(Signal, frozen=True, kw_only=True):
    partition: PartitionId
    epoch: int
    after: Position

    def __str__(self) -> str:
        where = "from the beginning" if self.after == BEGINNING else f"after {self.after}"
        return f"partition {self.partition} started {where} (epoch {show_epoch(self.epoch)})"


class PartitionStopped(Signal, frozen=True, kw_only=True):
    partition: PartitionId
    epoch: int
    reason: str
    handled: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} stopped after {count_of(self.handled, 'event')}"
            f" (epoch {show_epoch(self.epoch)}): {self.reason}"
        )


class Swapped(Signal, frozen=True, kw_only=True):
    """This instance tried to change a lease; `ok` says whether the store accepted the change."""

    partition: PartitionId
    epoch: int
    owner: str | None
    ok: bool
    reason: str

    @property
    def severity(self) -> int:
        """A rejected change is routine: another instance was faster."""
        return self.level if self.ok else logging.DEBUG

    def __str__(self) -> str:
        rejected = "" if self.ok else " (rejected: another instance changed the lease first)"
        owner = f" -> {self.owner}:" if self.owner is not None else ""
        return f"partition {self.partition}{owner} {self.reason}{rejected}"


class Fenced(Signal, frozen=True, kw_only=True):
    """The lease was not renewed in time, so this instance stopped the partition. The measurements say why: the store
    did not answer, or the event loop was blocked and could not send heartbeats.
    """

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    epoch: int
    silent_s: float = 0.0
    """Since the last answered heartbeat was sent."""
    blocked_s: float = 0.0
    """How long the event loop was blocked in this time."""
    attempts: int = 0
    """How many heartbeats were sent in this time and not answered."""
    error: str = ""
    """Why the last of them failed."""

    def __str__(self) -> str:
        return (
            f"partition {self.partition} stopped: its lease was not renewed for {self.silent_s:.1f} s"
            f" (epoch {show_epoch(self.epoch)}); {self.cause}"
        )

    @property
    def cause(self) -> str:
        """What was measured, as a sentence; what explains most of the time comes first."""
        store = (
            f"the store did not answer {count_of(self.attempts, 'heartbeat')}"
            if self.attempts
            else "no heartbeat was sent"
        )
        store = f"{store} ({self.error})" if self.error else store
        if self.blocked_s < BLOCKED_LEAST_S:
            return store
        blocked = (
            f"the event loop was blocked for {self.blocked_s:.1f} s of that time (by a handler, or the process was"
            " suspended)"
        )
        if self.blocked_s >= self.silent_s / 2:
            return f"{blocked}; {store}" if self.error else blocked
        return f"{store}; {blocked}"


class Committed(Signal, frozen=True, kw_only=True):
    level: ClassVar[int] = logging.DEBUG
    partitions: int

    def __str__(self) -> str:
        return f"wrote {count_of(self.partitions, 'checkpoint')}"


class Repeated(Signal, frozen=True, kw_only=True):
    """The source delivered events again that were already handled; they were dropped."""

    partition: PartitionId
    events: int

    def __str__(self) -> str:
        events = count_of(self.events, "event")
        return f"partition {self.partition}: the source delivered {events} a second time; dropped the duplicates"


class Gone(Signal, frozen=True, kw_only=True):
    """The log does not have the event after the checkpoint, no longer or not yet. The partition halts (`to` is None)
    or continues elsewhere, as on_gone says."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    after: Position
    error: str
    to: Position | None = None
    events: int | None = None
    """How many events were skipped; below 0, how many may be handled again. None: the source does not number them."""

    def __str__(self) -> str:
        if self.to is None:
            return (
                f"partition {self.partition} is HALTED after {self.after}: {as_sentence(self.error)} To continue with"
                " the oldest event that is left, run"
                f" `evenflow group seek --to-earliest {command_flags(self.partition, self.group_name)}` (add --store"
                " and --source, or --profile), or set on_gone"
            )
        return f"partition {self.partition} moved from {self.after} to {self.to}, {self._cost}: {self.error}"

    @property
    def _cost(self) -> str:
        if self.events is None:
            return "events were lost"
        if self.events < 0:
            return f"BACK by {count_of(-self.events, 'event')}, which may be handled again"
        return f"{count_of(self.events, 'event')} skipped"


class PositionLost(Signal, frozen=True, kw_only=True):
    """The store lost the checkpoint of a partition, no live instance remembers it, and the group starts at the end of
    the log: the partition continues at the oldest event, or halts, as on_lost says."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    to: Position
    halted: bool

    def __str__(self) -> str:
        if not self.halted:
            return (
                f"partition {self.partition}: the store lost its checkpoint. It continues after {self.to}, at the"
                " oldest event that is left: events may be handled again"
            )
        return (
            f"partition {self.partition} is HALTED: the store lost its checkpoint, and no instance remembers it."
            f" Choose where to continue: `evenflow group seek {command_flags(self.partition, self.group_name)}` with"
            " --to-earliest, --to-latest or --to-datetime (add --store and --source, or --profile); or set"
            ' on_lost="earliest"'
        )


class Ended(Signal, frozen=True, kw_only=True):
    """A partition has split or merged and is over: all of it is handled, or its children continue it."""

    partition: PartitionId
    children: tuple[PartitionId, ...]
    parked: int = 0
    """How many keys stayed parked behind dead letters: their later events, which are in children, are handled."""

    def __str__(self) -> str:
        continues = "continue" if len(self.children) > 1 else "continues"
        children = f"{listed(self.children)} {continues} it" if self.children else "no partition continues it"
        said = f"partition {self.partition} has ended; {children}"
        if not self.parked:
            return said
        return f"{said} ({count_of(self.parked, 'key')} stayed parked: newer events of these keys are handled first)"


class EndUnmarked(Signal, frozen=True, kw_only=True):
    """A partition is at its end, but the application has not checkpointed all of it, so its children wait."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    events: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} is at its end, but its children wait: the last"
            f" {count_of(self.events, 'event')} were handled and not checkpointed. Call partition.checkpoint() in"
            " on_partition_stop when the reason is 'ended'"
        )


class Stalled(Signal, frozen=True, kw_only=True):
    """A partition has an owner and lag, but makes no progress."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    seconds: float
    lag: int
    why: str

    def __str__(self) -> str:
        return (
            f"partition {self.partition} has made no progress for {self.seconds:.0f} s and is"
            f" {count_of(self.lag, 'event')} behind: {self.why}"
        )


class Unowned(Signal, frozen=True, kw_only=True):
    """A partition has no owner, and it is not paused."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    seconds: float
    why: str

    def __str__(self) -> str:
        return f"partition {self.partition} has had no owner for {self.seconds:.0f} s: {self.why}"
