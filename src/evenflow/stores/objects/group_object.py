"""The group object: one small object with everything that a group's instances agree on, replaced by compare-and-set.

The object itself holds the recent changes. Everything up to some revision is in an immutable snapshot that the group
object names. A client that has kept up reads only the group object. This module reads and writes the group object,
decides when to take a snapshot, and detects lost writes.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from evenflow.errors import EvenflowError
from evenflow.model import Cursor
from evenflow.stores import rules
from evenflow.stores.objects import codec as wire
from evenflow.stores.objects.client import PutConflict
from evenflow.stores.stored_group import RecordedMove, StoredGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from evenflow.model import Group, Member, Move, Owner, PartitionId
    from evenflow.stores.objects.client import BucketClient

log = logging.getLogger(__name__)

WRITES_KEPT = 32
ROUNDS_KEPT = 4
"""Changes of the last rounds stay in the group object, so that active instances never read a snapshot."""
OLD_MOST = 64
RECENT_MOST = 512
"""Limits for the changes in a group object: those older than the last rounds, and all of them."""


@dataclass(slots=True)
class GroupObject:
    """The group object as this client knows it. `wire.GroupObjectBody` is its stored form."""

    lineage: str
    history: int
    revision: int
    newest: int
    stored: StoredGroup | None = None
    """None if the group does not exist or was deleted."""
    writes: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    """The revision at which each member last changed or left, for the changes in the group object."""
    snapshot: str = ""
    folded: int = 0
    floor: int = 0
    epoch_floor: int = 0
    """Belongs to the group's name and outlives the group: see `rules.floor_after`."""
    proof: int = 0
    """The lowest history that explains what this client has seen: above `history` if writes were lost."""
    marks: dict[Owner, int] = field(default_factory=dict)
    """Heartbeat counters of members that heartbeat through this client in this history, as stored."""
    swapped: dict[PartitionId, int] = field(default_factory=dict)
    """Revisions of leases that this client changed after the last of these heartbeats.

    Neither mapping is carried over to the next history, where it would report the same loss a second time."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.lineage, self.history, self.revision)

    @property
    def history_seen(self) -> int:
        """The history of the next write, including losses that this client can prove."""
        return max(self.history, self.proof)

    @property
    def nonce(self) -> str:
        return self.writes[-1] if self.writes else ""

    def after(self, change: Callable[[GroupObject, StoredGroup], None]) -> GroupObject:
        """A copy with this change, to be put next. Creates the group if it does not exist."""
        stored = self.stored.copy() if self.stored is not None else self._new_group()
        current = replace(
            self,
            stored=stored,
            history=self.history_seen,
            proof=0,
            rows=dict(self.rows),
            marks=dict(self.marks),
            swapped=dict(self.swapped),
        )
        change(current, stored)
        if current.history != self.history:
            current.marks, current.swapped = {}, {}
        current.revision, current.newest = stored.revision, stored.newest
        current.writes = self._written(stored.revision)
        before = self.stored.members if self.stored is not None else {}
        for name in _changed(before, stored.members):
            current.rows[name] = stored.revision
        return current

    def note_mark(self, member: Member, me: Member | None) -> None:
        """Remembers a counter that only heartbeats through this client set: if it is ever lower, writes were lost."""
        if me is not None:
            self.marks[me.owner] = me.mark
            self.swapped = {}
        else:
            self.marks.pop(member.owner, None)

    def deleted(self, epochs: Iterable[int]) -> GroupObject:
        """What remains of a deleted group: a later group of this name continues above its numbers, in its lineage.
        `epochs` are those of its checkpoints."""
        revision = self.revision + 1
        history = self.history_seen
        leases = self.stored.leases.values() if self.stored is not None else ()
        floor = rules.floor_after(self.epoch_floor, (*epochs, *(lease.epoch for lease in leases)), history)
        writes = self._written(revision)
        return GroupObject(self.lineage, history, revision, self.newest, writes=writes, epoch_floor=floor)

    def _new_group(self) -> StoredGroup:
        """`began` is the history before any loss that this client has seen, because older leases may be lost with
        it."""
        revision = self.revision + 1
        return StoredGroup(revision, revision, self.newest, began=self.history, epoch_floor=self.epoch_floor)

    def _written(self, revision: int) -> tuple[str, ...]:
        """The names of recent puts, including the one that makes this revision. The first put of a group makes two."""
        return (*self.writes, *[secrets.token_hex(4)] * (revision - self.revision))[-WRITES_KEPT:]

    def name_of(self, revision: int) -> str | None:
        """The name of the put that made a revision; None if it is no longer known."""
        back = self.revision - revision
        return self.writes[-1 - back] if 0 <= back < len(self.writes) else None


class GroupObjectFormat:
    """Decodes and encodes a group object."""

    def __init__(self, client: BucketClient, group: Group, wall: Callable[[], float]) -> None:
        self._client = client
        self._group = group
        self._wall = wall
        self._made: tuple[str, Cursor] | None = None
        """A snapshot that was written, but that no group object names yet."""

    # --- reading
    async def load(self, data: bytes | None, known: GroupObject | None) -> GroupObject:
        if data is None:
            return _witnessed(GroupObject(secrets.token_hex(8), 0, 0, 0), known)
        body = self._body(data)
        current = GroupObject(
            body.lineage, body.history, body.revision, body.newest, writes=body.writes, floor=body.floor,
            snapshot=body.snapshot, folded=body.folded, epoch_floor=body.epoch_floor,
        )  # fmt: skip
        if known is not None and (known.lineage, known.history) == (current.lineage, current.history):
            current.marks, current.swapped = dict(known.marks), dict(known.swapped)
        if body.deleted:
            return _witnessed(current, known)
        current.rows = {row.id: revision for revision, row in body.rows} | {name: at for at, name in body.gone}
        if known is not None and _may_follow(known, current, body):
            current.stored = self._stored_group(body, known.stored)
            if current.stored is not None and _follows(known, current, current.stored):
                return _witnessed(current, known)
        return _witnessed(await self._load_whole(current, body, known), known)

    async def _load_whole(
        self, current: GroupObject, body: wire.GroupObjectBody, known: GroupObject | None
    ) -> GroupObject:
        base: StoredGroup | None = None
        path = wire.group_object_path(self._group)
        if body.snapshot:
            path = f"{wire.snapshots_path(self._group)}/{body.snapshot}"
            found = await self._client.get(path)
            if found is None:
                return await self._without_snapshot(current, body, known)
            base = _base(wire.unpack(found.data, wire.SnapshotBody, self._client.name(path)), body)
        current.stored = self._stored_group(body, base)
        if current.stored is None:
            raise wire.damaged(self._client.name(path), wire.SnapshotBody, "it does not match the group object")
        return current

    async def _without_snapshot(
        self, current: GroupObject, body: wire.GroupObjectBody, known: GroupObject | None
    ) -> GroupObject:
        """The snapshot was replaced while we read, or it was deleted, which is a loss of leases like any other."""
        path = wire.group_object_path(self._group)
        found = await self._client.get(path)
        again = self._body(found.data) if found is not None else None
        if found is None or again is None or again.snapshot != body.snapshot:
            return await self.load(found.data if found else None, known)
        log.warning(
            "The object %s/%s is missing; it held the leases of group %s. Reclaiming all partitions.",
            self._client.name(wire.snapshots_path(self._group)),
            body.snapshot,
            self._group,
        )
        current.lineage, current.proof, current.stored = secrets.token_hex(8), body.history + 1, None
        current.snapshot, current.folded, current.floor, current.rows = "", 0, 0, {}
        return current

    def _body(self, data: bytes) -> wire.GroupObjectBody:
        return wire.unpack(data, wire.GroupObjectBody, self._client.name(wire.group_object_path(self._group)))

    def _stored_group(self, body: wire.GroupObjectBody, base: StoredGroup | None) -> StoredGroup | None:
        """The group: `base` plus the changes since then. None if these do not match."""
        seen = base.revision if base is not None else 0
        leases = dict(base.leases) if base is not None else {}
        for lease in body.leases:
            if lease.revision > seen:
                leases.pop(lease.partition, None)
                leases[lease.partition] = lease
        facts = dict(base.members) if base is not None else {}
        facts |= {row.id: row for revision, row in body.rows if revision > seen}
        for revision, name in body.gone:
            if revision > seen:
                facts.pop(name, None)
        if not len(facts) == len(body.ages) == len(body.silences_ds):
            return None
        moves = base.moves.copy() if base is not None else deque[RecordedMove](maxlen=rules.MOVES_KEPT)
        moves.extend(RecordedMove(revision, move) for revision, move in body.moves if revision > seen)
        return StoredGroup(
            first_revision=body.born,
            revision=body.revision,
            newest=body.newest,
            began=body.began,
            epoch_floor=body.epoch_floor,
            departed=body.departed,
            roster_revision=body.roster,
            state=body.state,
            members=_marked(body, facts),
            leases=leases,
            moves=moves,
        )

    # --- writing
    async def dump(self, before: GroupObject, after: GroupObject) -> bytes:
        if (
            before.stored is not None
            and after.stored is not None
            and (floor := _fold_to(before, before.stored)) is not None
        ):
            after.snapshot, after.folded = await self._snapshot(before, before.stored)
            after.floor = floor
            after.rows = {name: revision for name, revision in after.rows.items() if revision > floor}
        return wire.pack(self._body_of(after))

    def _body_of(self, current: GroupObject) -> wire.GroupObjectBody:
        body = wire.GroupObjectBody(
            evenflow=wire.LAYOUT, group=self._group, lineage=current.lineage, history=current.history,
            revision=current.revision, newest=current.newest, writes=current.writes, deleted=current.stored is None,
            epoch_floor=current.epoch_floor,
        )  # fmt: skip
        if (stored := current.stored) is None:
            return body
        at_ds = tenths(self._wall())
        members = [stored.members[name] for name in sorted(stored.members)]
        return structs.replace(
            body,
            born=stored.first_revision,
            began=stored.began,
            departed=stored.departed,
            roster=stored.roster_revision,
            state=stored.state,
            snapshot=current.snapshot,
            folded=current.folded,
            floor=current.floor,
            leases=list(stored.changed_after(current.floor))[::-1],
            rows=[(at, _bare(stored.members[name])) for name, at in current.rows.items() if name in stored.members],
            gone=[(at, name) for name, at in current.rows.items() if name not in stored.members],
            moves=list(_moved_after(stored, current.floor)),
            at_ds=at_ds,
            ages=[current.revision - member.mark for member in members],
            silences_ds=[at_ds - tenths(member.heartbeat_at) for member in members],
        )

    async def _snapshot(self, current: GroupObject, stored: StoredGroup) -> tuple[str, int]:
        """Writes a snapshot of a group object that is already stored, so it is correct whichever client writes next."""
        if self._made is not None and _is_usable(self._made[1], current, stored):
            return self._made[0], self._made[1].revision
        name = wire.snapshot_name(current.revision, secrets.token_hex(4))
        rows = [_bare(row) for row in stored.members.values()]
        body = wire.SnapshotBody(
            evenflow=wire.LAYOUT, group=self._group, revision=current.revision, leases=list(stored.leases.values()),
            rows=rows, moves=[(at, move) for at, move in stored.moves],
        )  # fmt: skip
        folder = wire.snapshots_path(self._group)
        try:
            await self._client.put(f"{folder}/{name}", wire.pack(body), None)
        except PutConflict:
            pass  # the name is unique: an earlier attempt took effect
        self._made = name, current.cursor
        await self._remove_old(folder, current.folded)
        return name, current.revision

    async def _remove_old(self, folder: str, named: int) -> None:
        """Deletes snapshots older than the named one. A client that misses one reads the group object again."""
        if not named:
            return
        with suppress(EvenflowError):  # the next snapshot tries again
            paths = await self._client.paths(folder)
            await self._client.delete([path for path in paths if revision_of(path) < named])

    # --- in doubt
    def landed(self, wanted: GroupObject, found: GroupObject) -> bool | None:
        if found.lineage != wanted.lineage or found.revision < wanted.revision:
            return False
        name = found.name_of(wanted.revision)
        return None if name is None else name == wanted.nonce


def tenths(at: float) -> int:
    return round(at * 10)


def _base(snapshot: wire.SnapshotBody, body: wire.GroupObjectBody) -> StoredGroup:
    stored = StoredGroup(body.born, snapshot.revision, body.newest)
    stored.leases = {lease.partition: lease for lease in snapshot.leases}
    stored.members = {row.id: row for row in snapshot.rows}
    stored.moves.extend(RecordedMove(*moved) for moved in snapshot.moves)
    return stored


def _marked(body: wire.GroupObjectBody, facts: dict[str, Member]) -> dict[str, Member]:
    """Members with their heartbeat counters, oldest heartbeat first."""
    rows = [
        structs.replace(facts[name], mark=body.revision - age, heartbeat_at=(body.at_ds - silence_ds) / 10)
        for name, age, silence_ds in zip(sorted(facts), body.ages, body.silences_ds, strict=True)
    ]
    return {row.id: row for row in sorted(rows, key=lambda row: row.mark)}


def _bare(row: Member) -> Member:
    """Without the fields that every group object repeats."""
    return structs.replace(row, mark=0, heartbeat_at=0.0)


def _changed(before: dict[str, Member], after: dict[str, Member]) -> Iterator[str]:
    """Ids of members that joined, left or changed. Unchanged members are the same objects."""
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old is not new and (old is None or new is None or _bare(old) != _bare(new)):
            yield name


def _moved_after(stored: StoredGroup, revision: int) -> Iterator[tuple[int, Move]]:
    for at, move in stored.moves:
        if at > revision:
            yield at, move


def _fold_to(current: GroupObject, stored: StoredGroup) -> int | None:
    """Changes up to this revision should move into a snapshot; None if they may stay in the group object."""
    edge = current.revision - ROUNDS_KEPT * (len(stored.members) + 4)
    revisions = [lease.revision for lease in stored.changed_after(current.floor)]
    revisions += [*current.rows.values(), *(at for at, _ in _moved_after(stored, current.floor))]
    old = sum(revision <= edge for revision in revisions)
    if len(revisions) > RECENT_MOST:
        return current.revision
    return edge if old > OLD_MOST or (old and old == len(revisions)) else None


def _is_usable(made: Cursor, current: GroupObject, stored: StoredGroup) -> bool:
    """Whether a snapshot written for an earlier attempt is still a past state of this group object."""
    return (
        not current.proof
        and _is_past(made, current)
        and max(current.folded + 1, stored.first_revision) <= made.revision
    )


def revision_of(path: str) -> int:
    return wire.snapshot_revision(path.rpartition("/")[2])


# --- lost writes
def _may_follow(known: GroupObject, current: GroupObject, body: wire.GroupObjectBody) -> bool:
    """Whether the known state and the changes in the group object are enough to build the current state."""
    return (
        known.stored is not None
        and known.stored.first_revision == body.born
        and known.revision >= body.floor
        and _is_past(known.cursor, current)
    )


def _is_past(cursor: Cursor, current: GroupObject) -> bool:
    return (cursor.lineage, cursor.history) == (
        current.lineage,
        current.history,
    ) and cursor.revision <= current.revision


def _follows(known: GroupObject, current: GroupObject, stored: StoredGroup) -> bool:
    """Whether the group object descends from the known one, as far as we can see.

    The proof is the name of its put, or a heartbeat counter that only a heartbeat through this client can have set.
    """
    name = current.name_of(known.revision)
    if name is not None:
        return name == known.nonce
    return any(mark == known.revision and stored.mark_of(owner) == mark for owner, mark in known.marks.items())


def _witnessed(current: GroupObject, known: GroupObject | None) -> GroupObject:
    """Adds the proof that writes were lost, if this client has seen something that is missing now."""
    if known is None:
        return current
    current.proof = max(current.proof, known.proof)
    if known.revision:
        current.proof = max(current.proof, rules.history_after(known.cursor, current.cursor))
    if _is_past(known.cursor, current) and (_has_another_put(known, current) or _went_back(known, current)):
        current.proof = max(current.proof, current.history + 1)
    if current.proof <= current.history:
        current.proof = 0
    return current


def _has_another_put(known: GroupObject, current: GroupObject) -> bool:
    name = current.name_of(known.revision)
    return name is not None and name != known.nonce


def _went_back(known: GroupObject, current: GroupObject) -> bool:
    """Whether a heartbeat counter or a lease revision is lower than this client has seen it.

    A member may disappear, but its counter never decreases; a lease never disappears.
    """
    if (
        (stored := current.stored) is None
        or known.stored is None
        or stored.first_revision != known.stored.first_revision
    ):
        return False
    marks = ((stored.mark_of(owner), mark) for owner, mark in known.marks.items())
    leases = ((stored.leases.get(partition), revision) for partition, revision in known.swapped.items())
    return any(now is not None and now < mark for now, mark in marks) or any(
        lease is None or lease.revision < revision for lease, revision in leases
    )
