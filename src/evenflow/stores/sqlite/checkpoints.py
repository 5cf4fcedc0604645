"""The operations of a SQLite store on `progress.sqlite`. Each function is one short transaction, and blocks."""

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


class _CheckpointState(NamedTuple):
    """The state that a seal or a commit depends on, read in one statement."""

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
    """Call inside a transaction with the write lock, which keeps the record unchanged until the end."""
    record = _read(connection, group, checkpoint.partition).record
    return rules.begin_transaction(record, checkpoint, committed=committed, start=start)


def keep(connection: apsw.Connection, group: Group, record: Checkpoint, checkpoint: Checkpoint, at: float) -> None:
    """Writes the checkpoint beside the effects, based on the record that `admit` returned."""
    _write(connection, group, rules.commit(record, structs.replace(checkpoint, effects=True), at))


def checkpoints(connection: apsw.Connection, group: Group) -> list[Checkpoint]:
    return [_checkpoint(row) for row in connection.execute(_ALL, structs.astuple(group))]


def groups(connection: apsw.Connection) -> list[Group]:
    rows = connection.execute("SELECT DISTINCT namespace, hub, consumer_group FROM evenflow_checkpoints")
    return [Group(*row) for row in rows]


def highest_epoch(connection: apsw.Connection, group: Group) -> tuple[int, int]:
    """The history, and the highest epoch of the group's records and its floor; 0 if there are none."""
    rows: list[tuple[Any, ...]] = connection.execute(_HIGHEST, structs.astuple(group)).fetchall()
    history, epoch = rows[0]
    return history, epoch


def delete(connection: apsw.Connection, group: Group, floor: int) -> None:
    """Deletes the records in the caller's transaction. Epochs up to the floor are rejected from then on."""
    connection.execute(_DELETE, structs.astuple(group))
    connection.execute(_KEEP_FLOOR, (*structs.astuple(group), floor))


def _commit(connection: apsw.Connection, group: Group, checkpoint: Checkpoint, at: float) -> Outcome:
    history, floor, record = _read(connection, group, checkpoint.partition)
    if not rules.may_commit(record, checkpoint, history=history, floor=floor):
        return Outcome(partition=checkpoint.partition, ok=False, why="epoch")
    if not rules.is_late_commit(record, checkpoint):
        _write(connection, group, rules.commit(record, checkpoint, at))
    return Outcome(partition=checkpoint.partition, ok=True)


def _read(connection: apsw.Connection, group: Group, partition: PartitionId) -> _CheckpointState:
    rows: list[tuple[Any, ...]] = connection.execute(_SEEN, (*structs.astuple(group), partition)).fetchall()
    history, floor, *row = rows[0]
    return _CheckpointState(history, floor, None if row[0] is None else _checkpoint(tuple(row)))


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
