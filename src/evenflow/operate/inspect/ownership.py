"""The ownership table: one row for each partition, from what its store and its source say.

Pure, so that the command line, the console and tests derive the same from the same facts. Unknown values are None and
are never shown as 0. Wall-clock times are for display only: nothing is decided by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from evenflow.core.notes import notes_of
from evenflow.operate.inspect.lag import lag_of, lag_s_of
from evenflow.operate.inspect.members import is_retiring
from evenflow.operate.inspect.rates import ProgressRate, Trend
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from evenflow.model import Bounds, Checkpoint, Delay, Lease, Ledger, Owner, PartitionId, Position, Wish

PartitionStatus: TypeAlias = Literal[
    "ok",
    "third-party",
    "starting",
    "moving",
    "paused",
    "unowned",
    "owner gone",
    "owner silent",
    "events gone",
    "position lost",
    "stopped",
    "tripped",
    "retrying",
    "held back",
    "stalled",
    "careful",
    "waiting",
    "ended",
]
"""third-party: its owner is a live third-party processor (an official .NET or Java one); starting: its owner has not
sealed it yet; moving: its owner is leaving; owner gone: the lease names an instance that is no longer a member; owner
silent: no heartbeat for a whole time-to-live; events gone: retention removed events before they were handled; position
lost: the store lost its checkpoint; stopped: a poison event stopped it; tripped: too many events fail; retrying: an
event failed and is retried; held back: its events wait for open transactions of writers; stalled: it has lag and its
checkpoint does not move; careful: events are handled one at a time, since several owners died without progress;
waiting: its parents have not ended; ended: it was split or merged.
"""

CAREFUL_AFTER = 3
"""After this many epochs in a row that ended unexpectedly and without progress."""
HELD_LEAST_S = 5.0
"""A shorter wait for a writer is routine and not shown."""


class PartitionFailure(Struct, frozen=True, kw_only=True):
    """What its handler fails on, from the notes in its checkpoint."""

    kind: Literal["stopped", "tripped", "retrying"]
    error: str
    offset: str | None = None
    """Of the event itself, where known."""
    attempts: int | None = None
    by: str | None = None
    """The instance that stopped it."""
    whose: str | None = None
    """The document or the key of the event, where known."""
    at: float | None = None

    @property
    def event(self) -> str:
        """As a sentence names it."""
        return f"event {self.offset}" + (f" ({self.whose})" if self.whose else "")


class PartitionRow(Struct, frozen=True, kw_only=True):
    partition: PartitionId
    owner: str | None
    epoch: int | None
    offset: str | None
    sequence: int | None
    newest: int | None
    lag: int | None
    """Events after the checkpoint that are still in the log."""
    lag_s: float | None = None
    """How long the oldest event after the checkpoint has waited. Where the source does not know, the age of the last
    handled event, which is an upper bound. 0 only when there is no lag."""
    trend: Trend | None = None
    """Of the lag; None after a single snapshot."""
    per_s: float | None = None
    catch_up_s: float | None = None
    changed_at: float | None
    """When the lease last changed."""
    expires_s: float | None = None
    """How long until others may take it over if its owner stays silent; None when the owner has not been observed."""
    checkpoint_at: float | None
    reason: str | None
    """Why the lease last changed."""
    status: PartitionStatus
    pause: Wish | None = None
    failure: PartitionFailure | None = None
    parked: int | None = None
    """How many keys are parked: their later events are dead-lettered behind an earlier one."""
    parked_keys: tuple[str, ...] | None = None
    load: float | None = None
    """Share of the time in which its handler runs; None unless all instances publish it."""
    without_progress: int | None = None
    """Epochs in a row that ended unexpectedly and without progress."""
    waits_for: tuple[PartitionId, ...] = ()
    """Its parents that must end before this one starts."""
    parents: tuple[PartitionId, ...] = ()
    """The partitions it was split or merged from."""
    held: str | None = None
    """Why events in the log cannot be read yet."""


class PartitionContext(Struct, frozen=True, kw_only=True):
    """What is known of partitions beyond what the store and the source say at one moment."""

    silences: Mapping[Owner, float | None] = {}
    rates: Mapping[PartitionId, ProgressRate] = {}
    loads: Mapping[PartitionId, float] | None = None
    waiting: Mapping[PartitionId, datetime] = {}
    """When the oldest event after the checkpoint was enqueued, where the source knows."""
    waiting_for: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Children whose parents have not all ended, with these parents."""
    parents: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Of partitions that come from splits and merges."""
    starts: Mapping[PartitionId, Position] = {}
    """Where children start that have no checkpoint yet."""
    vanished: frozenset[PartitionId] = frozenset()
    """Partitions that have not ended, but whose children already continue all of them."""
    pieces: Mapping[PartitionId, Sequence[int]] = {}
    """The sequences of positions that are in several logs at once."""
    held: Mapping[PartitionId, Delay] = {}
    """Partitions with events in the log that cannot be read yet."""
    wall_s: float | None = None
    """The current time; without it, lag in seconds is unknown."""


def partition_rows(
    ledger: Ledger | None,
    checkpoints: Iterable[Checkpoint],
    bounds: Mapping[PartitionId, Bounds],
    partitions: Iterable[PartitionId] = (),
    known: PartitionContext | None = None,
) -> list[PartitionRow]:
    """One row for each partition that the source (`partitions`), a lease or a checkpoint names; ended ones last."""
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    records = {record.partition: record for record in checkpoints}
    rows = [
        _partition_row(
            PartitionFacts(
                name, leases.get(name), records.get(name), bounds.get(name), ledger, known or PartitionContext()
            )
        )
        for name in sorted({*partitions, *leases, *records, *bounds}, key=natural)
    ]
    return sorted(rows, key=lambda row: row.status == "ended")


def failure_of(record: Checkpoint | None) -> PartitionFailure | None:
    """The worst failure in the notes of a checkpoint."""
    if record is None:
        return None
    notes = notes_of(record)
    if (stopped := notes.stopped) is not None:
        return PartitionFailure(
            kind="stopped",
            error=stopped.error,
            offset=stopped.position.offset,
            attempts=stopped.attempts or None,
            by=stopped.by or None,
            whose=stopped.whose or None,
            at=stopped.at or None,
        )
    if (tripped := notes.tripped) is not None:
        return PartitionFailure(kind="tripped", error=tripped.error, at=tripped.at or None)
    if (failing := notes.failing) is not None and failing.ordinal >= record.ordinal:
        return PartitionFailure(kind="retrying", error=failing.error, attempts=failing.attempts)
    return None


class PartitionFacts(NamedTuple):
    """All that is known of one partition."""

    name: PartitionId
    lease: Lease | None
    record: Checkpoint | None
    bounds: Bounds | None
    ledger: Ledger | None
    known: PartitionContext

    @property
    def rate(self) -> ProgressRate:
        return self.known.rates.get(self.name, ProgressRate())

    @property
    def pause(self) -> Wish | None:
        return self.ledger.state.pause_of(self.name) if self.ledger is not None else None

    @property
    def is_ended(self) -> bool:
        return self.lease is not None and self.lease.ended

    @property
    def held(self) -> str | None:
        delay = self.known.held.get(self.name)
        return delay.why if delay is not None and delay.seconds >= HELD_LEAST_S else None

    @property
    def silent_s(self) -> float | None:
        owner = self.lease.owner if self.lease is not None else None
        return self.known.silences.get(owner) if owner is not None else None


def status_of(of: PartitionFacts) -> PartitionStatus:
    """The most important status: what keeps events from being handled comes first."""
    if of.is_ended:
        return "ended"
    if of.pause is not None:
        return "paused"
    if of.name in of.known.waiting_for:
        return "waiting"
    if of.ledger is None or of.lease is None or of.lease.owner is None:
        return "unowned"
    member = next((member for member in of.ledger.members if member.owner == of.lease.owner), None)
    if member is None:
        return "owner gone"
    if (of.silent_s or 0.0) >= of.lease.ttl_s > 0:
        return "owner silent"
    if _is_gone(of.record, of.lease) or _is_behind_retention(of.record, of.bounds):
        return "events gone"
    if of.record is not None and notes_of(of.record).lost is not None:
        return "position lost"
    failure = failure_of(of.record)
    if failure is not None and failure.kind != "retrying":
        return failure.kind
    if member.foreign:
        # Third-party processors seal nothing, so "starting" would never end.
        return "stalled" if of.rate.is_stalled else "third-party"
    if of.record is None or of.record.epoch < of.lease.epoch:
        return "starting"
    if is_retiring(member, of.ledger):
        return "moving"
    return _pace_of(of, of.record, failure)


def _pace_of(of: PartitionFacts, record: Checkpoint, failure: PartitionFailure | None) -> PartitionStatus:
    """Of a partition that its owner has sealed."""
    if failure is not None:
        return failure.kind
    if of.held is not None:
        return "held back"
    if of.rate.is_stalled:
        return "stalled"
    return "careful" if record.fruitless >= CAREFUL_AFTER else "ok"


def _is_gone(record: Checkpoint | None, lease: Lease) -> bool:
    """Its owner has found out. Others cannot know where positions are not numbers."""
    return record is not None and notes_of(record).gone == lease.epoch


def _is_behind_retention(record: Checkpoint | None, bounds: Bounds | None) -> bool:
    if record is None or record.position.sequence is None or bounds is None or bounds.oldest is None:
        return False
    return bounds.oldest.sequence is not None and record.position.sequence + 1 < bounds.oldest.sequence


def _waits_since(of: PartitionFacts, lag: int | None) -> float | None:
    """When the oldest event after the checkpoint was enqueued, as exactly as known.

    Where the source does not know: the time of the newest event, if it is the only one; else that of the last handled
    event, which is a lower bound.
    """
    if (moment := of.known.waiting.get(of.name)) is not None:
        return moment.timestamp()
    if lag == 1 and of.bounds is not None and of.bounds.newest_at is not None:
        return of.bounds.newest_at.timestamp()
    return (of.record.event_at or None) if of.record is not None else None


def _lag_s(of: PartitionFacts, lag: int | None) -> float | None:
    """Some sources know since when events wait, but not how many do."""
    known = 1 if lag is None and of.name in of.known.waiting else lag
    return lag_s_of(known, _waits_since(of, lag), of.known.wall_s)


def _partition_row(of: PartitionFacts) -> PartitionRow:
    lease, record, bounds = of.lease, of.record, of.bounds
    position = record.position if record is not None else None
    newest = bounds.newest if bounds is not None else None
    # The lag of a partition that has ended, or vanished, belongs to its children.
    is_continued = of.is_ended or of.name in of.known.vanished
    place, pieces = position or of.known.starts.get(of.name), of.known.pieces.get(of.name, ())
    lag = 0 if is_continued else lag_of(place, bounds, pieces)
    return PartitionRow(
        partition=of.name,
        owner=lease.owner.id if lease is not None and lease.owner is not None else None,
        epoch=lease.epoch if lease is not None else None,
        offset=position.offset if position is not None else None,
        sequence=position.sequence if position is not None else None,
        newest=newest.sequence if newest is not None else None,
        lag=lag,
        lag_s=_lag_s(of, lag),
        trend=of.rate.trend,
        per_s=of.rate.per_s,
        catch_up_s=of.rate.catch_up_s,
        changed_at=lease.changed_at if lease is not None else None,
        expires_s=max(0.0, lease.ttl_s - of.silent_s) if lease is not None and of.silent_s is not None else None,
        checkpoint_at=record.changed_at if record is not None else None,
        reason=lease.reason if lease is not None else None,
        status=status_of(of),
        pause=of.pause,
        failure=failure_of(record),
        parked=len(notes_of(record).parked) if record is not None else None,
        parked_keys=tuple(sorted(notes_of(record).parked, key=natural)) if record is not None else None,
        load=of.known.loads.get(of.name) if of.known.loads is not None else None,
        without_progress=record.fruitless if record is not None else None,
        waits_for=of.known.waiting_for.get(of.name, ()),
        parents=of.known.parents.get(of.name, ()),
        held=of.held,
    )
