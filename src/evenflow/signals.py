"""Typed signals: what a processor tells whoever listens. One class for one kind; a sentence for people in `str`.

Listeners are called on the event loop, one after the other, and must be quick. A listener that raises is logged and
changes nothing.
"""

from __future__ import annotations

import logging
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import asdict

from evenflow.core.notes import in_words
from evenflow.errors import EvenflowError
from evenflow.model import PartitionId, Position, show_epoch
from evenflow.text import count_of, listed, to_mend, units_of

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("evenflow")

ERROR_CHARS = 4_000
"""Of an error in a sentence; signals carry the error itself."""


BLOCKED_LEAST_S = 0.5
"""A shorter stop of the event loop explains nothing."""


class Signal(Struct, frozen=True, kw_only=True):
    """The root of all signals. `at` is the wall clock's time, for people."""

    level: ClassVar[int] = logging.INFO
    at: float = 0.0
    instance: str = ""
    group: str = ""
    group_name: str = ""
    """As a flag names it: without its namespace and hub, both of which may have slashes in them."""

    @property
    def severity(self) -> int:
        """How loud this one is in the log; never louder than its kind."""
        return self.level

    def as_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        return {"signal": type(self).__name__} | {
            name: str(value) if isinstance(value, BaseException) else value for name, value in facts.items()
        }


class Joined(Signal, frozen=True, kw_only=True):
    incarnation: int

    def __str__(self) -> str:
        return f"{self.instance} joined {self.group} as incarnation {self.incarnation}"


class Left(Signal, frozen=True, kw_only=True):
    def __str__(self) -> str:
        return f"{self.instance} left {self.group}"


class Retiring(Signal, frozen=True, kw_only=True):
    """A person asked this instance to retire: it drains, passes on what it has, and leaves."""

    level: ClassVar[int] = logging.WARNING
    by: str
    why: str

    def __str__(self) -> str:
        return f"{self.instance} retires: {self.by or 'somebody'} asked it to" + (f": {self.why}" if self.why else "")


class Paused(Signal, frozen=True, kw_only=True):
    """A person paused a partition, or (`partition` is None) the whole group: nobody handles what is in it."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId | None
    by: str
    why: str

    def __str__(self) -> str:
        what = f"partition {self.partition}" if self.partition is not None else f"group {self.group}"
        return (
            f"{what} is paused by {self.by or 'somebody'}{': ' if self.why else ''}{self.why}"
            " (nobody handles it until it is resumed)"
        )


class Resumed(Signal, frozen=True, kw_only=True):
    """The pause of a partition, or (`partition` is None) that of the whole group, has ended."""

    partition: PartitionId | None

    def __str__(self) -> str:
        return f"{f'partition {self.partition}' if self.partition is not None else f'group {self.group}'} is resumed"


class PartitionStarted(Signal, frozen=True, kw_only=True):
    partition: PartitionId
    epoch: int
    after: Position

    def __str__(self) -> str:
        return f"partition {self.partition} starts after {self.after} in epoch {show_epoch(self.epoch)}"


class PartitionStopped(Signal, frozen=True, kw_only=True):
    partition: PartitionId
    epoch: int
    reason: str
    handled: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} stopped in epoch {show_epoch(self.epoch)}"
            f" after {count_of(self.handled, 'event')}: {self.reason}"
        )


class Swapped(Signal, frozen=True, kw_only=True):
    """A lease of this instance changed hands, or did not."""

    partition: PartitionId
    epoch: int
    owner: str | None
    ok: bool
    reason: str

    @property
    def severity(self) -> int:
        """That somebody else was faster is daily life."""
        return self.level if self.ok else logging.DEBUG

    def __str__(self) -> str:
        verdict = "" if self.ok else " (refused)"
        return f"partition {self.partition} -> {self.owner or 'nobody'}{verdict}: {self.reason}"


class Fenced(Signal, frozen=True, kw_only=True):
    """No answered heartbeat showed this instance as the owner in time, so it stopped itself. What was measured
    meanwhile tells whether the store did not answer, or the event loop could not ask it.
    """

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    epoch: int
    silent_s: float = 0.0
    """Since the last heartbeat that was answered was sent."""
    blocked_s: float = 0.0
    """How long the event loop did not run in this time."""
    attempts: int = 0
    """How many heartbeats were sent in this time, and not answered."""
    error: str = ""
    """Why the last of them failed."""

    def __str__(self) -> str:
        return (
            f"partition {self.partition} stopped itself in epoch {show_epoch(self.epoch)}: no answered heartbeat for"
            f" {self.silent_s:.1f} s; {self.cause}"
        )

    @property
    def cause(self) -> str:
        """What was measured, for people: first what explains most of the time."""
        asked = (
            f"the store did not answer {count_of(self.attempts, 'heartbeat')}"
            if self.attempts
            else "no heartbeat was sent"
        )
        asked = f"{asked} ({self.error})" if self.error else asked
        if self.blocked_s < BLOCKED_LEAST_S:
            return asked
        blocked = (
            f"the event loop did not run for {self.blocked_s:.1f} s of them (a handler blocked it, or the process was"
            " stopped)"
        )
        if self.blocked_s >= self.silent_s / 2:
            return f"{blocked}; {asked}" if self.error else blocked
        return f"{asked}; {blocked}"


class HistoryLost(Signal, frozen=True, kw_only=True):
    """The store lost writes or was emptied: all partitions stop and are claimed anew."""

    level: ClassVar[int] = logging.ERROR
    before: int
    after: int

    def __str__(self) -> str:
        return f"the store lost writes (history {self.before} -> {self.after}); all partitions are claimed anew"


class Committed(Signal, frozen=True, kw_only=True):
    level: ClassVar[int] = logging.DEBUG
    partitions: int

    def __str__(self) -> str:
        return f"{count_of(self.partitions, 'checkpoint')} written"


class Spent(Signal, frozen=True, kw_only=True):
    """At the end: what the services of the source and the store have counted, of each kind of operation."""

    units: dict[str, float]

    def __str__(self) -> str:
        return f"{self.instance} spent {units_of(self.units)}"


class Repeated(Signal, frozen=True, kw_only=True):
    """The source delivered events again that were handled already; they were dropped."""

    partition: PartitionId
    events: int

    def __str__(self) -> str:
        return f"partition {self.partition}: the source repeated {count_of(self.events, 'event')}, dropped"


class Trouble(Signal, frozen=True, kw_only=True):
    """Something failed. `where` is one of: store, source, handler, hook, commit, dead letters (tried again), or
    processor, which ends it."""

    level: ClassVar[int] = logging.WARNING
    where: str
    error: BaseException
    partition: PartitionId | None = None
    after: Position | None = None
    """All up to here is handled."""
    position: Position | None = None
    """Of the event that failed; of the first one, when a call with several `events` did."""
    whose: str = ""
    """Which document, or whose key, that event is of; "": nobody can tell."""
    events: int = 1
    attempt: int = 1
    again_in_s: float | None = None

    def __str__(self) -> str:
        return f"{self._place()}{self.where}: {in_words(self.error, ERROR_CHARS)} {self._tries()}"

    def _place(self) -> str:
        if self.partition is None:
            return ""
        if self.position is not None and self.events > 1:
            return f"partition {self.partition}, {self.events:,} events from {self.position} on: "
        if self.position is not None:
            return f"partition {self.partition}, {_event(self.position, self.whose)}: "
        after = f" after {self.after}" if self.after is not None else ""
        return f"partition {self.partition}{after}: "

    def _tries(self) -> str:
        if self.events > 1:
            return "(one of them is bad, or something is away: they are given again in halves)"
        again = f"; again in {_in_seconds(self.again_in_s)}" if self.again_in_s is not None else ""
        return f"(failure {self.attempt}){again}"

    @property
    def trace(self) -> BaseException | None:
        """The error, with what is its own of its traceback, when people should see that: once for each trouble."""
        shown = self.where in ("handler", "hook") and self.attempt == 1 and not isinstance(self.error, EvenflowError)
        return self.error if shown else None


class DeadLettered(Signal, frozen=True, kw_only=True):
    """Events went into the dead letters: `dead letters` of them, from `position` on."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    position: Position
    dead_letters: int
    reason: str
    error: str
    attempts: int = 0
    whose: str = ""

    def __str__(self) -> str:
        several = f"{self.dead_letters} events from {self.position} on"
        what = _event(self.position, self.whose) if self.dead_letters == 1 else several
        tries = f" after {count_of(self.attempts, 'attempt')}" if self.attempts else ""
        return f"partition {self.partition}: {what} went into the dead letters{tries} ({self.reason}): {self.error}"


def _event(position: Position, whose: str) -> str:
    return f"event {position} ({whose})" if whose else f"event {position}"


def _sentence(error: str) -> str:
    """It ends as a sentence does, also when it is a question."""
    return error if error.endswith("?") else f"{error.removesuffix('.')}."


class Skipped(Signal, frozen=True, kw_only=True):
    """A poison event was passed over, as on_poison="skip" says."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    position: Position
    error: str
    attempts: int
    whose: str = ""

    def __str__(self) -> str:
        what = f"{_event(self.position, self.whose)} was skipped after {count_of(self.attempts, 'attempt')}"
        return f"partition {self.partition}: {what}: {self.error}"


class Stopped(Signal, frozen=True, kw_only=True):
    """A poison event stopped its partition: nothing is skipped, and nothing goes on until somebody resumes it."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    position: Position
    error: str
    attempts: int
    whose: str = ""

    def __str__(self) -> str:
        flags = f"--partition {quote(self.partition)} --group {quote(self.group_name)}"
        tries = count_of(self.attempts, "time")
        return (
            f"partition {self.partition} is STOPPED at {_event(self.position, self.whose)}, which failed {tries}:"
            f" {_sentence(self.error)} Mend {to_mend(self.error)}, then `evenflow group resume {flags}`; or pass the"
            f" event over with `evenflow group seek --shift-by 1 {flags}` (with --store and --source, or --profile)"
        )


class Gone(Signal, frozen=True, kw_only=True):
    """What comes after a checkpoint is no longer in the log, or not yet: the partition stands still (`to` is None),
    or goes on elsewhere, as on_gone says."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    after: Position
    error: str
    to: Position | None = None
    events: int | None = None
    """So many events were passed over; below 0, so many may come again. None: the source does not tell."""

    def __str__(self) -> str:
        if self.to is None:
            flags = f"--partition {quote(self.partition)} --group {quote(self.group_name)}"
            return (
                f"partition {self.partition} is HALTED after {self.after}: {_sentence(self.error)} Go on with"
                f" what is left by `evenflow group seek --to-earliest {flags}` (with --store and --source, or"
                " --profile), or set on_gone"
            )
        return f"partition {self.partition} went from {self.after} to {self.to}, {self._cost}: {self.error}"

    @property
    def _cost(self) -> str:
        if self.events is None:
            return "events lost"
        if self.events < 0:
            return f"BACK by {count_of(-self.events, 'event')}, which may come again"
        return f"{count_of(self.events, 'event')} passed over"


class PositionLost(Signal, frozen=True, kw_only=True):
    """The store has lost the checkpoint of a partition, no live instance remembers it, and the group starts at the end
    of the log: the partition goes on with the oldest event, or stands still, as on_lost says."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    to: Position
    halted: bool

    def __str__(self) -> str:
        if not self.halted:
            return (
                f"partition {self.partition}: the store has lost its checkpoint. It starts after {self.to}, with the"
                " oldest event that is still there: events may come again"
            )
        flags = f"--partition {quote(self.partition)} --group {quote(self.group_name)}"
        return (
            f"partition {self.partition} is HALTED: the store has lost its checkpoint, and no instance remembers it."
            f" Say where to go on by `evenflow group seek {flags}` and --to-earliest, --to-latest or --to-datetime"
            ' (with --store and --source, or --profile), or set on_lost="earliest"'
        )


class Ended(Signal, frozen=True, kw_only=True):
    """A partition has split or merged, and is over for good: all of it is handled, or its children go on with it."""

    partition: PartitionId
    children: tuple[PartitionId, ...]
    parked: int = 0
    """So many keys were parked behind dead letters: their later events, which come in children, are handled."""

    def __str__(self) -> str:
        follow = "follow" if len(self.children) > 1 else "follows"
        told = f"partition {self.partition} has ended; {listed(self.children) or 'nothing'} {follow}"
        parked = f"{count_of(self.parked, 'key')} of it stayed parked, and what follows of those is handled before them"
        return f"{told} ({parked})" if self.parked else told


class EndUnmarked(Signal, frozen=True, kw_only=True):
    """A partition is at its end, but the application has not marked all of it, so that its children wait."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    events: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} is at its end, and its children wait: the last"
            f" {count_of(self.events, 'event')} were handled, but not checkpointed. Call partition.checkpoint() in"
            " on_partition_stop, whose reason is 'ended' then"
        )


class Tripped(Signal, frozen=True, kw_only=True):
    """So many events fail that it is not the events: the partition stands still, and tries again now and then."""

    level: ClassVar[int] = logging.ERROR
    partition: PartitionId
    position: Position
    error: str
    pauses: int
    again_in_s: float
    whose: str = ""

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: the breaker TRIPPED at {_event(self.position, self.whose)},"
            f" too many events fail: {self.error}; again in {self.again_in_s:.1f} s (pause {self.pauses})"
        )


class Recovered(Signal, frozen=True, kw_only=True):
    """An event passed after the breaker had tripped."""

    partition: PartitionId

    def __str__(self) -> str:
        return f"partition {self.partition}: events pass again; the breaker is closed"


class Careful(Signal, frozen=True, kw_only=True):
    """Owner after owner died here: events are handled one at a time, to find the one that kills."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    fruitless: int
    ended: int = 0
    """So many ended unplanned within a few events, where it is not for those without progress."""

    def __str__(self) -> str:
        many = f"{count_of(self.fruitless, 'owner')} in a row ended without progress"
        if self.ended:
            many = f"{count_of(self.ended, 'owner')} ended unplanned, not far from each other"
        return f"partition {self.partition}: {many}; events are handled one at a time for a while"


class Redriven(Signal, frozen=True, kw_only=True):
    """Dead letters were handled again, because somebody asked for it."""

    partition: PartitionId
    done: int
    failed: int

    def __str__(self) -> str:
        return f"partition {self.partition}: {count_of(self.done, 'dead letter')} redriven, {self.failed} failed again"


class HandlerSlow(Signal, frozen=True, kw_only=True):
    """A call has run for longer than handler_timeout_s. An async one is being cancelled; a plain one runs on."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    seconds: float
    stack: str

    def __str__(self) -> str:
        return f"partition {self.partition}: the handler has run for {self.seconds:.1f} s, and is here:\n{self.stack}"


class Stalled(Signal, frozen=True, kw_only=True):
    """A partition is owned and has lag, but does not advance."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    seconds: float
    lag: int
    why: str

    def __str__(self) -> str:
        return (
            f"partition {self.partition} has not advanced for {self.seconds:.0f} s although it is"
            f" {count_of(self.lag, 'event')} behind:"
            f" {self.why}"
        )


class Unowned(Signal, frozen=True, kw_only=True):
    """Nobody owns a partition, and it is not paused."""

    level: ClassVar[int] = logging.WARNING
    partition: PartitionId
    seconds: float
    why: str

    def __str__(self) -> str:
        return f"partition {self.partition} has had no owner for {self.seconds:.0f} s: {self.why}"


class LoopBlocked(Signal, frozen=True, kw_only=True):
    """A handler held the event loop; heartbeats could not be sent meanwhile. (The log was told while it lasted.)"""

    level: ClassVar[int] = logging.DEBUG
    seconds: float
    stack: str

    def __str__(self) -> str:
        return f"the event loop was blocked for {self.seconds:.1f} s, by:\n{self.stack}"


class Announcer:
    """Stamps signals and hands them to all listeners; the log is always one of them."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._listeners: list[Callable[[Signal], None]] = []
        self.instance = ""
        self.group = ""
        self.group_name = ""

    def listen(self, listener: Callable[[Signal], None]) -> None:
        self._listeners.append(listener)

    def __call__(self, kind: type[Signal], **facts: Any) -> None:
        if not self._listeners and not logger.isEnabledFor(kind.level):
            return
        who = {"instance": self.instance, "group": self.group, "group_name": self.group_name}
        signal = kind(at=self._wall(), **who, **facts)
        logger.log(signal.severity, "%s", signal, exc_info=_trace(signal))
        for listener in self._listeners:
            try:
                listener(signal)
            except Exception:
                logger.exception("a listener failed on %s", type(signal).__name__)


def _in_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds:.2f} s"


def _trace(signal: Signal) -> Any:
    """For the log: where the application was, without the frames that called it."""
    error = signal.trace if isinstance(signal, Trouble) else None
    if error is None:
        return None
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("evenflow.runtime."):
        trace = trace.tb_next
    return type(error), error, trace
