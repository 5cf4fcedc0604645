"""What a SQLite store does in `progress.sqlite`, each function one short transaction. They block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import json, structs

from evenflow.local.database import immediate
from evenflow.model import Checkpoint, Group, Outcome, Position
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from evenflow.model import PartitionId

_COLUMNS = """
partition, epoch, "offset", sequence, ordinal, edition, notes, event_at, begun, fruitless, effects, changed_at"""
_GROUP = "namespace = ?1 AND hub = ?2 AND consumer_group = ?3"
_ALL = f"SELECT {_COLUMNS} FROM evenflow_checkpoints WHERE {_GROUP}"  # noqa: S608
_SEEN = f"""
SELECT history, coalesce((SELECT epoch FROM evenflow_epoch_floors WHERE {_GROUP}), 0), {_COLUMNS}
FROM evenflow_meta LEFT JOIN evenflow_checkpoints ON {_GROUP} AND partition = ?4"""  # noqa: S608
_KEEP = f"""
INSERT OR REPLACE INTO evenflow_checkpoints (namespace, hub, consumer_group, {_COLUMNS})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""  # noqa: S608
_HIGHEST = f"""
SELECT history, max(coalesce((SELECT max(epoch) FROM evenflow_checkpoints WHERE {_GROUP}), 0),
                    coalesce((SELECT epoch FROM evenflow_epoch_floors WHERE {_GROUP}), 0))
FROM evenflow_meta"""  # noqa: S608
_DELETE = f"DELETE FROM evenflow_checkpoints WHERE {_GROUP}"  # noqa: S608
_KEEP_FLOOR = "INSERT OR REPLACE INTO evenflow_epoch_floors VALUES (?, ?, ?, ?)"


class _Seen(NamedTuple):
    """What a seal or a commit decides on, read in one statement."""

    history: int
    floor: int
    record: Checkpoint | None


def seal(
    connection: apsw.Connection,
    group: Group,
    partition: PartitionId,
    epoch: int,
    default: Checkpoint,
    at: float,
    *,
    unplanned: bool,
) -> Checkpoint:
    with immediate(connection):
        history, floor, record = _read(connection, group, partition)
        written = rules.seal(record, partition, epoch, default, at, unplanned=unplanned, history=history, floor=floor)
        if written is None:
            assert record is not None
            return record
        return _write(connection, group, written)


def commit(connection: apsw.Connection, group: Group, checkpoints: Sequence[Checkpoint], at: float) -> list[Outcome]:
    with immediate(connection):
        return [_commit(connection, group, checkpoint, at) for checkpoint in checkpoints]


def admit(
    connection: apsw.Connection, group: Group, checkpoint: Checkpoint, *, committed: int, start: int
) -> Checkpoint:
    """Inside a transaction that holds the write lock: nobody moves this record before it ends."""
    record = _read(connection, group, checkpoint.partition).record
    return rules.begin_transaction(record, checkpoint, committed=committed, start=start)


def keep(connection: apsw.Connection, group: Group, record: Checkpoint, checkpoint: Checkpoint, at: float) -> None:
    """The checkpoint beside the effects, on the record that was admitted."""
    _write(connection, group, rules.commit(record, structs.replace(checkpoint, effects=True), at))


def checkpoints(connection: apsw.Connection, group: Group) -> list[Checkpoint]:
    return [_checkpoint(row) for row in connection.execute(_ALL, structs.astuple(group))]


def groups(connection: apsw.Connection) -> list[Group]:
    rows = connection.execute("SELECT DISTINCT namespace, hub, consumer_group FROM evenflow_checkpoints")
    return [Group(*row) for row in rows]


def highest_epoch(connection: apsw.Connection, group: Group) -> tuple[int, int]:
    """The history, and the highest epoch of the group's records and of its floor; 0: there is neither."""
    rows: list[tuple[Any, ...]] = connection.execute(_HIGHEST, structs.astuple(group)).fetchall()
    history, epoch = rows[0]
    return history, epoch


def delete(connection: apsw.Connection, group: Group, floor: int) -> None:
    """Inside a transaction that the caller has begun: nothing counts any more under an epoch up to the floor."""
    connection.execute(_DELETE, structs.astuple(group))
    connection.execute(_KEEP_FLOOR, (*structs.astuple(group), floor))


def _commit(connection: apsw.Connection, group: Group, checkpoint: Checkpoint, at: float) -> Outcome:
    history, floor, record = _read(connection, group, checkpoint.partition)
    if not rules.may_commit(record, checkpoint, history=history, floor=floor):
        return Outcome(partition=checkpoint.partition, ok=False, why="epoch")
    if not rules.is_late_commit(record, checkpoint):
        _write(connection, group, rules.commit(record, checkpoint, at))
    return Outcome(partition=checkpoint.partition, ok=True)


def _read(connection: apsw.Connection, group: Group, partition: PartitionId) -> _Seen:
    rows: list[tuple[Any, ...]] = connection.execute(_SEEN, (*structs.astuple(group), partition)).fetchall()
    history, floor, *row = rows[0]
    return _Seen(history, floor, None if row[0] is None else _checkpoint(tuple(row)))


def _write(connection: apsw.Connection, group: Group, record: Checkpoint) -> Checkpoint:
    notes = json.encode(record.notes).decode()
    position = record.position.offset, record.position.sequence
    counted = record.event_at, record.begun, record.fruitless, record.effects, record.changed_at
    values = (record.partition, record.epoch, *position, record.ordinal, record.edition, notes, *counted)
    connection.execute(_KEEP, (*structs.astuple(group), *values))
    return record


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    partition, epoch, offset, sequence, ordinal, edition, notes, event_at, begun, fruitless, effects, changed_at = row
    return Checkpoint(
        partition=partition,
        epoch=epoch,
        position=Position(offset, sequence),
        ordinal=ordinal,
        edition=edition,
        notes=json.decode(notes),
        event_at=event_at,
        begun=begun,
        fruitless=fruitless,
        effects=bool(effects),
        changed_at=changed_at,
    )
