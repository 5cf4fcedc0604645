"""The state of one group in memory (members, leases, moves), and how each request changes it.

Used by stores that load a group, change it in memory and write it back in one atomic step. All decisions come from
`rules`. This module does no I/O and reads no clock. The dictionaries are ordered by last change, so recent changes and
silent members are found without scanning everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from evenflow.model import GroupState, Ledger, Outcome
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from evenflow.model import Change, Cursor, Lease, Member, Move, Owner, PartitionId


class RecordedMove(NamedTuple):
    revision: int
    """The group's revision at the time of the move."""
    move: Move


@dataclass(slots=True)
class StoredGroup:
    first_revision: int
    """The group's revision when it was created."""
    revision: int
    newest: int
    """The highest incarnation assigned or seen."""
    began: int = 0
    """The store's history in which the group was created: see `rules.first_history`."""
    epoch_floor: int = 0
    """Belongs to the group's name and outlives the group: see `rules.floor_after`."""
    departed: tuple[str, ...] = ()
    """Nonces of members that left: see `rules.remember_departed`."""
    roster_revision: int = 0
    """When a member last joined, left, or changed anything but its heartbeat counter."""
    state: GroupState = field(default_factory=GroupState)
    members: dict[str, Member] = field(default_factory=dict)
    """Ordered by last heartbeat, oldest first."""
    leases: dict[PartitionId, Lease] = field(default_factory=dict)
    """Ordered by last change, newest last."""
    moves: deque[RecordedMove] = field(default_factory=lambda: deque(maxlen=rules.MOVES_KEPT))

    def copy(self) -> StoredGroup:
        return replace(self, members=dict(self.members), leases=dict(self.leases), moves=self.moves.copy())

    def mark_of(self, owner: Owner) -> int | None:
        member = self.members.get(owner.id)
        return member.mark if member and member.incarnation == owner.incarnation else None

    def is_named(self, owner: Owner) -> bool:
        return any(lease.owner == owner for lease in self.leases.values())

    # --- requests
    def heartbeat(self, member: Member, since: Cursor | None, history: int, at: float) -> Member | None:
        """Returns the member as stored, or None once it has left. Raises Superseded without changing anything.

        Callers must first check that the member's nonce is not in `departed`.
        """
        mine = self.members.get(member.id)
        incarnation = rules.admit_incarnation(mine, member, newest=self.newest, history=history)
        self.revision += 1
        self.newest = max(self.newest, incarnation)
        me = structs.replace(member, incarnation=incarnation, mark=self.revision, heartbeat_at=at, leaving=False)
        stays = not member.leaving or self.is_named(me.owner)
        self._write_member(me, stays=stays)
        self.began = rules.first_history(self.began, since, history)
        if not stays:
            self.departed = rules.remember_departed(self.departed, member.nonce)
        self._remove_silent(since, at)
        if self.state.retired and self.roster_revision == self.revision:
            self.state = rules.prune_retired(self.state, {str(row.owner) for row in self.members.values()})
        if me.source and not self.state.source:
            self.state = structs.replace(self.state, source=me.source)
        return me if stays else None

    def swap(self, change: Change, history: int, at: float) -> Outcome:
        """Applies one change. The caller raises `revision` once before it applies a set of changes."""
        before = self.leases.get(change.partition)
        if why := rules.why_refused(change, before, history, self.mark_of, self.epoch_floor):
            return Outcome(partition=change.partition, ok=False, why=why, lease=before)
        after = rules.lease_after(change, self.revision, at)
        self.leases.pop(change.partition, None)
        self.leases[change.partition] = after
        if (move := rules.move_between(before, after)) is not None:
            self.moves.append(RecordedMove(self.revision, move))
        return Outcome(partition=change.partition, ok=True, lease=after)

    def ledger(self, now: Cursor, me: Member | None, since: Cursor | None) -> Ledger:
        whole = since is None or not rules.can_send_changes(since, now, self.first_revision)
        seen = 0 if whole or since is None else since.revision
        roster = whole or self.roster_revision > seen
        members = self.members.values() if roster else self._silent_since(seen)
        return Ledger(
            cursor=now,
            me=me,
            whole=whole,
            leases=tuple(self.leases.values() if whole else self.changed_after(seen)),
            roster=roster,
            members=tuple(members),
            state=self.state,
            began=self.began,
            epoch_floor=self.epoch_floor,
        )

    def changed_after(self, revision: int) -> Iterable[Lease]:
        """Newest first."""
        for lease in reversed(self.leases.values()):
            if lease.revision <= revision:
                return
            yield lease

    # --- private
    def _write_member(self, me: Member, *, stays: bool) -> None:
        old = self.members.get(me.id)
        if stays:
            self.members.pop(me.id, None)
            load, charges = me.load and dict(me.load), me.charges and dict(me.charges)
            self.members[me.id] = structs.replace(me, load=load, charges=charges)
            has_changed = old is None or structs.replace(old, mark=me.mark, heartbeat_at=me.heartbeat_at) != me
        else:
            has_changed = old is not None and old.incarnation == me.incarnation
            if has_changed:
                del self.members[me.id]
        if has_changed:
            self.roster_revision = self.revision

    def _remove_silent(self, since: Cursor | None, at: float) -> None:
        """Checks only members that sent no heartbeat since the cursor; usually there are none."""
        if since is None:
            return
        limit_at = at - rules.FORGOTTEN_AFTER_S
        silent = [member for member in self._silent_since(since.revision) if member.heartbeat_at < limit_at]
        for member in silent:
            if not self.is_named(member.owner):
                del self.members[member.id]
                self.roster_revision = self.revision

    def _silent_since(self, revision: int) -> Iterator[Member]:
        for member in self.members.values():
            if member.mark > revision:
                return
            yield member
