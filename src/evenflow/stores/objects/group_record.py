"""A group's heart: one small object with all that its instances agree on, changed whole by compare-and-set.

What changed lately is in the heart itself, everything up to some revision in a snapshot that the heart names and that
never changes. Who has followed needs the heart alone. Here is how a heart is read and written, when a snapshot is made,
and how it is found out that writes were lost.
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
from evenflow.stores.objects.client import Conflict
from evenflow.stores.stored_group import RecordedMove, StoredGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from evenflow.model import Group, Member, Move, Owner, PartitionId
    from evenflow.stores.objects.client import Link

log = logging.getLogger(__name__)

WRITES_KEPT = 32
ROUNDS_KEPT = 4
"""What changed in the last rounds stays in the heart: who heartbeats at all need not read a snapshot."""
OLD_MOST = 64
RECENT_MOST = 512
"""So many changes may be in a heart: those older than the last rounds, and all."""


@dataclass(slots=True)
class Heart:
    """A heart as this client knows it. What is kept of it is in `wire.HeartBody`."""

    lineage: str
    history: int
    revision: int
    newest: int
    room: StoredGroup | None = None
    """None: there is no such group, or not any more."""
    writes: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    """At which revision the facts about a member changed, or it left; of those in the heart."""
    snapshot: str = ""
    folded: int = 0
    floor: int = 0
    epoch_floor: int = 0
    """Of the group's name, which outlives the group: see `rules.floor_after`."""
    proof: int = 0
    """The history must be as high as this: this client has seen what is not there any more."""
    marks: dict[Owner, int] = field(default_factory=dict)
    """Of those who heartbeat through this client, in this history: what the store told that their marks are."""
    swapped: dict[PartitionId, int] = field(default_factory=dict)
    """Of leases that this client changed after the last of these: the revisions they got. What was lost with a history
    is accounted for: neither is taken into the next one, where it would prove a loss that is none."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.lineage, self.history, self.revision)

    @property
    def history_seen(self) -> int:
        """As it is written next: with what this client can prove."""
        return max(self.history, self.proof)

    @property
    def nonce(self) -> str:
        return self.writes[-1] if self.writes else ""

    def after(self, change: Callable[[Heart, StoredGroup], None]) -> Heart:
        """Another heart, one put later, whose room was changed so. It has a room also where there was none."""
        room = self.room.copy() if self.room is not None else self._new_room()
        heart = replace(
            self,
            room=room,
            history=self.history_seen,
            proof=0,
            rows=dict(self.rows),
            marks=dict(self.marks),
            swapped=dict(self.swapped),
        )
        change(heart, room)
        if heart.history != self.history:
            heart.marks, heart.swapped = {}, {}
        heart.revision, heart.newest = room.revision, room.newest
        heart.writes = self._written(room.revision)
        before = self.room.members if self.room is not None else {}
        for name in _changed(before, room.members):
            heart.rows[name] = room.revision
        return heart

    def note_mark(self, member: Member, me: Member | None) -> None:
        """Only a heartbeat through this client sets it: if it is lower one day, writes were lost."""
        if me is not None:
            self.marks[me.owner] = me.mark
            self.swapped = {}
        else:
            self.marks.pop(member.owner, None)

    def deleted(self, epochs: Iterable[int]) -> Heart:
        """What stays of a deleted group: a later one goes on above its numbers, in its lineage. `epochs`: those of its
        checkpoints."""
        revision = self.revision + 1
        history = self.history_seen
        leases = self.room.leases.values() if self.room is not None else ()
        floor = rules.floor_after(self.epoch_floor, (*epochs, *(lease.epoch for lease in leases)), history)
        writes = self._written(revision)
        return Heart(self.lineage, history, revision, self.newest, writes=writes, epoch_floor=floor)

    def _new_room(self) -> StoredGroup:
        """The history is that of before a loss that this client has seen: then older leases may be lost with it."""
        revision = self.revision + 1
        return StoredGroup(revision, revision, self.newest, began=self.history, epoch_floor=self.epoch_floor)

    def _written(self, revision: int) -> tuple[str, ...]:
        """With the name of a put that makes this revision. The first one of a group makes two."""
        return (*self.writes, *[secrets.token_hex(4)] * (revision - self.revision))[-WRITES_KEPT:]

    def name_of(self, revision: int) -> str | None:
        """Of the put that made a revision; None when it is not known any more."""
        back = self.revision - revision
        return self.writes[-1 - back] if 0 <= back < len(self.writes) else None


class HeartShape:
    """How a group's heart is read and written."""

    def __init__(self, link: Link, group: Group, wall: Callable[[], float]) -> None:
        self._link = link
        self._group = group
        self._wall = wall
        self._made: tuple[str, Cursor] | None = None
        """A snapshot that was put, and is named by no heart yet."""

    # --- reading
    async def load(self, data: bytes | None, known: Heart | None) -> Heart:
        if data is None:
            return _witnessed(Heart(secrets.token_hex(8), 0, 0, 0), known)
        body = self._body(data)
        heart = Heart(
            body.lineage, body.history, body.revision, body.newest, writes=body.writes, floor=body.floor,
            snapshot=body.snapshot, folded=body.folded, epoch_floor=body.epoch_floor,
        )  # fmt: skip
        if known is not None and (known.lineage, known.history) == (heart.lineage, heart.history):
            heart.marks, heart.swapped = dict(known.marks), dict(known.swapped)
        if body.deleted:
            return _witnessed(heart, known)
        heart.rows = {row.id: revision for revision, row in body.rows} | {name: at for at, name in body.gone}
        if known is not None and _may_follow(known, heart, body):
            heart.room = self._room(body, known.room)
            if heart.room is not None and _follows(known, heart, heart.room):
                return _witnessed(heart, known)
        return _witnessed(await self._load_whole(heart, body, known), known)

    async def _load_whole(self, heart: Heart, body: wire.HeartBody, known: Heart | None) -> Heart:
        base: StoredGroup | None = None
        path = wire.heart_path(self._group)
        if body.snapshot:
            path = f"{wire.snapshots_path(self._group)}/{body.snapshot}"
            found = await self._link.get(path)
            if found is None:
                return await self._without_snapshot(heart, body, known)
            base = _base(wire.unpack(found.data, wire.SnapshotBody, self._link.name(path)), body)
        heart.room = self._room(body, base)
        if heart.room is None:
            raise wire.damaged(self._link.name(path), wire.SnapshotBody, "it and the heart do not fit together")
        return heart

    async def _without_snapshot(self, heart: Heart, body: wire.HeartBody, known: Heart | None) -> Heart:
        """It was replaced while we looked; or somebody deleted it, which is a loss of leases like any other."""
        path = wire.heart_path(self._group)
        found = await self._link.get(path)
        again = self._body(found.data) if found is not None else None
        if found is None or again is None or again.snapshot != body.snapshot:
            return await self.load(found.data if found else None, known)
        log.warning(
            "The object %s/%s is gone, and with it the leases of group %s. They are claimed anew.",
            self._link.name(wire.snapshots_path(self._group)),
            body.snapshot,
            self._group,
        )
        heart.lineage, heart.proof, heart.room = secrets.token_hex(8), body.history + 1, None
        heart.snapshot, heart.folded, heart.floor, heart.rows = "", 0, 0, {}
        return heart

    def _body(self, data: bytes) -> wire.HeartBody:
        return wire.unpack(data, wire.HeartBody, self._link.name(wire.heart_path(self._group)))

    def _room(self, body: wire.HeartBody, base: StoredGroup | None) -> StoredGroup | None:
        """The group, from what it was and what changed since; None when these do not fit together."""
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
    async def dump(self, before: Heart, after: Heart) -> bytes:
        if before.room is not None and after.room is not None and (floor := _fold_to(before, before.room)) is not None:
            after.snapshot, after.folded = await self._snapshot(before, before.room)
            after.floor = floor
            after.rows = {name: revision for name, revision in after.rows.items() if revision > floor}
        return wire.pack(self._body_of(after))

    def _body_of(self, heart: Heart) -> wire.HeartBody:
        body = wire.HeartBody(
            evenflow=wire.LAYOUT, group=self._group, lineage=heart.lineage, history=heart.history,
            revision=heart.revision, newest=heart.newest, writes=heart.writes, deleted=heart.room is None,
            epoch_floor=heart.epoch_floor,
        )  # fmt: skip
        if (room := heart.room) is None:
            return body
        at_ds = tenths(self._wall())
        members = [room.members[name] for name in sorted(room.members)]
        return structs.replace(
            body,
            born=room.first_revision,
            began=room.began,
            departed=room.departed,
            roster=room.roster_revision,
            state=room.state,
            snapshot=heart.snapshot,
            folded=heart.folded,
            floor=heart.floor,
            leases=list(room.changed_after(heart.floor))[::-1],
            rows=[(at, _bare(room.members[name])) for name, at in heart.rows.items() if name in room.members],
            gone=[(at, name) for name, at in heart.rows.items() if name not in room.members],
            moves=list(_moved_after(room, heart.floor)),
            at_ds=at_ds,
            ages=[heart.revision - member.mark for member in members],
            silences_ds=[at_ds - tenths(member.heartbeat_at) for member in members],
        )

    async def _snapshot(self, heart: Heart, room: StoredGroup) -> tuple[str, int]:
        """Of a heart that is there already, so that it stays true whoever comes next."""
        if self._made is not None and _still_serves(self._made[1], heart, room):
            return self._made[0], self._made[1].revision
        name = wire.snapshot_name(heart.revision, secrets.token_hex(4))
        rows = [_bare(row) for row in room.members.values()]
        body = wire.SnapshotBody(
            evenflow=wire.LAYOUT, group=self._group, revision=heart.revision, leases=list(room.leases.values()),
            rows=rows, moves=[(at, move) for at, move in room.moves],
        )  # fmt: skip
        folder = wire.snapshots_path(self._group)
        try:
            await self._link.put(f"{folder}/{name}", wire.pack(body), None)
        except Conflict:
            pass  # the name is ours alone: an earlier try took effect
        self._made = name, heart.cursor
        await self._remove_old(folder, heart.folded)
        return name, heart.revision

    async def _remove_old(self, folder: str, named: int) -> None:
        """Those before the one that the heart names now. Who wants to read one still finds another heart instead."""
        if not named:
            return
        with suppress(EvenflowError):  # the next one will
            paths = await self._link.paths(folder)
            await self._link.delete([path for path in paths if revision_of(path) < named])

    # --- in doubt
    def landed(self, wanted: Heart, found: Heart) -> bool | None:
        if found.lineage != wanted.lineage or found.revision < wanted.revision:
            return False
        name = found.name_of(wanted.revision)
        return None if name is None else name == wanted.nonce


def tenths(at: float) -> int:
    return round(at * 10)


def _base(snapshot: wire.SnapshotBody, body: wire.HeartBody) -> StoredGroup:
    room = StoredGroup(body.born, snapshot.revision, body.newest)
    room.leases = {lease.partition: lease for lease in snapshot.leases}
    room.members = {row.id: row for row in snapshot.rows}
    room.moves.extend(RecordedMove(*moved) for moved in snapshot.moves)
    return room


def _marked(body: wire.HeartBody, facts: dict[str, Member]) -> dict[str, Member]:
    """Rows with their marks, the longest silent first."""
    rows = [
        structs.replace(facts[name], mark=body.revision - age, heartbeat_at=(body.at_ds - silence_ds) / 10)
        for name, age, silence_ds in zip(sorted(facts), body.ages, body.silences_ds, strict=True)
    ]
    return {row.id: row for row in sorted(rows, key=lambda row: row.mark)}


def _bare(row: Member) -> Member:
    """Without what stands in every heart."""
    return structs.replace(row, mark=0, heartbeat_at=0.0)


def _changed(before: dict[str, Member], after: dict[str, Member]) -> Iterator[str]:
    """Whose facts changed, who came, and who left. Rows of others are the very same."""
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old is not new and (old is None or new is None or _bare(old) != _bare(new)):
            yield name


def _moved_after(room: StoredGroup, revision: int) -> Iterator[tuple[int, Move]]:
    for at, move in room.moves:
        if at > revision:
            yield at, move


def _fold_to(heart: Heart, room: StoredGroup) -> int | None:
    """What is in the heart up to this revision shall go into a snapshot; None: it may stay."""
    edge = heart.revision - ROUNDS_KEPT * (len(room.members) + 4)
    revisions = [lease.revision for lease in room.changed_after(heart.floor)]
    revisions += [*heart.rows.values(), *(at for at, _ in _moved_after(room, heart.floor))]
    old = sum(revision <= edge for revision in revisions)
    if len(revisions) > RECENT_MOST:
        return heart.revision
    return edge if old > OLD_MOST or (old and old == len(revisions)) else None


def _still_serves(made: Cursor, heart: Heart, room: StoredGroup) -> bool:
    """Whether a snapshot that was made for an earlier try is a past of this heart."""
    return not heart.proof and _is_past(made, heart) and max(heart.folded + 1, room.first_revision) <= made.revision


def revision_of(path: str) -> int:
    """Of a snapshot."""
    return wire.snapshot_revision(path.rpartition("/")[2])


# --- lost writes
def _may_follow(known: Heart, heart: Heart, body: wire.HeartBody) -> bool:
    """Whether what is known and what the heart tells as changed can make the whole."""
    return (
        known.room is not None
        and known.room.first_revision == body.born
        and known.revision >= body.floor
        and _is_past(known.cursor, heart)
    )


def _is_past(cursor: Cursor, heart: Heart) -> bool:
    return (cursor.lineage, cursor.history) == (heart.lineage, heart.history) and cursor.revision <= heart.revision


def _follows(known: Heart, heart: Heart, room: StoredGroup) -> bool:
    """Whether the heart came from the known one, as far as can be told: by the name of its put, or by a mark that only
    whoever heartbeats through this client can have set.
    """
    name = heart.name_of(known.revision)
    if name is not None:
        return name == known.nonce
    return any(mark == known.revision and room.mark_of(owner) == mark for owner, mark in known.marks.items())


def _witnessed(heart: Heart, known: Heart | None) -> Heart:
    """With the proof that writes were lost, if what this client has seen is one."""
    if known is None:
        return heart
    heart.proof = max(heart.proof, known.proof)
    if known.revision:
        heart.proof = max(heart.proof, rules.history_after(known.cursor, heart.cursor))
    if _is_past(known.cursor, heart) and (_was_another(known, heart) or _went_back(known, heart)):
        heart.proof = max(heart.proof, heart.history + 1)
    if heart.proof <= heart.history:
        heart.proof = 0
    return heart


def _was_another(known: Heart, heart: Heart) -> bool:
    name = heart.name_of(known.revision)
    return name is not None and name != known.nonce


def _went_back(known: Heart, heart: Heart) -> bool:
    """A mark, or a lease's revision, that this client has seen set is lower now. A row may be gone, but never goes
    back; a lease is never gone.
    """
    if (room := heart.room) is None or known.room is None or room.first_revision != known.room.first_revision:
        return False
    marks = ((room.mark_of(owner), mark) for owner, mark in known.marks.items())
    leases = ((room.leases.get(partition), revision) for partition, revision in known.swapped.items())
    return any(now is not None and now < mark for now, mark in marks) or any(
        lease is None or lease.revision < revision for lease, revision in leases
    )
