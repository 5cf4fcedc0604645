"""What a SQLite store does in `leases.sqlite`, each function one short transaction. They block.

Prepared statements are found again by their text, so texts are constant. Nothing here looks at a lease that has not
changed since the caller last asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import json, structs

from evenflow.local.database import immediate
from evenflow.model import Action, Cursor, Group, GroupState, Lease, Ledger, Member, Move, Outcome, Owner
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from evenflow.model import Change, PartitionId, Steering

_GROUP = """
SELECT groups.id, born, revision, roster_revision, newest, moves, source, state, lineage, history, began, epoch_floor
FROM meta LEFT JOIN groups ON namespace = ? AND hub = ? AND name = ?"""
_MAKE_GROUP = """
INSERT INTO groups (namespace, hub, name, born, revision, roster_revision, newest, moves, source, began, epoch_floor)
SELECT ?1, ?2, ?3, revision_floor + 1, revision_floor + 1, 0, incarnation_floor, 0, '', history, coalesce(
    (SELECT epoch FROM epoch_floors WHERE namespace = ?1 AND hub = ?2 AND name = ?3), 0) FROM meta"""
_KEEP_GROUP = """
UPDATE groups SET revision = ?, roster_revision = ?, newest = ?, moves = ?, source = ?, began = ? WHERE id = ?"""
_KEEP_STATE = "UPDATE groups SET state = ? WHERE id = ?"

_MEMBER = "SELECT facts FROM members WHERE group_id = ? AND id = ?"
_HEARTBEAT = "UPDATE members SET mark = ?, heartbeat_at = ? WHERE group_id = ? AND id = ?"
_JOIN = (
    "INSERT OR REPLACE INTO members (group_id, id, incarnation, mark, heartbeat_at, facts) VALUES (?, ?, ?, ?, ?, ?)"
)
_LEAVE = "DELETE FROM members WHERE group_id = ? AND id = ? AND incarnation = ?"
_FORGET = """
DELETE FROM members WHERE group_id = ? AND mark <= ? AND heartbeat_at < ? AND NOT EXISTS (
    SELECT 1 FROM leases WHERE leases.group_id = members.group_id
    AND owner = members.id AND leases.incarnation = members.incarnation)"""
_HAS_LEFT = "SELECT 1 FROM departed WHERE group_id = ? AND nonce = ?"
_KEEP_DEPARTED = "INSERT OR REPLACE INTO departed VALUES (?, ?, ?)"
_DROP_DEPARTED = """
DELETE FROM departed WHERE group_id = ?1 AND revision <= (
    SELECT revision FROM departed WHERE group_id = ?1 ORDER BY revision DESC LIMIT 1 OFFSET ?2)"""
_MARK = "SELECT mark FROM members WHERE group_id = ? AND id = ? AND incarnation = ?"
_NAMED = "SELECT 1 FROM leases WHERE group_id = ? AND owner = ? AND incarnation = ? LIMIT 1"

_ALL_MEMBERS = "SELECT facts, mark, heartbeat_at FROM members WHERE group_id = ?"
_STILL_MEMBERS = _ALL_MEMBERS + " AND mark <= ?"

_ALL_LEASES = """
SELECT partition, owner, incarnation, epoch, revision, history, ttl_s, late, ended, reason, changed_at
FROM leases WHERE group_id = ?"""
_CHANGED_LEASES = _ALL_LEASES + " AND revision > ?"
_LEASE = _ALL_LEASES + " AND partition = ?"
_KEEP_LEASE = "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_HIGHEST = """
SELECT max(coalesce((SELECT max(epoch) FROM leases WHERE group_id = ?4), 0), coalesce(
    (SELECT epoch FROM epoch_floors WHERE namespace = ?1 AND hub = ?2 AND name = ?3), 0))"""
_KEEP_FLOOR = "INSERT OR REPLACE INTO epoch_floors VALUES (?, ?, ?, ?)"

_KEEP_MOVE = "INSERT INTO moves VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP_MOVES = "DELETE FROM moves WHERE group_id = ? AND number <= ?"
_MOVES = """
SELECT partition, before, after, epoch, reason, at FROM moves
WHERE group_id = (SELECT id FROM groups WHERE namespace = ? AND hub = ? AND name = ?)
ORDER BY number DESC LIMIT ?"""

_KEEP_ACTION = """
INSERT INTO actions (namespace, hub, consumer_group, kind, done_by, why, what, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_ACTIONS = """
SELECT kind, done_by, why, what, at FROM actions
WHERE namespace = ? AND hub = ? AND consumer_group = ? ORDER BY number DESC LIMIT ?"""
_DROP_ACTIONS = """
DELETE FROM actions WHERE namespace = ?1 AND hub = ?2 AND consumer_group = ?3 AND number <= (
    SELECT number FROM actions WHERE namespace = ?1 AND hub = ?2 AND consumer_group = ?3
    ORDER BY number DESC LIMIT 1 OFFSET ?4)"""

_decode_member = json.Decoder(Member).decode
_decode_state = json.Decoder(GroupState).decode
_encode = json.Encoder().encode


class HistoryLost(Exception):
    """A heartbeat proved that writes were lost. Raise the history, in both files, and heartbeat again."""

    def __init__(self, history: int) -> None:
        super().__init__(history)
        self.history = history


class Beaten(NamedTuple):
    ledger: Ledger
    state_changed: bool


class Swapped(NamedTuple):
    outcomes: list[Outcome]
    heirs: list[str]


@dataclass(slots=True)
class _Room:
    """One group's row, as read and then changed in this transaction."""

    id: int
    born: int
    revision: int
    roster_revision: int
    newest: int
    moves: int
    state: GroupState
    lineage: str
    history: int
    began: int
    epoch_floor: int

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.lineage, self.history, self.revision)


class _MemberRow(NamedTuple):
    """The facts that stand under a member's id (None: there is no row), and those that a heartbeat brings."""

    before: str | None
    brought: str

    @property
    def is_news(self) -> bool:
        return self.before != self.brought


def heartbeat(connection: apsw.Connection, group: Group, member: Member, since: Cursor | None, at: float) -> Beaten:
    with immediate(connection):
        room = _room(connection, group) or _make_room(connection, group)
        row = _member_row(connection, room, member)
        if row.is_news and _one(connection, _HAS_LEFT, (room.id, member.nonce)):
            return Beaten(_ledger(connection, room, None, since), state_changed=False)
        if (history := rules.history_after(since, room.cursor)) > room.history:
            raise HistoryLost(history)
        room.revision += 1
        room.began = rules.first_history(room.began, since, room.history)
        me = _write_member(connection, room, member, row, at)
        if since is not None:
            connection.execute(_FORGET, (room.id, since.revision, at - rules.FORGOTTEN_AFTER_S))
            if connection.changes():
                room.roster_revision = room.revision
        if room.state.retired and room.roster_revision == room.revision:
            _prune(connection, room)
        adopts = bool(member.source) and not room.state.source
        if adopts:
            room.state = structs.replace(room.state, source=member.source)
        _keep(connection, room)
        return Beaten(_ledger(connection, room, me, since), adopts)


def swap(connection: apsw.Connection, group: Group, changes: Sequence[Change], at: float) -> Swapped:
    with immediate(connection):
        room = _room(connection, group)
        if room is None:
            return Swapped([Outcome(partition=change.partition, ok=False, why="owner") for change in changes], [])
        room.revision += 1
        swapped = Swapped([], [])
        for change in changes:
            _swap(connection, room, change, at, swapped)
        if any(outcome.ok for outcome in swapped.outcomes):
            connection.execute(_DROP_MOVES, (room.id, room.moves - rules.MOVES_KEPT))
            _keep(connection, room)
        return swapped


def steer(connection: apsw.Connection, group: Group, steering: Steering, action: Action, at: float) -> GroupState:
    with immediate(connection):
        room = _room(connection, group)
        if room is None:
            raise rules.no_such_group(group)
        kept = rules.stamp_action(action, at)
        room.state = rules.steer(room.state, steering, rules.request_of(kept))
        room.revision += 1
        _keep(connection, room)
        _keep_state(connection, room)
        _keep_action(connection, group, kept)
        return room.state


def record(connection: apsw.Connection, group: Group, action: Action, at: float) -> None:
    with immediate(connection):
        _keep_action(connection, group, rules.stamp_action(action, at))


def actions(connection: apsw.Connection, group: Group, limit: int) -> list[Action]:
    rows = connection.execute(_ACTIONS, (*structs.astuple(group), limit))
    return [Action(kind=kind, by=by, why=why, what=what, at=at) for kind, by, why, what, at in rows]


def peek(connection: apsw.Connection, group: Group) -> Ledger | None:
    connection.execute("BEGIN")
    try:
        room = _room(connection, group)
        return _ledger(connection, room, None, None) if room else None
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


def groups(connection: apsw.Connection) -> list[Group]:
    return [Group(*row) for row in connection.execute("SELECT namespace, hub, name FROM groups")]


def moves(connection: apsw.Connection, group: Group, limit: int) -> list[Move]:
    rows = connection.execute(_MOVES, (*structs.astuple(group), limit))
    return [
        Move(partition=partition, before=before, after=after, epoch=epoch, reason=reason, at=at)
        for partition, before, after, epoch, reason, at in rows
    ]


def highest_epoch(connection: apsw.Connection, group: Group) -> int | None:
    """Of the group's leases and its floor; None when there is no such group."""
    room = _room(connection, group)
    if room is None:
        return None
    row = _one(connection, _HIGHEST, (*structs.astuple(group), room.id))
    assert row is not None
    return int(row[0])


def delete(connection: apsw.Connection, group: Group, floor: int) -> None:
    """Inside a transaction that the caller has begun: a group of this name goes on with epochs above the floor."""
    connection.execute(_KEEP_FLOOR, (*structs.astuple(group), floor))
    room = _room(connection, group)
    if room is None:
        return
    connection.execute(
        "UPDATE meta SET revision_floor = max(revision_floor, ?), incarnation_floor = max(incarnation_floor, ?)",
        (room.revision, room.newest),
    )
    for table in ("members", "departed", "leases", "moves"):
        connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (room.id,))  # noqa: S608
    connection.execute("DELETE FROM groups WHERE id = ?", (room.id,))


def _room(connection: apsw.Connection, group: Group) -> _Room | None:
    row = _one(connection, _GROUP, (group.namespace, group.hub, group.name))
    assert row is not None, "meta has exactly one row"
    if row[0] is None:
        return None
    number, born, revision, roster_revision, newest, moves, source, steered, *rest = row
    state = GroupState(source) if steered == "{}" else structs.replace(_decode_state(steered), source=source)
    return _Room(number, born, revision, roster_revision, newest, moves, state, *rest)


def _make_room(connection: apsw.Connection, group: Group) -> _Room:
    connection.execute(_MAKE_GROUP, (group.namespace, group.hub, group.name))
    room = _room(connection, group)
    assert room is not None
    return room


def _keep(connection: apsw.Connection, room: _Room) -> None:
    values = room.revision, room.roster_revision, room.newest, room.moves, room.state.source, room.began, room.id
    connection.execute(_KEEP_GROUP, values)


def _keep_state(connection: apsw.Connection, room: _Room) -> None:
    """In a column of its own, which a heartbeat does not write; "{}" while nothing is steered: nothing to decode."""
    steered = {name: value for name, value in structs.asdict(room.state).items() if value and name != "source"}
    connection.execute(_KEEP_STATE, (_encode(steered).decode(), room.id))


def _keep_action(connection: apsw.Connection, group: Group, action: Action) -> None:
    connection.execute(_KEEP_ACTION, (*structs.astuple(group), *structs.astuple(action)))
    connection.execute(_DROP_ACTIONS, (*structs.astuple(group), rules.ACTIONS_KEPT))


def _prune(connection: apsw.Connection, room: _Room) -> None:
    rows = connection.execute(_ALL_MEMBERS, (room.id,))
    before, present = room.state, {str(_decode_member(facts).owner) for facts, _, _ in rows}
    room.state = rules.prune_retired(before, present)
    if room.state is not before:
        _keep_state(connection, room)


def _member_row(connection: apsw.Connection, room: _Room, member: Member) -> _MemberRow:
    row = _one(connection, _MEMBER, (room.id, member.id))
    return _MemberRow(row[0] if row else None, _facts(member))


def _write_member(
    connection: apsw.Connection, room: _Room, member: Member, row: _MemberRow, at: float
) -> Member | None:
    """The member as stored; None when it has left."""
    if not row.is_news and not member.leaving:
        connection.execute(_HEARTBEAT, (room.revision, at, room.id, member.id))
        return structs.replace(member, mark=room.revision, heartbeat_at=at)
    old = _decode_member(row.before) if row.before is not None else None
    incarnation = rules.admit_incarnation(old, member, newest=room.newest, history=room.history)
    room.newest = max(room.newest, incarnation)
    me = structs.replace(member, incarnation=incarnation, mark=room.revision, heartbeat_at=at, leaving=False)
    if member.leaving and not _one(connection, _NAMED, (room.id, me.id, me.incarnation)):
        connection.execute(_LEAVE, (room.id, me.id, me.incarnation))
        if connection.changes():
            room.roster_revision = room.revision
        connection.execute(_KEEP_DEPARTED, (room.id, member.nonce, room.revision))
        connection.execute(_DROP_DEPARTED, (room.id, rules.DEPARTED_KEPT))
        return None
    new_facts = _facts(me)
    connection.execute(_JOIN, (room.id, me.id, me.incarnation, me.mark, at, new_facts))
    if row.before != new_facts:
        room.roster_revision = room.revision
    return me


def _facts(member: Member) -> str:
    """All but what moves with every heartbeat, and the wish to leave, which is no fact until it is granted."""
    return _encode(structs.replace(member, mark=0, heartbeat_at=0.0, leaving=False)).decode()


def _ledger(connection: apsw.Connection, room: _Room, me: Member | None, since: Cursor | None) -> Ledger:
    now = room.cursor
    whole = since is None or not rules.can_send_changes(since, now, room.born)
    seen = 0 if whole or since is None else since.revision
    roster = whole or room.roster_revision > seen
    lease_rows = (
        connection.execute(_ALL_LEASES, (room.id,)) if whole else connection.execute(_CHANGED_LEASES, (room.id, seen))
    )
    leases = tuple([_lease(row) for row in lease_rows])
    member_rows = (
        connection.execute(_ALL_MEMBERS, (room.id,)) if roster else connection.execute(_STILL_MEMBERS, (room.id, seen))
    )
    members = tuple(
        [
            structs.replace(_decode_member(facts), mark=mark, heartbeat_at=heartbeat_at)
            for facts, mark, heartbeat_at in member_rows
        ]
    )
    return Ledger(
        cursor=now,
        me=me,
        whole=whole,
        leases=leases,
        roster=roster,
        members=members,
        state=room.state,
        began=room.began,
        epoch_floor=room.epoch_floor,
    )


def _swap(connection: apsw.Connection, room: _Room, change: Change, at: float, swapped: Swapped) -> None:
    def mark_of(owner: Owner) -> int | None:
        row = _one(connection, _MARK, (room.id, owner.id, owner.incarnation))
        return row[0] if row else None

    before = _read_lease(connection, room, change.partition)
    if why := rules.why_refused(change, before, room.history, mark_of, room.epoch_floor):
        swapped.outcomes.append(Outcome(partition=change.partition, ok=False, why=why, lease=before))
        return
    after = rules.lease_after(change, room.revision, at)
    connection.execute(_KEEP_LEASE, _lease_row(room, after))
    if (move := rules.move_between(before, after)) is not None:
        room.moves += 1
        connection.execute(_KEEP_MOVE, (room.id, room.moves, *structs.astuple(move)))
    if (heir := rules.instance_to_wake(before, change)) is not None:
        swapped.heirs.append(heir)
    swapped.outcomes.append(Outcome(partition=change.partition, ok=True, lease=after))


def _read_lease(connection: apsw.Connection, room: _Room, partition: PartitionId) -> Lease | None:
    row = _one(connection, _LEASE, (room.id, partition))
    return _lease(row) if row else None


def _lease(row: tuple[Any, ...]) -> Lease:
    partition, owner, incarnation, epoch, revision, history, ttl_s, late, ended, reason, changed_at = row
    return Lease(
        partition=partition,
        owner=None if owner is None else Owner(owner, incarnation),
        epoch=epoch,
        revision=revision,
        history=history,
        ttl_s=ttl_s,
        late=bool(late),
        ended=bool(ended),
        reason=reason,
        changed_at=changed_at,
    )


def _lease_row(room: _Room, lease: Lease) -> tuple[Any, ...]:
    owner = (lease.owner.id, lease.owner.incarnation) if lease.owner else (None, None)
    return (room.id, lease.partition, *owner, *structs.astuple(lease)[2:-1])  # the last is for other stores alone


def _one(connection: apsw.Connection, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    for row in connection.execute(statement, values).fetchall():
        return row
    return None
