"""Records as the metadata of blobs, and back.

What Azure's processors read stands under their names, as they write it: `ownerid`; `offset` and `sequencenumber`. All
of ours is one more value beside it, under `evenflow`: JSON in plain ASCII. They ignore it, and drop it when they
write; a blob without it was last written by one of them, or by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from msgspec import DecodeError, Struct, ValidationError, json, structs

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import Checkpoint, Group, GroupState, Lease, Member, Position
from evenflow.stores.third_party import DisplacedOwner  # noqa: TC001 - msgspec looks it up

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
OURS = "evenflow"
METADATA_BYTES_MAX = 7_000
"""A blob has room for 8 KB of metadata, names and headers included. What is larger goes elsewhere."""
REASON_CHARS_MAX = 300

_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
Record = TypeVar("Record")


class LeaseNote(Struct, omit_defaults=True):
    lease: Lease
    mark: int = 0
    """Of the owner's heartbeat that renewed it last; 0: none has yet."""
    robbed: DisplacedOwner | None = None
    """Until the owner knows that it has stopped. Whoever owns it next waits, too."""
    record: Checkpoint | None = None
    """The record, without notes, as the last owner of ours had committed it by its last heartbeat, or when it let go.
    """
    v: int = VERSION


class RowNote(Struct, omit_defaults=True):
    """A member's row. Facts that have no room here are the blob's content."""

    mark: int
    heartbeat_at: float
    news: int
    """The mark with which it last changed in more than its mark."""
    member: Member | None = None
    leaving: bool = False
    """It looks whether a lease names it, and goes if none does: nothing is to be passed to it."""
    v: int = VERSION


class RecordNote(Struct, omit_defaults=True):
    record: Checkpoint
    notes_at: str = ""
    """Where the notes are, when they have no room here."""
    made_in: str = ""
    """The group's lineage when a seal made it, until the first commit."""
    v: int = VERSION


class Facts(Struct, omit_defaults=True):
    """What the store knows of a group, whoever is in it."""

    lineage: str
    history: int = 0
    newest: int = 0
    """The highest incarnation given or seen."""
    born: int = 0
    """When it was made, or made again."""
    roster: int = 0
    """When a row was last removed."""
    deleted: bool = False
    """It is kept, so that whoever makes the group again goes on counting."""
    began: int = 0
    """The history in which the group began."""
    epoch_floor: int = 0
    """Of groups of this name that were deleted."""
    departed: tuple[str, ...] = ()
    """The nonces of those who left last."""

    v: int = VERSION


class Charter(Struct):
    """The content of a group's blob: its names as people write them, and its state."""

    group: Group
    state: GroupState = GroupState()
    v: int = VERSION


class Floor(Struct, omit_defaults=True):
    """What outlives processors of another make, who drop what is ours from the blobs that they write."""

    epoch: int = 0
    """No lease gets a lower one."""
    foreign: bool = False
    """Since the last seal one of another make was the owner, so that its checkpoint counts whatever it says."""
    sealed: Checkpoint | None = None
    """The record, without notes, as the last seal left it."""
    made_in: str = ""
    """The group's lineage, if that seal made the record."""
    v: int = VERSION


def text_of(record: Struct) -> str:
    """JSON that may stand in a header: printable ASCII without blanks."""
    return _UNPRINTABLE.sub(_escaped, json.encode(record).decode())


def read(text: str | bytes, kind: type[Record], where: str) -> Record:
    """Misconfigured when a newer evenflow wrote it, Corrupt when nobody did."""
    try:
        found = json.decode(text, type=kind)
    except (DecodeError, ValidationError) as error:
        _refuse_newer(text, where)
        raise Corrupt(
            f"What evenflow keeps in blob {where!r} cannot be read: somebody has changed it. Restore the blob, or stop"
            " all instances of the group and delete the blob: that counts as lost writes, and they go on from what"
            " else there is."
        ) from error
    if getattr(found, "v", VERSION) > VERSION:
        _refuse_newer(text, where)
    return found


def _refuse_newer(text: str | bytes, where: str) -> None:
    try:
        version = json.decode(text, type=dict[str, object]).get("v")
    except (DecodeError, ValidationError):
        return
    if isinstance(version, int) and version > VERSION:
        raise Misconfigured(
            f"Blob {where!r} was written by a newer evenflow (layout {version}, and this one knows {VERSION})."
            " Upgrade this one, or give it another container."
        )


def _escaped(found: re.Match[str]) -> str:
    units = found.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# --- leases
def owner_text(lease: Lease) -> str:
    """What Azure's processors see as the owner. Theirs stand as they are."""
    if lease.owner is None:
        return ""
    return lease.owner.id if lease.owner.incarnation == 0 else quote(lease.owner.id, safe="!#$&'()*+,/:;=?@[]")


def lease_metadata(
    lease: Lease, mark: int = 0, robbed: DisplacedOwner | None = None, record: Checkpoint | None = None
) -> dict[str, str]:
    reason = lease.reason if len(lease.reason) <= REASON_CHARS_MAX else f"{lease.reason[: REASON_CHARS_MAX - 3]}..."
    kept = structs.replace(record, notes={}) if record is not None else None
    note = LeaseNote(structs.replace(lease, reason=reason, settled=True), mark, robbed, kept)
    text = text_of(note)
    if len(text) > METADATA_BYTES_MAX:
        text = text_of(structs.replace(note, record=None))
    return {"ownerid": owner_text(lease), OURS: text}


def lease_note(metadata: Mapping[str, str], where: str) -> LeaseNote | None:
    """None when the last who wrote it was none of ours."""
    if not (text := metadata.get(OURS)):
        return None
    note = read(text, LeaseNote, where)
    return note if owner_text(note.lease) == (metadata.get("ownerid") or "") else None


# --- checkpoints
def record_metadata(record: Checkpoint, notes_at: str = "", made_in: str = "") -> dict[str, str]:
    kept = structs.replace(record, notes={}) if notes_at else record
    return {**_official(record.position), OURS: text_of(RecordNote(kept, notes_at, made_in))}


def record_note(metadata: Mapping[str, str], where: str) -> RecordNote | None:
    """None when the last who wrote it was none of ours."""
    if not (text := metadata.get(OURS)):
        return None
    note = read(text, RecordNote, where)
    official = _official(note.record.position)
    return note if all(metadata.get(name) == value for name, value in official.items()) else None


def foreign_position(metadata: Mapping[str, str]) -> Position | None:
    """The position that a processor of another make has left; None when there is none to be read."""
    offset, sequence = metadata.get("offset"), metadata.get("sequencenumber") or ""
    number = int(sequence) if re.fullmatch(r"-?\d{1,19}", sequence) else None
    if not offset:
        return None if number is None else Position(str(number), number)
    return Position(offset, number)


def _official(position: Position) -> dict[str, str]:
    """As Azure's processors write it; they read no checkpoint of a group when one of them has no such number."""
    sequence = position.sequence if position.sequence is not None else -1
    return {"offset": quote(position.offset, safe="!#$&'()*+,/:;=?@[]"), "sequencenumber": str(sequence)}
