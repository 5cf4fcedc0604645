"""The ownership table: from what a store and a source tell, to one row a partition and one row a member.

Pure, so that the command line, the console and tests make the same of the same facts. What is not known stays None,
and is never shown as zero. Times are wall-clock times, for people: nothing is decided by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from evenflow.core.notes import notes_of
from evenflow.operate.inspect.motion import Motion, Trend

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from evenflow.model import Bounds, Checkpoint, Delay, Lease, Ledger, Member, Owner, PartitionId, Position, Wish

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
LAG_LEAST_S = 0.001
"""Lag in seconds is 0 only where there is none: events that were enqueued together are at least this far apart."""
LONG_SILENT = 1.5
"""Times its time-to-live: wall clocks differ a little."""
FRESH_HEARTBEATS = 2
"""Who has beaten within so many heartbeats, by the wall clocks, is taken for alive when nobody has watched."""
FRESH_SLACK_S = 0.5
HELD_LEAST_S = 5.0
"""Whoever writes is waited for, mostly for moments: that is nothing to tell."""

MemberStatus: TypeAlias = Literal["alive", "silent", "leaving", "unknown"]


class Failure(Struct, frozen=True, kw_only=True):
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
    failure: Failure | None = None
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


class MemberRow(Struct, frozen=True, kw_only=True):
    id: str
    incarnation: int
    partitions: int
    share: int | None = None
    """How many it should have; None when it gets none, because it leaves or is silent."""
    per_s: float | None = None
    weight: float
    host: str
    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    """When the store had its last heartbeat, by the store's wall clock: for people, who know how far to trust it."""
    heartbeat_s: float
    ttl_s: float
    silent_s: float | None
    """How long its heartbeat has stood still, as far as was watched; None when nobody has watched."""
    status: MemberStatus
    by_wall_clock: bool = False
    """The status is what wall clocks say, which differ; nobody has watched its heartbeat."""
    excess: int = 0
    """How many of its partitions the next plan gives to others."""
    load: float | None = None
    """How many of its partitions' handlers run at a time, on average; None when not all publish that."""
    load_of_mean: float | None = None
    """The same as a part of what an instance of its weight has on average."""
    charges: Mapping[str, float] | None = None
    """What services have counted for it since it started, of each kind of operation: request units, say."""


class Known(Struct, frozen=True, kw_only=True):
    """What is known of partitions beside what the store and the source tell at one moment."""

    silences: Mapping[Owner, float | None] = {}
    motions: Mapping[PartitionId, Motion] = {}
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
    known: Known | None = None,
) -> list[PartitionRow]:
    """One row for each partition that anybody names: the source (`partitions`), a lease or a checkpoint.

    What has ended comes last.
    """
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    records = {record.partition: record for record in checkpoints}
    rows = [
        _partition_row(Facts(name, leases.get(name), records.get(name), bounds.get(name), ledger, known or Known()))
        for name in sorted({*partitions, *leases, *records, *bounds}, key=natural)
    ]
    return sorted(rows, key=lambda row: row.status == "ended")


class Standing(Struct, frozen=True, kw_only=True):
    """What is known of members beside what the store tells."""

    silences: Mapping[Owner, float | None] = {}
    """How long whose heartbeat has stood still, as far as was watched or is plain from wall clocks."""
    unwatched: frozenset[Owner] = frozenset()
    """Those of whom wall clocks alone tell."""
    shares: Mapping[str, int] = {}
    rates: Mapping[str, float | None] = {}
    excess: Mapping[str, int] = {}
    loads: Mapping[PartitionId, float] | None = None
    """Of partitions, where all publish theirs."""
    wall_s: float | None = None


def member_rows(ledger: Ledger | None, standing: Standing | None = None) -> list[MemberRow]:
    """One row for each member, with how many partitions it owns and should own, and how much it handles."""
    if ledger is None:
        return []
    known = standing or Standing()
    mean = _mean_load(ledger, known.loads)
    return [
        _member_row(member, ledger, known, mean)
        for member in sorted(ledger.members, key=lambda member: natural(member.id))
    ]


def _mean_load(ledger: Ledger, loads: Mapping[PartitionId, float] | None) -> float | None:
    """For a weight of 1, over those who get a share."""
    width = sum(member.weight for member in ledger.members if not is_retiring(member, ledger))
    owned = [loads.get(lease.partition, 0.0) for lease in ledger.leases if lease.owner is not None] if loads else []
    return sum(owned) / width if width and sum(owned) else None


def is_retiring(member: Member, ledger: Ledger) -> bool:
    """By itself, or because somebody asked it to and it has not heard yet."""
    return member.retiring or str(member.owner) in ledger.state.retired


def is_fresh(member: Member, wall_s: float) -> bool:
    """It has beaten just now, by the wall clocks of the store and of this machine; an age below 0 is one as well."""
    return (
        bool(member.heartbeat_at)
        and abs(wall_s - member.heartbeat_at) <= FRESH_HEARTBEATS * member.heartbeat_s + FRESH_SLACK_S
    )


def long_silent(
    ledger: Ledger | None, silences: Mapping[Owner, float | None], wall_s: float
) -> dict[Owner, float | None]:
    """Who has been silent for much longer than it may, by the wall clocks of the store and of this machine.

    That decides nothing, and is better than calling it fine because nobody has watched for long enough. Who owns
    nothing is given no grace: the others have taken it over.
    """
    if ledger is None:
        return {}
    owners = {lease.owner for lease in ledger.leases}
    ages = [(member, wall_s - member.heartbeat_at) for member in ledger.members if member.heartbeat_at]
    return {
        member.owner: age_s
        for member, age_s in ages
        if silences.get(member.owner) is None
        and age_s >= (LONG_SILENT if member.owner in owners else 1.0) * member.ttl_s
    }


def lag_of(position: Position | None, bounds: Bounds | None, pieces: Sequence[int] = ()) -> int | None:
    """How many events come after the position, counted from the oldest that is still there; None when unknown.

    Where it has pieces, by the sequence of each: no fewer than there are, and mostly more, since only the end of them
    all is known.
    """
    if position is None or position.sequence is None:
        return None
    if bounds is None or bounds.newest is None or bounds.newest.sequence is None:
        return None
    oldest = bounds.oldest.sequence if bounds.oldest is not None else None
    newest = bounds.newest.sequence
    after = [one if oldest is None else max(one, oldest - 1) for one in pieces or (position.sequence,)]
    return sum(max(0, newest - one) for one in after)


def lag_s_of(lag: int | None, since_at: float | None, wall_s: float | None) -> float | None:
    """How long events have waited; None when unknown, 0 only when none does. It grows while nothing is handled."""
    if lag == 0:
        return 0.0
    if lag is None or since_at is None or wall_s is None:
        return None
    return max(LAG_LEAST_S, wall_s - since_at)


def failure_of(record: Checkpoint | None) -> Failure | None:
    """The worst that the record's notes tell."""
    if record is None:
        return None
    notes = notes_of(record)
    if (stopped := notes.stopped) is not None:
        return Failure(
            kind="stopped",
            error=stopped.error,
            offset=stopped.position.offset,
            attempts=stopped.attempts or None,
            by=stopped.by or None,
            whose=stopped.whose or None,
            at=stopped.at or None,
        )
    if (tripped := notes.tripped) is not None:
        return Failure(kind="tripped", error=tripped.error, at=tripped.at or None)
    if (failing := notes.failing) is not None and failing.ordinal >= record.ordinal:
        return Failure(kind="retrying", error=failing.error, attempts=failing.attempts)
    return None


class Facts(NamedTuple):
    """All that is known of one partition."""

    name: PartitionId
    lease: Lease | None
    record: Checkpoint | None
    bounds: Bounds | None
    ledger: Ledger | None
    known: Known

    @property
    def motion(self) -> Motion:
        return self.known.motions.get(self.name, Motion())

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


def status_of(of: Facts) -> PartitionStatus:
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


def _pace_of(of: Facts, record: Checkpoint, failure: Failure | None) -> PartitionStatus:
    """Of a partition that its owner works on."""
    if failure is not None:
        return failure.kind
    if of.held is not None:
        return "held back"
    if of.motion.is_stalled:
        return "stalled"
    return "careful" if record.fruitless >= CAREFUL_AFTER else "ok"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """An order for people: 2 before 10, consumer-2 before consumer-10."""
    parts: list[tuple[int, int, str]] = []
    rest = name
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = digits or next((at for at, dead_letter in enumerate(rest) if dead_letter in "0123456789"), len(rest))
        part, rest = rest[:length], rest[length:]
        parts.append((0, int(part), "") if digits else (1, 0, part))
    return tuple(parts)


def _is_gone(record: Checkpoint | None, lease: Lease) -> bool:
    """Its owner has found out. Others cannot, where positions are no numbers that tell what is between them."""
    return record is not None and notes_of(record).gone == lease.epoch


def _is_behind_retention(record: Checkpoint | None, bounds: Bounds | None) -> bool:
    if record is None or record.position.sequence is None or bounds is None or bounds.oldest is None:
        return False
    return bounds.oldest.sequence is not None and record.position.sequence + 1 < bounds.oldest.sequence


def _waits_since(of: Facts, lag: int | None) -> float | None:
    """When the oldest event after the checkpoint was enqueued, as well as it can be told.

    Where the source cannot tell: when the newest was, if that is the only one; else not before the last handled one.
    """
    if (moment := of.known.waiting.get(of.name)) is not None:
        return moment.timestamp()
    if lag == 1 and of.bounds is not None and of.bounds.newest_at is not None:
        return of.bounds.newest_at.timestamp()
    return (of.record.event_at or None) if of.record is not None else None


def _lag_s(of: Facts, lag: int | None) -> float | None:
    """Where a source tells since when events wait, but not how many: by that alone."""
    known = 1 if lag is None and of.name in of.known.waiting else lag
    return lag_s_of(known, _waits_since(of, lag), of.known.wall_s)


def _partition_row(of: Facts) -> PartitionRow:
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


def _member_row(member: Member, ledger: Ledger, known: Standing, mean: float | None) -> MemberRow:
    owned = [lease.partition for lease in ledger.leases if lease.owner == member.owner and not lease.ended]
    silent_s = known.silences.get(member.owner)
    status, by_wall_clock = _member_status(member, ledger, known)
    load = sum(known.loads.get(name, 0.0) for name in owned) if known.loads is not None else None
    return MemberRow(
        id=member.id,
        incarnation=member.incarnation,
        partitions=len(owned),
        share=known.shares.get(member.id),
        per_s=known.rates.get(member.id),
        excess=known.excess.get(member.id, 0),
        weight=member.weight,
        host=member.host,
        pid=member.pid,
        version=member.version,
        started_at=member.started_at,
        heartbeat_at=member.heartbeat_at,
        heartbeat_s=member.heartbeat_s,
        ttl_s=member.ttl_s,
        silent_s=silent_s,
        status=status,
        by_wall_clock=by_wall_clock,
        load=load,
        load_of_mean=load / (mean * member.weight) if load is not None and mean and member.weight else None,
        charges=member.charges,
    )


def _member_status(member: Member, ledger: Ledger, known: Standing) -> tuple[MemberStatus, bool]:
    """In a word, and whether only wall clocks say so."""
    silent_s, unwatched = known.silences.get(member.owner), member.owner in known.unwatched
    if silent_s is not None and silent_s >= member.ttl_s:
        return "silent", unwatched
    if is_retiring(member, ledger):
        return "leaving", False
    if silent_s is not None:
        return "alive", unwatched
    fresh = known.wall_s is not None and is_fresh(member, known.wall_s)
    return ("alive", True) if fresh else ("unknown", False)
