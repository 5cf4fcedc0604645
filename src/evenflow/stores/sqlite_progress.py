"""What a SQLite store does in `progress.sqlite`, each function one short transaction. They block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import json, structs

from evenflow.local.database import immediate
from evenflow.model import Checkpoint, Group, Outcome, Position
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from evenflow.model import PartitionId

_ALL = """
SELECT partition, epoch, "offset", sequence, ordinal, notes, event_at, begun, fruitless, effects, changed_at
FROM evenflow_checkpoints
WHERE namespace = ? AND hub = ? AND consumer_group = ?"""
_RECORD = _ALL + " AND partition = ?"
_KEEP = """
INSERT OR REPLACE INTO evenflow_checkpoints
    (namespace, hub, consumer_group, partition, epoch, "offset", sequence, ordinal, notes,
     event_at, begun, fruitless, effects, changed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


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
        record = _read(connection, group, partition)
        written = rules.sealed(record, partition, epoch, default, at, unplanned=unplanned)
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
    record = _read(connection, group, checkpoint.partition)
    return rules.admits(record, checkpoint, committed=committed, start=start)


def keep(connection: apsw.Connection, group: Group, record: Checkpoint, checkpoint: Checkpoint, at: float) -> None:
    """The checkpoint beside the effects, on the record that was admitted."""
    _write(connection, group, rules.committed(record, structs.replace(checkpoint, effects=True), at))


def checkpoints(connection: apsw.Connection, group: Group) -> list[Checkpoint]:
    return [_checkpoint(row) for row in connection.execute(_ALL, structs.astuple(group))]


def groups(connection: apsw.Connection) -> list[Group]:
    rows = connection.execute("SELECT DISTINCT namespace, hub, consumer_group FROM evenflow_checkpoints")
    return [Group(*row) for row in rows]


def delete(connection: apsw.Connection, group: Group) -> None:
    with immediate(connection):
        connection.execute(
            "DELETE FROM evenflow_checkpoints WHERE namespace = ? AND hub = ? AND consumer_group = ?",
            structs.astuple(group),
        )


def _commit(connection: apsw.Connection, group: Group, checkpoint: Checkpoint, at: float) -> Outcome:
    record = _read(connection, group, checkpoint.partition)
    if record is None or not rules.may_commit(record, checkpoint):
        return Outcome(partition=checkpoint.partition, ok=False, why="epoch")
    if not rules.overtaken(record, checkpoint):
        _write(connection, group, rules.committed(record, checkpoint, at))
    return Outcome(partition=checkpoint.partition, ok=True)


def _read(connection: apsw.Connection, group: Group, partition: PartitionId) -> Checkpoint | None:
    rows = connection.execute(_RECORD, (*structs.astuple(group), partition)).fetchall()
    return _checkpoint(rows[0]) if rows else None


def _write(connection: apsw.Connection, group: Group, record: Checkpoint) -> Checkpoint:
    notes = json.encode(record.notes).decode()
    position = record.position.offset, record.position.sequence
    counted = record.event_at, record.begun, record.fruitless, record.effects, record.changed_at
    values = (record.partition, record.epoch, *position, record.ordinal, notes, *counted)
    connection.execute(_KEEP, (*structs.astuple(group), *values))
    return record


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    partition, epoch, offset, sequence, ordinal, notes, event_at, begun, fruitless, effects, changed_at = row
    return Checkpoint(
        partition=partition,
        epoch=epoch,
        position=Position(offset, sequence),
        ordinal=ordinal,
        notes=json.decode(notes),
        event_at=event_at,
        begun=begun,
        fruitless=fruitless,
        effects=bool(effects),
        changed_at=changed_at,
    )
