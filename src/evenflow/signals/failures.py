"""Signals about failures: of handlers, of the store and the source, and what became of the events concerned."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from evenflow.core.notes import in_words
from evenflow.errors import EvenflowError
from evenflow.signals.base import Signal, as_sentence, command_flags, describe_event, show_seconds
from evenflow.text import count_of, what_to_fix

if TYPE_CHECKING:
    from evenflow.model import PartitionId, Position

ERROR_CHARS = 4_000
"""The most characters of an error in a sentence; the signal carries the error itself."""


class Trouble(Signal, frozen=True, kw_only=True):
    """Something failed. `where` is one of: store, source, handler, hook, commit, dead letters (these are retried), or
    processor, which ends the processor."""

    level: ClassVar[int] = logging.WARNING
    where: str
    error: BaseException
    partition: PartitionId | None = None
    after: Position | None = None
    """Everything up to here is handled."""
    position: Position | None = None
    """Of the event that failed; of the first one, when a call with several `events` failed."""
    whose: str = ""
    """The document or the key of that event; "" when unknown."""
    events: int = 1
    attempt: int = 1
    again_in_s: float | None = None

    def __str__(self) -> str:
        return f"{self._place()}{self.where}: {in_words(self.error, ERROR_CHARS)} {self._retry()}"

    def _place(self) -> str:
        if self.partition is None:
            return ""
        if self.position is not None and self.events > 1:
            return f"partition {self.partition}, batch of {self.events:,} events from {self.position}: "
        if self.position is not None:
            return f"partition {self.partition}, {describe_event(self.position, self.whose)}: "
        after = f" after {self.after}" if self.after is not None else ""
        return f"partition {self.partition}{after}: "

    def _retry(self) -> str:
        if self.events > 1:
            return "(batch failed; splitting it to isolate the failing event)"
        retry = f"; retrying in {show_seconds(self.again_in_s)}" if self.again_in_s is not None else ""
        return f"(attempt {self.attempt}){retry}"

    @property
    def trace(self) -> BaseException | None:
        """The error whose traceback belongs in the log: that of the application's code, at its first attempt only."""
        shown = self.where in ("handler", "hook") and self.attempt == 1 and not isinstance(self.error, EvenflowError)
        return self.error if shown else None


class DeadLettered(Signal, frozen=True, kw_only=True):
    """Events were filed as dead letters: `dead_letters` of them, from `position` on."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    position: Position
    dead_letters: int
    reason: str
    error: str
    attempts: int = 0
    whose: str = ""

    def __str__(self) -> str:
        several = f"{self.dead_letters} events from {self.position}"
        what = describe_event(self.position, self.whose) if self.dead_letters == 1 else several
        tries = f" after {count_of(self.attempts, 'attempt')}" if self.attempts else ""
        return f"partition {self.partition}: dead-lettered {what}{tries} ({self.reason}): {self.error}"


class Skipped(Signal, frozen=True, kw_only=True):
    """A poison event was skipped, as on_poison="skip" says."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    position: Position
    error: str
    attempts: int
    whose: str = ""

    def __str__(self) -> str:
        what = f"skipped {describe_event(self.position, self.whose)} after {count_of(self.attempts, 'attempt')}"
        return f"partition {self.partition}: {what}: {self.error}"


class Stopped(Signal, frozen=True, kw_only=True):
    """A poison event stopped its partition: no event is skipped, and none is handled until an operator resumes it."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    position: Position
    error: str
    attempts: int
    whose: str = ""

    def __str__(self) -> str:
        flags = command_flags(self.partition, self.group_name)
        return (
            f"partition {self.partition} is STOPPED at {describe_event(self.position, self.whose)}, which failed"
            f" {count_of(self.attempts, 'time')}: {as_sentence(self.error)} Fix {what_to_fix(self.error)}, then run"
            f" `evenflow group resume {flags}`; or skip the event with `evenflow group seek --shift-by 1 {flags}`"
            " (add --store and --source, or --profile)"
        )


class Tripped(Signal, frozen=True, kw_only=True):
    """Too many events fail for the events to be the cause: the circuit breaker halts the partition, and retries from
    time to time."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    position: Position
    error: str
    pauses: int
    again_in_s: float
    whose: str = ""

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: circuit breaker TRIPPED at {describe_event(self.position, self.whose)},"
            f" too many events fail: {self.error}; retrying in {self.again_in_s:.1f} s (pause {self.pauses})"
        )


class Recovered(Signal, frozen=True, kw_only=True):
    """An event succeeded after the circuit breaker had tripped."""

    partition: PartitionId

    def __str__(self) -> str:
        return f"partition {self.partition}: events succeed again; circuit breaker closed"


class Careful(Signal, frozen=True, kw_only=True):
    """One owner after another died here: events are handled one at a time, to find the one that kills its process."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    without_progress: int
    ended: int = 0
    """How many owners died within a few events, when that is the cause; else 0."""

    def __str__(self) -> str:
        many = f"{count_of(self.without_progress, 'owner')} in a row died without progress"
        if self.ended:
            many = f"{count_of(self.ended, 'owner')} died within a few events of each other"
        return f"partition {self.partition}: {many}; handling events one at a time for a while"


class Redriven(Signal, frozen=True, kw_only=True):
    """Dead letters were handled again at an operator's request."""

    partition: PartitionId
    done: int
    failed: int

    def __str__(self) -> str:
        return f"partition {self.partition}: {count_of(self.done, 'dead letter')} redriven, {self.failed} failed again"


class HandlerSlow(Signal, frozen=True, kw_only=True):
    """A call has run for longer than handler_timeout_s. An async handler is cancelled; a plain function keeps
    running."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    seconds: float
    stack: str

    def __str__(self) -> str:
        return f"partition {self.partition}: the handler has run for {self.seconds:.1f} s; it is at:\n{self.stack}"


class LoopBlocked(Signal, frozen=True, kw_only=True):
    """A handler blocked the event loop; no heartbeat could be sent meanwhile. (The log has shown it as it lasted.)"""

    level: ClassVar[int] = logging.DEBUG
    seconds: float
    stack: str

    def __str__(self) -> str:
        return f"the event loop was blocked for {self.seconds:.1f} s by:\n{self.stack}"
