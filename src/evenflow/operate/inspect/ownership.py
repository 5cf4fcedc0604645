"""The ownership table: from what a store and a source tell, to one row a partition and one row a member.

Pure, so that the command line, the console and tests make the same of the same facts. What is not known stays None,
and is never shown as zero. Times are wall-clock times, for people: nothing is decided by them.
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
    "foreign",
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
    "unborn",
    "ended",
]
"""In words. foreign: its owner is of another make, and alive; starting: its owner has not sealed it yet; moving: its
owner leaves; owner gone: the lease names somebody who has no member row; owner silent: no heartbeat for a whole
time-to-live; events gone: retention was faster; position lost: the store has lost its checkpoint; stopped: a poison
event stopped it; tripped: too many events fail; retrying: an event has failed and is tried again; held back: its events
wait for somebody who writes to the source; stalled: it has lag and its checkpoint stands still; careful: one event at a
time, since epochs ended without progress; unborn: it follows others, which have not ended; ended: it was split or
merged, and is over.
"""

CAREFUL_AFTER = 3
"""So many epochs in a row ended unplanned and without progress."""
HELD_LEAST_S = 5.0
"""Whoever writes is waited for, mostly for moments: that is nothing to tell."""


class PartitionFailure(Struct, frozen=True, kw_only=True):
    """What its handler fails on, as the checkpoint's notes tell."""

    kind: Literal["stopped", "tripped", "retrying"]
    error: str
    offset: str | None = None
    """Of the event itself, where it is known."""
    attempts: int | None = None
    by: str | None = None
    """The instance that stopped it."""
    whose: str | None = None
    """Which document, or whose key, the event is of, where that is known."""
    at: float | None = None

    @property
    def event(self) -> str:
        """In a sentence."""
        return f"the event at {self.offset}" + (f" ({self.whose})" if self.whose else "")


class PartitionRow(Struct, frozen=True, kw_only=True):
    partition: PartitionId
    owner: str | None
    epoch: int | None
    offset: str | None
    sequence: int | None
    newest: int | None
    lag: int | None
    """Events after the checkpoint that can still be read."""
    lag_s: float | None = None
    """How long the oldest event after the checkpoint has waited; where the source cannot tell, how long ago the last
    one up to it was enqueued, which is more. 0 only when there is no lag."""
    trend: Trend | None = None
    """Of the lag; None while there was only one look."""
    per_s: float | None = None
    catch_up_s: float | None = None
    changed_at: float | None
    """When the lease last changed."""
    expires_s: float | None = None
    """How long until others may take it over, should its owner stay silent; None when nobody has watched."""
    checkpoint_at: float | None
    reason: str | None
    """Why the lease last changed."""
    status: PartitionStatus
    pause: Wish | None = None
    failure: PartitionFailure | None = None
    parked: int | None = None
    """How many keys there are whose events follow an earlier one into the dead letters."""
    parked_keys: tuple[str, ...] | None = None
    load: float | None = None
    """The share of time in which its handler runs; None when not all instances publish that."""
    fruitless: int | None = None
    """Epochs in a row that ended unplanned and without progress."""
    waits_for: tuple[PartitionId, ...] = ()
    """The partitions that must end before this one begins."""
    parents: tuple[PartitionId, ...] = ()
    """The partitions that it came from, by a split or a merge."""
    held: str | None = None
    """Why events that are there cannot be read yet."""


class PartitionContext(Struct, frozen=True, kw_only=True):
    """What is known of partitions beside what the store and the source tell at one moment."""

    silences: Mapping[Owner, float | None] = {}
    motions: Mapping[PartitionId, ProgressRate] = {}
    loads: Mapping[PartitionId, float] | None = None
    waiting: Mapping[PartitionId, datetime] = {}
    """When the oldest event after the checkpoint was enqueued, where the source can tell."""
    unborn: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Children whose parents have not ended, with those."""
    parents: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
    """Of the children of splits and merges."""
    starts: Mapping[PartitionId, Position] = {}
    """After which place children go on that have no checkpoint yet."""
    vanished: frozenset[PartitionId] = frozenset()
    """Those that have not ended, but that children have all of already."""
    pieces: Mapping[PartitionId, Sequence[int]] = {}
    """The sequences of places that are in several logs at once."""
    held: Mapping[PartitionId, Delay] = {}
    """Those that have events that nobody may have yet."""
    wall_s: float | None = None
    """Now; without it, lag in time is unknown."""


def partition_rows(
    ledger: Ledger | None,
    checkpoints: Iterable[Checkpoint],
    bounds: Mapping[PartitionId, Bounds],
    partitions: Iterable[PartitionId] = (),
    known: PartitionContext | None = None,
) -> list[PartitionRow]:
    """One row for each partition that anybody names: the source (`partitions`), a lease or a checkpoint.

    What has ended comes last.
    """
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
    """The worst that the record's notes tell."""
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
    def motion(self) -> ProgressRate:
        return self.known.motions.get(self.name, ProgressRate())

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
    """The most telling word: what keeps events from being handled comes first."""
    if of.is_ended:
        return "ended"
    if of.pause is not None:
        return "paused"
    if of.name in of.known.unborn:
        return "unborn"
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
        return "stalled" if of.motion.is_stalled else "foreign"  # who is of another make seals nothing
    if of.record is None or of.record.epoch < of.lease.epoch:
        return "starting"
    if is_retiring(member, of.ledger):
        return "moving"
    return _pace_of(of, of.record, failure)


def _pace_of(of: PartitionFacts, record: Checkpoint, failure: PartitionFailure | None) -> PartitionStatus:
    """Of a partition that its owner works on."""
    if failure is not None:
        return failure.kind
    if of.held is not None:
        return "held back"
    if of.motion.is_stalled:
        return "stalled"
    return "careful" if record.fruitless >= CAREFUL_AFTER else "ok"


def _is_gone(record: Checkpoint | None, lease: Lease) -> bool:
    """Its owner has found out. Others cannot, where positions are no numbers that tell what is between them."""
    return record is not None and notes_of(record).gone == lease.epoch


def _is_behind_retention(record: Checkpoint | None, bounds: Bounds | None) -> bool:
    if record is None or record.position.sequence is None or bounds is None or bounds.oldest is None:
        return False
    return bounds.oldest.sequence is not None and record.position.sequence + 1 < bounds.oldest.sequence


def _waits_since(of: PartitionFacts, lag: int | None) -> float | None:
    """When the oldest event after the checkpoint was enqueued, as well as it can be told.

    Where the source cannot tell: when the newest was, if that is the only one; else not before the last handled one.
    """
    if (moment := of.known.waiting.get(of.name)) is not None:
        return moment.timestamp()
    if lag == 1 and of.bounds is not None and of.bounds.newest_at is not None:
        return of.bounds.newest_at.timestamp()
    return (of.record.event_at or None) if of.record is not None else None


def _lag_s(of: PartitionFacts, lag: int | None) -> float | None:
    """Where a source tells since when events wait, but not how many: by that alone."""
    known = 1 if lag is None and of.name in of.known.waiting else lag
    return lag_s_of(known, _waits_since(of, lag), of.known.wall_s)


def _partition_row(of: PartitionFacts) -> PartitionRow:
    lease, record, bounds = of.lease, of.record, of.bounds
    position = record.position if record is not None else None
    newest = bounds.newest if bounds is not None else None
    # What a partition left that has ended, or vanished, is behind its children.
    is_behind_them = of.is_ended or of.name in of.known.vanished
    place, pieces = position or of.known.starts.get(of.name), of.known.pieces.get(of.name, ())
    lag = 0 if is_behind_them else lag_of(place, bounds, pieces)
    return PartitionRow(
        partition=of.name,
        owner=lease.owner.id if lease is not None and lease.owner is not None else None,
        epoch=lease.epoch if lease is not None else None,
        offset=position.offset if position is not None else None,
        sequence=position.sequence if position is not None else None,
        newest=newest.sequence if newest is not None else None,
        lag=lag,
        lag_s=_lag_s(of, lag),
        trend=of.motion.trend,
        per_s=of.motion.per_s,
        catch_up_s=of.motion.catch_up_s,
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
        fruitless=record.fruitless if record is not None else None,
        waits_for=of.known.unborn.get(of.name, ()),
        parents=of.known.parents.get(of.name, ()),
        held=of.held,
    )
