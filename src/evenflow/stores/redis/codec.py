"""Encodes records as script arguments and stored values of a Redis store, and decodes them.

Scripts only need a few numbers. These come first, one per line; the rest is JSON that scripts do not parse. Numbers of
64 bits are written as "high:low", because Lua's numbers are exact only up to 2^53.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Struct, json, structs

from evenflow.model import (
    EPOCH_HISTORY_BITS,
    Action,
    Checkpoint,
    Cursor,
    Group,
    GroupState,
    Lease,
    Ledger,
    Member,
    Move,
    Owner,
    Position,
    Wish,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.model import Change, PartitionId

LOW = (1 << EPOCH_HISTORY_BITS) - 1
UNSEEN = ("", "0", "0", "")
"""Stands for no cursor."""


@lru_cache(maxsize=1024)
def keys(prefix: str, group: Group, names: tuple[str, ...]) -> tuple[str, ...]:
    """Keys of one group. They share a hash tag, so that a cluster keeps them in one slot."""
    tag = "/".join(quote(part, safe="") for part in structs.astuple(group))
    return tuple(f"{prefix}:{{{tag}}}:{name}" for name in names)


def channels(prefix: str, group: Group, instance: str) -> tuple[str, ...]:
    """The channels that wake all instances of the group, and this instance."""
    return keys(prefix, group, ("wake", f"wake:{instance}"))


HEARTBEAT_KEYS = (
    "group",
    "trail",
    "members",
    "marks",
    "heartbeats",
    "leases",
    "changes",
    "owned",
    "retired",
    "records",
)
SWAP_KEYS = ("group", "trail", "members", "marks", "leases", "changes", "owned", "moves")
SEAL_KEYS = ("group", "trail", "records", "members")
COMMIT_KEYS = ("group", "records")
OPERATION_KEYS = (*HEARTBEAT_KEYS, "moves", "actions")


class _LeaseBody(Struct, array_like=True):
    partition: str
    owner: tuple[str, int] | None
    epoch: int
    history: int
    ttl_s: float
    late: bool
    ended: bool
    reason: str


class _RecordBody(Struct, array_like=True):
    partition: str
    offset: str
    sequence: int | None
    event_at: float
    notes: dict[str, Any]


class _Steered(Struct, omit_defaults=True):
    """The part of a group's state that only operator requests change."""

    pauses: dict[str, Wish] = {}
    redrives: dict[str, int] = {}


_encode = json.Encoder().encode
_decode_member = json.Decoder(Member).decode
_decode_lease = json.Decoder(_LeaseBody).decode
_decode_record = json.Decoder(_RecordBody).decode
_decode_state = json.Decoder(_Steered).decode
_decode_request = json.Decoder(Wish).decode
_decode_action = json.Decoder(Action).decode


# --- numbers
def wide(number: int) -> str:
    return f"{number >> EPOCH_HISTORY_BITS}:{number & LOW}"


def narrow(text: bytes) -> int:
    high, _, low = text.partition(b":")
    return (int(high) << EPOCH_HISTORY_BITS) + int(low)


def owner_text(owner: Owner | None) -> str:
    return f"{wide(owner.incarnation)}#{owner.id}" if owner else ""


def _owner(text: bytes) -> Owner:
    incarnation, _, name = text.partition(b"#")
    return Owner(name.decode(), narrow(incarnation))


# --- cursors
def cursor_args(cursor: Cursor | None) -> tuple[str, str, str, str]:
    if cursor is None:
        return UNSEEN
    return cursor.lineage or "?", str(cursor.history), str(cursor.revision), cursor.stamp


def cursor(reply: Sequence[bytes]) -> Cursor:
    lineage, history, revision, stamp = reply
    return Cursor(lineage.decode(), int(history), int(revision), stamp.decode())


# --- members
def member_args(member: Member) -> tuple[str, ...]:
    """The member without the fields that the store counts, and without `leaving`, which is only a request."""
    facts = structs.replace(member, incarnation=0, mark=0, heartbeat_at=0.0, leaving=False)
    leaving = "1" if member.leaving else "0"
    incarnation = wide(member.incarnation)
    return member.id, incarnation, member.nonce, str(member.ttl_s), _encode(facts).decode(), leaving, member.source


def member(row: bytes, mark: bytes = b"0", heartbeat_at: bytes = b"0") -> Member:
    incarnation, _, _, facts = row.split(b"\n", 3)
    return structs.replace(
        _decode_member(facts), incarnation=narrow(incarnation), mark=int(mark), heartbeat_at=float(heartbeat_at)
    )


# --- leases
def change_args(change: Change) -> tuple[str, ...]:
    owner = (change.owner.id, change.owner.incarnation) if change.owner else None
    body = _LeaseBody(
        change.partition,
        owner,
        change.epoch,
        change.history,
        change.ttl_s,
        change.late,
        change.ended,
        change.reason,
    )
    still, mark = change.still or (None, None)
    return (
        change.partition,
        str(change.revision),
        str(change.history),
        wide(change.epoch),
        owner_text(change.owner),
        owner_text(still),
        "" if mark is None else str(mark),
        _encode(body).decode(),
    )


def lease(text: bytes) -> Lease:
    revision, changed_at, _, encoded = text.split(b"\n", 3)
    body = _decode_lease(encoded)
    return Lease(
        partition=body.partition,
        owner=Owner(*body.owner) if body.owner else None,
        epoch=body.epoch,
        revision=int(revision),
        history=body.history,
        ttl_s=body.ttl_s,
        late=body.late,
        ended=body.ended,
        reason=body.reason,
        changed_at=float(changed_at),
    )


def move(text: bytes) -> Move:
    at, before, encoded = text.split(b"\n", 2)
    body = _decode_lease(encoded)
    return Move(
        partition=body.partition,
        before=_owner(before).id if before else None,
        after=body.owner[0] if body.owner else None,
        epoch=body.epoch,
        reason=body.reason,
        at=float(at),
    )


# --- ledgers
def ledger(reply: Sequence[Any], me: Member | None) -> Ledger:
    seen, whole, roster, leases, rows, source, steered, retired, began, floor = reply
    return Ledger(
        cursor=cursor(seen),
        me=me,
        whole=bool(whole),
        leases=tuple([lease(text) for text in leases]),
        roster=bool(roster),
        members=tuple([member(row, mark, heartbeat_at) for _, row, mark, heartbeat_at in by(4, rows)]),
        state=state(source, steered, retired),
        began=int(began),
        epoch_floor=narrow(floor),
    )


def state(source: bytes, steered: bytes, retired: Sequence[bytes]) -> GroupState:
    decoded = _decode_state(steered)
    requests = {str(_owner(owner)): _decode_request(request) for owner, request in by(2, retired)}
    return GroupState(source.decode(), decoded.pauses, requests, decoded.redrives)


def state_text(state: GroupState) -> str:
    return _encode(_Steered(state.pauses, state.redrives)).decode()


def retired_args(state: GroupState) -> Iterator[str]:
    for owner, request in state.retired.items():
        instance, _, incarnation = owner.rpartition("#")
        yield owner_text(Owner(instance, int(incarnation)))
        yield _encode(request).decode()


# --- progress
def default_args(checkpoint: Checkpoint) -> tuple[str, str, str]:
    """Ordinal, effects and body."""
    position = checkpoint.position
    body = _RecordBody(checkpoint.partition, position.offset, position.sequence, checkpoint.event_at, checkpoint.notes)
    return wide(checkpoint.ordinal), "1" if checkpoint.effects else "0", _encode(body).decode()


def commit_args(checkpoint: Checkpoint) -> tuple[str, ...]:
    ordinal, effects, body = default_args(checkpoint)
    counts = f"{checkpoint.edition} {wide(checkpoint.begun)} {checkpoint.fruitless}"
    return checkpoint.partition, wide(checkpoint.epoch), ordinal, counts, effects, body


def checkpoint(text: bytes, partition: PartitionId | None = None) -> Checkpoint:
    epoch, ordinal, begun, fruitless, effects, changed_at, rest = text.split(b"\n", 6)
    edition, _, encoded = rest.rpartition(b"\n")  # older records have no edition; JSON has no line breaks
    body = _decode_record(encoded)
    return Checkpoint(
        partition=body.partition if partition is None else partition,
        epoch=narrow(epoch),
        position=Position(body.offset, body.sequence),
        ordinal=narrow(ordinal),
        edition=int(edition or 0),
        notes=body.notes,
        event_at=body.event_at,
        begun=narrow(begun),
        fruitless=int(fruitless),
        effects=effects == b"1",
        changed_at=float(changed_at),
    )


# --- actions
def action_text(action: Action) -> str:
    return _encode(action).decode()


def action(text: bytes) -> Action:
    at, _, encoded = text.partition(b"\n")
    return structs.replace(_decode_action(encoded), at=float(at))


# --- the list of groups
def group_text(group: Group) -> str:
    return _encode(structs.astuple(group)).decode()


def group(text: bytes) -> Group:
    return Group(*json.decode(text, type=tuple[str, str, str]))


def by(count: int, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Splits the values into tuples of this length."""
    return zip(*[iter(values)] * count, strict=True)
