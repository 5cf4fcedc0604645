"""How many events are handled twice because of a move: exact for planned moves, an upper bound after a crash.

Before a planned move the owner drains and commits, so there are no duplicates, except with manual checkpoints: there
the events that the application has not marked are handled again. These are counted, from where the new owner started,
what was committed before, and the old owner's note of what it had handled beyond that.

After a takeover the new owner continues at the last checkpoint, and the real progress of the old one is unknown. The
old owner cannot have handled more events than were in the log when it last began a call. If it died, that was before
its next heartbeat was due; if it was only cut off from the store, within its whole time-to-live.

All of this comes from snapshots: for moves that happened unobserved it is unknown.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from evenflow.core.notes import notes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Checkpoint, Lease, Move, Owner, PartitionId
    from evenflow.operate.inspect.watcher import GroupSnapshot

PLANNED = ("handed over", "released", "claimed", "appeared")
UNPLANNED = ("taken over", "taken again")
TRAIL_S = 90.0
"""How far back the ends of the logs are remembered; no time-to-live is longer."""
KEPT = 1_000
VISITS_MOST = 2
"""How many times an operator may change an unowned partition, for example by a seek, before it is a new release."""

Certainty: TypeAlias = Literal["exact", "at most", "unknown", "asked for"]
"""asked for: a seek moved the checkpoint, so duplicates are what an operator requested."""


class DuplicateEstimate(Struct, frozen=True, kw_only=True):
    certainty: Certainty
    events: int | None = None
    """Exact, or the upper bound if the old owner died. None: unknown."""
    cut_off: int | None = None
    """The upper bound if the old owner did not die, but was cut off from the store."""


NOTHING_BEFORE = DuplicateEstimate(certainty="exact", events=0)
SEEK = DuplicateEstimate(certainty="asked for")
UNWATCHED = DuplicateEstimate(certainty="unknown")

MoveKey: TypeAlias = "tuple[PartitionId, int]"
"""A partition, and the epoch that the move began."""


class _Seen(NamedTuple):
    """A partition in one snapshot."""

    lease: Lease | None
    record: Checkpoint | None
    silent_s: float | None
    heartbeat_s: float
    at_s: float


class _Pending(NamedTuple):
    """A takeover that is not sealed yet: the seal shows where the new owner continues."""

    before: _Seen
    epoch: int
    seen_s: float


class DuplicateEstimator:
    """Remembers the last snapshots."""

    def __init__(self) -> None:
        self._trails: dict[PartitionId, deque[tuple[float, int]]] = {}
        self._seen: dict[PartitionId, _Seen] = {}
        self._pending: dict[PartitionId, _Pending] = {}
        self._known: dict[MoveKey, DuplicateEstimate] = {}
        self._counted: dict[MoveKey, DuplicateEstimate] = {}
        """The estimates for the same moves if they were planned."""

    def observe(self, snapshot: GroupSnapshot, now_s: float) -> None:
        records = {record.partition: record for record in snapshot.found.checkpoints}
        heartbeats = (
            {member.owner: member.heartbeat_s for member in snapshot.found.ledger.members}
            if snapshot.found.ledger
            else {}
        )
        for lease in snapshot.found.ledger.leases if snapshot.found.ledger is not None else ():
            self._stretch(lease.partition, snapshot, now_s)
            record = records.get(lease.partition)
            self._follow(lease, record, now_s)
            if self._is_settled(lease, record):
                silent_s, heartbeat_s = _pulse(
                    lease.owner, snapshot.silences, heartbeats, self._seen.get(lease.partition)
                )
                self._seen[lease.partition] = _Seen(lease, record, silent_s, heartbeat_s, now_s)

    def of(self, move: Move) -> DuplicateEstimate:
        if move.kind == "seek":
            return SEEK
        if move.before is None and move.epoch == 1:
            return NOTHING_BEFORE
        if move.kind == "released":
            # The next owner starts where this one ended; operators may have changed the partition in between.
            after = [(move.partition, move.epoch + step) for step in range(1, VISITS_MOST + 2)]
            return next((self._counted[key] for key in after if key in self._counted), UNWATCHED)
        if move.kind in PLANNED and (move.kind != "claimed" or move.before is None):
            return self._counted.get((move.partition, move.epoch), UNWATCHED)
        return self._known.get((move.partition, move.epoch), UNWATCHED)

    def _is_settled(self, lease: Lease, record: Checkpoint | None) -> bool:
        """During an unfinished takeover, keep the snapshot from before it: the estimate is measured against that."""
        return lease.partition not in self._pending or (record is not None and record.epoch >= lease.epoch)

    def _stretch(self, partition: PartitionId, snapshot: GroupSnapshot, now_s: float) -> None:
        bounds = snapshot.found.bounds.get(partition)
        newest = bounds.newest.sequence if bounds is not None and bounds.newest is not None else None
        trail = self._trails.setdefault(partition, deque())
        if newest is not None:
            trail.append((now_s, newest))
        while trail and now_s - trail[0][0] > TRAIL_S:
            trail.popleft()

    def _follow(self, lease: Lease, record: Checkpoint | None, now_s: float) -> None:
        before = self._seen.get(lease.partition)
        pending = self._pending.get(lease.partition)
        if before is None or before.lease is None:
            return
        if lease.epoch > (pending.epoch if pending is not None else before.lease.epoch):
            pending = self._pending[lease.partition] = _Pending(before, lease.epoch, now_s)
        if pending is not None and record is not None and record.epoch >= pending.epoch:
            del self._pending[lease.partition]
            self._known[lease.partition, pending.epoch] = self._bound(lease.partition, pending, record)
            self._counted[lease.partition, pending.epoch] = _counted(pending, record)
            for kept in (self._known, self._counted):
                while len(kept) > KEPT:
                    del kept[next(iter(kept))]

    def _bound(self, partition: PartitionId, pending: _Pending, record: Checkpoint) -> DuplicateEstimate:
        """Counted from where the seal found the record: what was committed after our last snapshot is no duplicate."""
        before, trail = pending.before, self._trails.get(partition)
        if before.record is None or before.record.position.sequence is None or not trail or before.lease is None:
            return UNWATCHED
        sealed = record.begun if record.epoch == pending.epoch else before.record.ordinal
        committed = before.record.position.sequence + max(0, sealed - before.record.ordinal)
        if before.silent_s is None:
            most = max(0, trail[-1][1] - committed)
            return DuplicateEstimate(certainty="at most", events=most, cut_off=most)
        # It was silent for its whole time-to-live before the takeover: only an older snapshot may have missed a
        # heartbeat.
        silent_from_s = pending.seen_s - before.lease.ttl_s
        beaten_s = before.at_s - before.silent_s if before.at_s >= silent_from_s else silent_from_s
        died = max(0, _newest_at(trail, beaten_s + before.heartbeat_s) - committed)
        cut_off = max(0, _newest_at(trail, beaten_s + before.lease.ttl_s) - committed)
        return DuplicateEstimate(certainty="at most", events=died, cut_off=cut_off)


def _counted(pending: _Pending, record: Checkpoint) -> DuplicateEstimate:
    """Exact, unless another owner came in between."""
    before = pending.before
    if before.record is None or record.epoch != pending.epoch:
        return UNWATCHED
    left = notes_of(record).unmarked
    unmarked = left.events if left is not None and before.lease is not None and left.epoch == before.lease.epoch else 0
    return DuplicateEstimate(certainty="exact", events=max(0, before.record.ordinal - record.begun) + unmarked)


def _pulse(
    owner: Owner | None, silences: Mapping[Owner, float | None], heartbeats: Mapping[Owner, float], before: _Seen | None
) -> tuple[float | None, float]:
    """How long an owner has been silent, and its heartbeat interval; for one that has left, as last known."""
    if owner is None:
        return None, 0.0
    if owner in heartbeats:
        return silences.get(owner), heartbeats[owner]
    return (before.silent_s, before.heartbeat_s) if before is not None else (None, 0.0)


def _newest_at(trail: Sequence[tuple[float, int]] | deque[tuple[float, int]], at_s: float) -> int:
    """The end of the log in the first snapshot at or after this moment, or else in the last one."""
    return next((newest for seen_s, newest in trail if seen_s >= at_s), trail[-1][1])
