"""Encodes arguments for the functions of a PostgreSQL store, and decodes their results."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import convert, json, structs

from evenflow.model import Checkpoint, Cursor, GroupState, Lease, Ledger, Member, Outcome, Owner, Position
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Change

_LeaseRow: TypeAlias = tuple[
    str, str | None, int | None, int, int, int, float, bool, bool, str, float
]  # as _LEASE in functions
_MemberRow: TypeAlias = tuple[Member, int, int, float]
_RecordRow: TypeAlias = tuple[str, int, str, int | None, int, dict[str, Any], float, int, int, bool, float, int]
_LedgerRow: TypeAlias = tuple[
    str, int, int, int | None, float, bool, list[_LeaseRow], bool, list[_MemberRow], GroupState, int, int
]

_decode_ledger = json.Decoder(_LedgerRow).decode
_decode_swapped = json.Decoder(tuple[int, float, list[tuple[int, str, _LeaseRow | None]]]).decode
_decode_sealed = json.Decoder(tuple[_RecordRow | None, int, int]).decode
_decode_member = json.Decoder(Member).decode
_encode = json.Encoder().encode


class MemberFacts(NamedTuple):
    digest: str
    text: str


def facts_of(member: Member) -> MemberFacts:
    """The member without the fields that the store counts or that change with every heartbeat, and without
    `leaving`."""
    text = _encode(structs.replace(member, incarnation=0, mark=0, heartbeat_at=0.0, leaving=False))
    return MemberFacts(hashlib.md5(text, usedforsecurity=False).hexdigest(), text.decode())


def ledger_of(answer: str, member: Member | None) -> Ledger:
    (lineage, history, revision, incarnation, now_s, whole, leases, roster, members, state, began, floor) = (
        _decode_ledger(answer)
    )
    me = None
    if member is not None and incarnation is not None:
        me = structs.replace(member, incarnation=incarnation, mark=revision, heartbeat_at=now_s, leaving=False)
    return Ledger(
        cursor=Cursor(lineage, history, revision),
        me=me,
        whole=whole,
        leases=tuple([_lease(row) for row in leases]),
        roster=roster,
        members=tuple([_member(*row) for row in members]),
        state=state,
        began=began,
        epoch_floor=floor,
    )


def _member(facts: Member, incarnation: int, mark: int, heartbeat_at: float) -> Member:
    return structs.replace(facts, incarnation=incarnation, mark=mark, heartbeat_at=heartbeat_at)


def _lease(row: _LeaseRow) -> Lease:
    partition, owner, incarnation, epoch, revision, history, ttl_s, late, ended, reason, changed_at = row
    return Lease(
        partition=partition,
        owner=None if owner is None or incarnation is None else Owner(owner, incarnation),
        epoch=epoch,
        revision=revision,
        history=history,
        ttl_s=ttl_s,
        late=late,
        ended=ended,
        reason=reason,
        changed_at=changed_at,
    )


def newer_of(facts: str, member: Member) -> Member:
    """The newer member that has this member's row."""
    return structs.replace(_decode_member(facts), incarnation=member.incarnation + 1)


def changes_text(changes: Sequence[Change]) -> str:
    return _encode([_change_row(number, change) for number, change in enumerate(changes)]).decode()


def _change_row(number: int, change: Change) -> dict[str, object]:
    row = {
        "number": number,
        "partition": change.partition,
        "revision": change.revision,
        "history": change.history,
        "epoch": change.epoch,
        "ttl_s": change.ttl_s,
        "reason": change.reason,
        "late": change.late,
        "ended": change.ended,
    }
    if change.owner is not None:
        row |= {"owner": change.owner.id, "incarnation": change.owner.incarnation}
    if change.still is not None:
        silent, mark = change.still
        row |= {"still": silent.id, "still_incarnation": silent.incarnation, "mark": mark}
    return row


def outcomes_of(answer: str | None, changes: Sequence[Change]) -> list[Outcome]:
    if answer is None:
        return [Outcome(partition=change.partition, ok=False, why="owner") for change in changes]
    revision, now_s, refused = _decode_swapped(answer)
    outcomes = [
        Outcome(partition=change.partition, ok=True, lease=rules.lease_after(change, revision, now_s))
        for change in changes
    ]
    for number, why, row in refused:
        lease = None if row is None else _lease(row)
        outcomes[number] = Outcome(partition=changes[number].partition, ok=False, why=why, lease=lease)
    return outcomes


def checkpoints_text(checkpoints: Sequence[Checkpoint]) -> str:
    return _encode([_checkpoint_row(number, record) for number, record in enumerate(checkpoints)]).decode()


def _checkpoint_row(number: int, record: Checkpoint) -> dict[str, object]:
    return {
        "number": number,
        "partition": record.partition,
        "epoch": record.epoch,
        "offset": record.position.offset,
        "sequence": record.position.sequence,
        "ordinal": record.ordinal,
        "notes": notes_text(record),
        "event_at": record.event_at,
        "begun": record.begun,
        "fruitless": record.fruitless,
        "effects": record.effects,
        "effects_to": record.effects_to,
        "edition": record.edition,
    }


def notes_text(record: Checkpoint) -> str:
    return _encode(record.notes).decode()


class SealResult(NamedTuple):
    record: Checkpoint | None
    history: int
    """The store's history."""
    floor: int
    """The epoch floor of the group's name."""


def sealed_of(answer: str) -> SealResult:
    row, history, floor = _decode_sealed(answer)
    return SealResult(None if row is None else _checkpoint(row), history, floor)


def checkpoint_of(row: tuple[Any, ...]) -> Checkpoint:
    """Decodes a row of the table, whose notes are JSON text."""
    notes = json.decode(row[5])
    return _checkpoint(convert((*row[:5], notes, *row[6:]), _RecordRow))


def _checkpoint(row: _RecordRow) -> Checkpoint:
    partition, epoch, offset, sequence, ordinal, notes, event_at, begun, fruitless, effects, changed_at, edition = row
    return Checkpoint(
        partition=partition,
        epoch=epoch,
        position=Position(offset, sequence),
        ordinal=ordinal,
        edition=edition,
        notes=notes,
        event_at=event_at,
        begun=begun,
        fruitless=fruitless,
        effects=effects,
        changed_at=changed_at,
    )


def state_of(source: str, pauses: str, retired: str, redrives: str) -> GroupState:
    return convert(
        {"source": source, "pauses": json.decode(pauses), "retired": json.decode(retired)}
        | {"redrives": json.decode(redrives)},
        GroupState,
    )


def state_texts(state: GroupState) -> tuple[str, str, str]:
    return _encode(state.pauses).decode(), _encode(state.retired).decode(), _encode(state.redrives).decode()
