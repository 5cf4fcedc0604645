"""The operations of a SQLite store on `leases.sqlite`. Each function is one short transaction, and blocks.

SQLite caches prepared statements by their text, so all texts are constants. No function reads leases that have not
changed since the caller's cursor.
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
_REMOVE_SILENT = """
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


class LostWritesDetected(Exception):
    """A heartbeat proved that writes were lost. Raise the history in both files and repeat the heartbeat."""

    def __init__(self, history: int) -> None:
        super().__init__(history)
        self.history = history


class HeartbeatResult(NamedTuple):
    ledger: Ledger
    state_changed: bool


class SwapResult(NamedTuple):
    outcomes: list[Outcome]
    heirs: list[str]


@dataclass(slots=True)
class _GroupRow:
    """One group's row, as read and changed in this transaction."""

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
    """A member's stored facts (None if there is no row), and the facts of the current heartbeat."""

    before: str | None
    after: str

    @property
    def has_changed(self) -> bool:
        return self.before != self.after


def heartbeat(
    connection: apsw.Connection, group: Group, member: Member, since: Cursor | None, at: float
) -> HeartbeatResult:
    with immediate(connection):
        group_row = _read_group(connection, group) or _create_group(connection, group)
        row = _member_row(connection, group_row, member)
        if row.has_changed and _one(connection, _HAS_LEFT, (group_row.id, member.nonce)):
            return HeartbeatResult(_ledger(connection, group_row, None, since), state_changed=False)
        if (history := rules.history_after(since, group_row.cursor)) > group_row.history:
            raise LostWritesDetected(history)
        group_row.revision += 1
        group_row.began = rules.first_history(group_row.began, since, group_row.history)
        me = _write_member(connection, group_row, member, row, at)
        if since is not None:
            connection.execute(_REMOVE_SILENT, (group_row.id, since.revision, at - rules.FORGOTTEN_AFTER_S))
            if connection.changes():
                group_row.roster_revision = group_row.revision
        if group_row.state.retired and group_row.roster_revision == group_row.revision:
            _prune(connection, group_row)
        adopts = bool(member.source) and not group_row.state.source
        if adopts:
            group_row.state = structs.replace(group_row.state, source=member.source)
        _write_group(connection, group_row)
        return HeartbeatResult(_ledger(connection, group_row, me, since), adopts)


def swap(connection: apsw.Connection, group: Group, changes: Sequence[Change], at: float) -> SwapResult:
    with immediate(connection):
        group_row = _read_group(connection, group)
        if group_row is None:
            return SwapResult([Outcome(partition=change.partition, ok=False, why="owner") for change in changes], [])
        group_row.revision += 1
        swapped = SwapResult([], [])
        for change in changes:
            _swap(connection, group_row, change, at, swapped)
        if any(outcome.ok for outcome in swapped.outcomes):
            connection.execute(_DROP_MOVES, (group_row.id, group_row.moves - rules.MOVES_KEPT))
            _write_group(connection, group_row)
        return swapped


def steer(connection: apsw.Connection, group: Group, steering: Steering, action: Action, at: float) -> GroupState:
    with immediate(connection):
        group_row = _read_group(connection, group)
        if group_row is None:
            raise rules.no_such_group(group)
        kept = rules.stamp_action(action, at)
        group_row.state = rules.steer(group_row.state, steering, rules.request_of(kept))
        group_row.revision += 1
        _write_group(connection, group_row)
        _keep_state(connection, group_row)
        _keep_action(connection, group, kept)
        return group_row.state


def record(connection: apsw.Connection, group: Group, action: Action, at: float) -> None:
    with immediate(connection):
        _keep_action(connection, group, rules.stamp_action(action, at))


def actions(connection: apsw.Connection, group: Group, limit: int) -> list[Action]:
    rows = connection.execute(_ACTIONS, (*structs.astuple(group), limit))
    return [Action(kind=kind, by=by, why=why, what=what, at=at) for kind, by, why, what, at in rows]


def peek(connection: apsw.Connection, group: Group) -> Ledger | None:
    connection.execute("BEGIN")
    try:
        group_row = _read_group(connection, group)
        return _ledger(connection, group_row, None, None) if group_row else None
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
    """The highest epoch of the group's leases and its floor, or None if the group does not exist."""
    group_row = _read_group(connection, group)
    if group_row is None:
        return None
    row = _one(connection, _HIGHEST, (*structs.astuple(group), group_row.id))
    assert row is not None
    return int(row[0])


def delete(connection: apsw.Connection, group: Group, floor: int) -> None:
    """Deletes the group in the caller's transaction. A later group of this name uses epochs above the floor."""
    connection.execute(_KEEP_FLOOR, (*structs.astuple(group), floor))
    group_row = _read_group(connection, group)
    if group_row is None:
        return
    connection.execute(
        "UPDATE meta SET revision_floor = max(revision_floor, ?), incarnation_floor = max(incarnation_floor, ?)",
        (group_row.revision, group_row.newest),
    )
    for table in ("members", "departed", "leases", "moves"):
        connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group_row.id,))  # noqa: S608
    connection.execute("DELETE FROM groups WHERE id = ?", (group_row.id,))


def _read_group(connection: apsw.Connection, group: Group) -> _GroupRow | None:
    row = _one(connection, _GROUP, (group.namespace, group.hub, group.name))
    assert row is not None, "meta has exactly one row"
    if row[0] is None:
        return None
    number, born, revision, roster_revision, newest, moves, source, steered, *rest = row
    state = GroupState(source) if steered == "{}" else structs.replace(_decode_state(steered), source=source)
    return _GroupRow(number, born, revision, roster_revision, newest, moves, state, *rest)


def _create_group(connection: apsw.Connection, group: Group) -> _GroupRow:
    connection.execute(_MAKE_GROUP, (group.namespace, group.hub, group.name))
    group_row = _read_group(connection, group)
    assert group_row is not None
    return group_row


def _write_group(connection: apsw.Connection, group_row: _GroupRow) -> None:
    values = (
        group_row.revision,
        group_row.roster_revision,
        group_row.newest,
        group_row.moves,
        group_row.state.source,
        group_row.began,
        group_row.id,
    )
    connection.execute(_KEEP_GROUP, values)


def _keep_state(connection: apsw.Connection, group_row: _GroupRow) -> None:
    """Writes operator requests to a column of their own, which heartbeats do not write. Without requests it is "{}", so
    that reads need not decode it."""
    steered = {name: value for name, value in structs.asdict(group_row.state).items() if value and name != "source"}
    connection.execute(_KEEP_STATE, (_encode(steered).decode(), group_row.id))


def _keep_action(connection: apsw.Connection, group: Group, action: Action) -> None:
    connection.execute(_KEEP_ACTION, (*structs.astuple(group), *structs.astuple(action)))
    connection.execute(_DROP_ACTIONS, (*structs.astuple(group), rules.ACTIONS_KEPT))


def _prune(connection: apsw.Connection, group_row: _GroupRow) -> None:
    rows = connection.execute(_ALL_MEMBERS, (group_row.id,))
    before, present = group_row.state, {str(_decode_member(facts).owner) for facts, _, _ in rows}
    group_row.state = rules.prune_retired(before, present)
    if group_row.state is not before:
        _keep_state(connection, group_row)


def _member_row(connection: apsw.Connection, group_row: _GroupRow, member: Member) -> _MemberRow:
    row = _one(connection, _MEMBER, (group_row.id, member.id))
    return _MemberRow(row[0] if row else None, _facts(member))


def _write_member(
    connection: apsw.Connection, group_row: _GroupRow, member: Member, row: _MemberRow, at: float
) -> Member | None:
    """Returns the member as stored, or None if it has left."""
    if not row.has_changed and not member.leaving:
        connection.execute(_HEARTBEAT, (group_row.revision, at, group_row.id, member.id))
        return structs.replace(member, mark=group_row.revision, heartbeat_at=at)
    old = _decode_member(row.before) if row.before is not None else None
    incarnation = rules.admit_incarnation(old, member, newest=group_row.newest, history=group_row.history)
    group_row.newest = max(group_row.newest, incarnation)
    me = structs.replace(member, incarnation=incarnation, mark=group_row.revision, heartbeat_at=at, leaving=False)
    if member.leaving and not _one(connection, _NAMED, (group_row.id, me.id, me.incarnation)):
        connection.execute(_LEAVE, (group_row.id, me.id, me.incarnation))
        if connection.changes():
            group_row.roster_revision = group_row.revision
        connection.execute(_KEEP_DEPARTED, (group_row.id, member.nonce, group_row.revision))
        connection.execute(_DROP_DEPARTED, (group_row.id, rules.DEPARTED_KEPT))
        return None
    new_facts = _facts(me)
    connection.execute(_JOIN, (group_row.id, me.id, me.incarnation, me.mark, at, new_facts))
    if row.before != new_facts:
        group_row.roster_revision = group_row.revision
    return me


def _facts(member: Member) -> str:
    """The member without the fields that change with every heartbeat, and without `leaving`, which is only a
    request."""
    return _encode(structs.replace(member, mark=0, heartbeat_at=0.0, leaving=False)).decode()


def _ledger(connection: apsw.Connection, group_row: _GroupRow, me: Member | None, since: Cursor | None) -> Ledger:
    now = group_row.cursor
    whole = since is None or not rules.can_send_changes(since, now, group_row.born)
    seen = 0 if whole or since is None else since.revision
    roster = whole or group_row.roster_revision > seen
    lease_rows = (
        connection.execute(_ALL_LEASES, (group_row.id,))
        if whole
        else connection.execute(_CHANGED_LEASES, (group_row.id, seen))
    )
    leases = tuple([_lease(row) for row in lease_rows])
    member_rows = (
        connection.execute(_ALL_MEMBERS, (group_row.id,))
        if roster
        else connection.execute(_STILL_MEMBERS, (group_row.id, seen))
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
        state=group_row.state,
        began=group_row.began,
        epoch_floor=group_row.epoch_floor,
    )


def _swap(connection: apsw.Connection, group_row: _GroupRow, change: Change, at: float, swapped: SwapResult) -> None:
    def mark_of(owner: Owner) -> int | None:
        row = _one(connection, _MARK, (group_row.id, owner.id, owner.incarnation))
        return row[0] if row else None

    before = _read_lease(connection, group_row, change.partition)
    if why := rules.why_refused(change, before, group_row.history, mark_of, group_row.epoch_floor):
        swapped.outcomes.append(Outcome(partition=change.partition, ok=False, why=why, lease=before))
        return
    after = rules.lease_after(change, group_row.revision, at)
    connection.execute(_KEEP_LEASE, _lease_row(group_row, after))
    if (move := rules.move_between(before, after)) is not None:
        group_row.moves += 1
        connection.execute(_KEEP_MOVE, (group_row.id, group_row.moves, *structs.astuple(move)))
    if (heir := rules.instance_to_wake(before, change)) is not None:
        swapped.heirs.append(heir)
    swapped.outcomes.append(Outcome(partition=change.partition, ok=True, lease=after))


def _read_lease(connection: apsw.Connection, group_row: _GroupRow, partition: PartitionId) -> Lease | None:
    row = _one(connection, _LEASE, (group_row.id, partition))
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


def _lease_row(group_row: _GroupRow, lease: Lease) -> tuple[Any, ...]:
    owner = (lease.owner.id, lease.owner.incarnation) if lease.owner else (None, None)
    return (
        group_row.id,
        lease.partition,
        *owner,
        *structs.astuple(lease)[2:-1],
    )  # the last field is only used by other stores


def _one(connection: apsw.Connection, statement: str, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    for row in connection.execute(statement, values).fetchall():
        return row
    return None
