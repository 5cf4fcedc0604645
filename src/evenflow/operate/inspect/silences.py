"""When instances sent their last heartbeats: there a partition's time with a silent owner begins.

The reason of a takeover says only how long the new owner had watched, which is less. All of this comes from snapshots;
for moves that happened between them, the reason is all there is. Times are the store's wall-clock times, as those of
moves are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from evenflow.operate.inspect.duplicates import UNPLANNED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evenflow.model import Lease, Move, Owner, PartitionId
    from evenflow.operate.inspect.watcher import GroupSnapshot

HEARTBEATS_KEPT = 32
"""For each instance. A move shows within a few snapshots, so older ones are not needed."""
LATE_HEARTBEATS, LATE_SLACK_S = 2, 0.5
"""An instance without a heartbeat for this many intervals is displayed as silent."""

MoveKey: TypeAlias = "tuple[PartitionId, int]"
"""A partition, and the epoch that the move began."""


class SilenceHistory:
    """Remembers the last snapshots."""

    def __init__(self) -> None:
        self._heartbeats: dict[Owner, deque[float]] = {}
        self._late_s: dict[Owner, float] = {}
        self._owners: dict[PartitionId, Owner] = {}
        self._judged: set[MoveKey] = set()
        self.silences: dict[MoveKey, float] = {}
        """For moves where it is known: since when the previous owner had been silent."""
        self.silent_since: dict[str, float] = {}
        """For instances that are silent now: since when."""

    def observe(self, snapshot: GroupSnapshot, moves: Sequence[Move]) -> None:
        """`moves` are all known ones: what belongs to others is forgotten."""
        ledger = snapshot.found.ledger
        leases = ledger.leases if ledger is not None else ()
        self._note(snapshot)
        for move in moves:
            self._judge(move, leases)
        known = {(move.partition, move.epoch) for move in moves}
        self._judged &= known
        self.silences = {key: since for key, since in self.silences.items() if key in known}
        self._owners = {lease.partition: lease.owner for lease in leases if lease.owner is not None}
        there = {member.owner for member in ledger.members} if ledger is not None else set()
        there |= set(self._owners.values())
        self._heartbeats = {owner: heartbeats for owner, heartbeats in self._heartbeats.items() if owner in there}
        self._late_s = {owner: late_s for owner, late_s in self._late_s.items() if owner in there}

    def _note(self, snapshot: GroupSnapshot) -> None:
        self.silent_since = {}
        for member in snapshot.found.ledger.members if snapshot.found.ledger is not None else ():
            if not member.heartbeat_at:
                continue
            late_s = self._late_s[member.owner] = LATE_HEARTBEATS * member.heartbeat_s + LATE_SLACK_S
            heartbeats = self._heartbeats.setdefault(member.owner, deque(maxlen=HEARTBEATS_KEPT))
            if not heartbeats or member.heartbeat_at > heartbeats[-1]:
                heartbeats.append(member.heartbeat_at)
            silent_s = snapshot.silences.get(member.owner)
            if silent_s is not None and silent_s > late_s:
                self.silent_since[member.id] = member.heartbeat_at

    def _judge(self, move: Move, leases: Iterable[Lease]) -> None:
        """Once, when the move is new: later the instance may be back, or another one may have its name."""
        key = move.partition, move.epoch
        if key in self._judged or move.before is None or move.kind not in UNPLANNED:
            return
        self._judged.add(key)
        known = [self._owners.get(move.partition)]
        # It may have moved after the ledger was read, and before the moves were.
        known += [lease.owner for lease in leases if lease.partition == move.partition and lease.epoch < move.epoch]
        for owner in known:
            if owner is not None and owner.id == move.before:
                heartbeats = [at for at in self._heartbeats.get(owner, ()) if at <= move.at]
                # An owner that released a partition and reclaimed it was not necessarily silent.
                if heartbeats and move.at - heartbeats[-1] > self._late_s[owner]:
                    self.silences[key] = heartbeats[-1]
                return
