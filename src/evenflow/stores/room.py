"""One group as a store holds it in its own process: members, leases, moves, and what each request makes of them.

For stores that change a group in one step of their own, on records in memory. What is decided follows `rules`. Nothing
is read or written here, and there is no clock. The dictionaries' order is that of the last change, so that what changed
lately (and who has stood still) is found without looking at the rest.
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


class Moved(NamedTuple):
    revision: int
    """Of the group, when it happened."""
    move: Move


@dataclass(slots=True)
class Room:
    """One group."""

    born: int
    revision: int
    newest: int
    """The highest incarnation given or seen."""
    began: int = 0
    """The store's history in which the group began: see `rules.began`."""
    epoch_floor: int = 0
    """Of the group's name, which outlives the group: see `rules.floor_after`."""
    departed: tuple[str, ...] = ()
    """Nonces of those who left: see `rules.departed`."""
    roster_revision: int = 0
    """When somebody last joined, left, or changed anything but the mark."""
    state: GroupState = field(default_factory=GroupState)
    members: dict[str, Member] = field(default_factory=dict)
    """The longest silent first."""
    leases: dict[PartitionId, Lease] = field(default_factory=dict)
    """The latest changed last."""
    moves: deque[Moved] = field(default_factory=lambda: deque(maxlen=rules.MOVES_KEPT))

    def copy(self) -> Room:
        return replace(self, members=dict(self.members), leases=dict(self.leases), moves=self.moves.copy())

    def mark_of(self, owner: Owner) -> int | None:
        member = self.members.get(owner.id)
        return member.mark if member and member.incarnation == owner.incarnation else None

    def is_named(self, owner: Owner) -> bool:
        return any(lease.owner == owner for lease in self.leases.values())

    # --- what is asked of it
    def heartbeat(self, member: Member, since: Cursor | None, history: int, at: float) -> Member | None:
        """The member as it stands then; None when it has left. Superseded changes nothing.

        Not to be asked for one who has left before (`departed`).
        """
        mine = self.members.get(member.id)
        incarnation = rules.admitted(mine, member, newest=self.newest, history=history)
        self.revision += 1
        self.newest = max(self.newest, incarnation)
        me = structs.replace(member, incarnation=incarnation, mark=self.revision, heartbeat_at=at, leaving=False)
        stays = not member.leaving or self.is_named(me.owner)
        self._write_row(me, stays=stays)
        self.began = rules.began(self.began, since, history)
        if not stays:
            self.departed = rules.departed(self.departed, member.nonce)
        self._forget_silent(since, at)
        if self.state.retired and self.roster_revision == self.revision:
            self.state = rules.pruned(self.state, {str(row.owner) for row in self.members.values()})
        if me.source and not self.state.source:
            self.state = structs.replace(self.state, source=me.source)
        return me if stays else None

    def swap(self, change: Change, history: int, at: float) -> Outcome:
        """One change; whoever asks for some has raised the revision before."""
        before = self.leases.get(change.partition)
        if why := rules.refusal(change, before, history, self.mark_of, self.epoch_floor):
            return Outcome(partition=change.partition, ok=False, why=why, lease=before)
        after = rules.changed(change, self.revision, at)
        self.leases.pop(change.partition, None)
        self.leases[change.partition] = after
        if (move := rules.move(before, after)) is not None:
            self.moves.append(Moved(self.revision, move))
        return Outcome(partition=change.partition, ok=True, lease=after)

    def ledger(self, now: Cursor, me: Member | None, since: Cursor | None) -> Ledger:
        whole = since is None or not rules.fits(since, now, self.born)
        seen = 0 if whole or since is None else since.revision
        roster = whole or self.roster_revision > seen
        rows = self.members.values() if roster else self._stood_still(seen)
        return Ledger(
            cursor=now,
            me=me,
            whole=whole,
            leases=tuple(self.leases.values() if whole else self.changed_after(seen)),
            roster=roster,
            members=tuple(rows),
            state=self.state,
            began=self.began,
            epoch_floor=self.epoch_floor,
        )

    def changed_after(self, revision: int) -> Iterable[Lease]:
        """The latest first."""
        for lease in reversed(self.leases.values()):
            if lease.revision <= revision:
                return
            yield lease

    # --- inside
    def _write_row(self, me: Member, *, stays: bool) -> None:
        old = self.members.get(me.id)
        if stays:
            self.members.pop(me.id, None)
            load, charges = me.load and dict(me.load), me.charges and dict(me.charges)
            self.members[me.id] = structs.replace(me, load=load, charges=charges)
            is_news = old is None or structs.replace(old, mark=me.mark, heartbeat_at=me.heartbeat_at) != me
        else:
            is_news = old is not None and old.incarnation == me.incarnation
            if is_news:
                del self.members[me.id]
        if is_news:
            self.roster_revision = self.revision

    def _forget_silent(self, since: Cursor | None, at: float) -> None:
        """Only those are looked at who stood still since the cursor: mostly nobody."""
        if since is None:
            return
        limit_at = at - rules.FORGOTTEN_AFTER_S
        silent = [member for member in self._stood_still(since.revision) if member.heartbeat_at < limit_at]
        for member in silent:
            if not self.is_named(member.owner):
                del self.members[member.id]
                self.roster_revision = self.revision

    def _stood_still(self, revision: int) -> Iterator[Member]:
        for member in self.members.values():
            if member.mark > revision:
                return
            yield member
