"""What is ours in the documents of a lease container, as one text of JSON in each.

In a lease it stands among its `properties`, which .NET's processors carry along, though Java's drop them. So it may be
gone, or be older than the document around it: it counts only where owner, continuation and timestamp are the ones that
were written with it. Otherwise somebody else was the last to write, a processor of another make or a person.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import NODEFAULT, DecodeError, Struct, ValidationError, json, structs

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import Checkpoint, Group, GroupState, Lease, Member, Position
from evenflow.stores.cosmos import layouts
from evenflow.stores.third_party import DisplacedOwner  # noqa: TC001 - msgspec looks it up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.stores.cosmos.layouts import LeaseDocument

VERSION = 1
OURS = "evenflow"
"""The field, or the property of a lease."""
ENDED_OWNER = "evenflow: ended"
"""Stands as the owner of a partition that has ended, for the moment until its document is moved: nobody takes it."""

Record = TypeVar("Record")


class LeaseNote(Struct, frozen=True, omit_defaults=True):
    partition: str
    timestamp: str
    """That of the document which it was written with."""
    lease: Lease | None = None
    record: Checkpoint | None = None
    robbed: DisplacedOwner | None = None
    """Until the owner knows that it has stopped. Whoever owns it next waits, too."""
    touched: int = 0
    """Moves the document's ETag when nothing else does."""
    made_in: str = ""
    """The group's lineage when a seal made the document, until it is written again for another reason."""
    v: int = VERSION


class RowNote(Struct, frozen=True, omit_defaults=True):
    """A member's row."""

    mark: int
    heartbeat_at: float
    news: int
    """The mark with which it last changed in more than its mark."""
    member: Member
    leaving: bool = False
    """It looks whether a lease names it, and goes if none does: nothing is to be passed to it."""
    left: bool = False
    """It has gone. The document stays for a while, so that whoever asks for what changed hears of it."""
    departed: tuple[str, ...] = ()
    """Nonces of those who left under this id: a late heartbeat of theirs counts for nothing."""
    poked: str = ""
    """Somebody is about to take leases from it: whoever writes the row next has to see to what it owns."""
    v: int = VERSION


class Charter(Struct, frozen=True, omit_defaults=True):
    """What the store knows of a group, whoever is in it. It outlives the group, so that counting goes on."""

    group: Group
    lineage: str
    history: int = 0
    newest: int = 0
    """The highest incarnation given or seen."""
    born: int = 0
    """When it was made, or made again."""
    deleted: bool = False
    floor: int = 0
    """No lease was given a higher epoch, but for those in `floors`."""
    floors: dict[str, int] = {}
    """The same of partitions that processors of another make have had."""
    state: GroupState = GroupState()
    began: int = 0
    """The history in which the group began."""
    epoch_floor: int = 0
    """Of groups of this name that were deleted."""
    v: int = VERSION

    def floor_of(self, partition: str) -> int:
        return self.floors.get(partition, self.floor)


def text_of(record: object) -> str:
    return json.encode(_lean(record)).decode()


def _lean(value: object) -> object:
    """Without what is empty, and would be so anyway: a write is charged by the kilobyte, and a row is a heartbeat's."""
    if isinstance(value, Struct):
        told = ((name, getattr(value, name)) for name in value.__struct_fields__)
        empty, omits = _empty(type(value)), value.__struct_config__.omit_defaults
        return {
            name: _lean(found)
            for name, found in told
            if (found and not omits) or name not in empty or found != empty[name]
        }
    if isinstance(value, dict):
        return {name: _lean(found) for name, found in value.items()}
    return [_lean(one) for one in value] if isinstance(value, list | tuple) else value


@cache
def _empty(kind: type[Struct]) -> dict[str, Any]:
    """The defaults of its fields."""
    made = ((field.name, field.default, field.default_factory) for field in structs.fields(kind))
    return {
        name: default if make is NODEFAULT else make()
        for name, default, make in made
        if default is not NODEFAULT or make is not NODEFAULT
    }


def read(text: object, kind: type[Record], name: str, field: str = OURS) -> Record:
    """Misconfigured when a newer evenflow wrote it, Corrupt when nobody did."""
    if not isinstance(text, str):
        raise _unreadable(name, field)
    try:
        found = json.decode(text, type=kind)
    except (DecodeError, ValidationError) as error:
        _refuse_newer(text, name)
        raise _unreadable(name, field) from error
    if getattr(found, "v", VERSION) > VERSION:
        _refuse_newer(text, name)
    return found


def _unreadable(name: str, field: str) -> Corrupt:
    return Corrupt(
        f"What evenflow keeps in the document {name!r}, field {field!r}, cannot be read: somebody has changed it. Put"
        " it back as it was; or stop all hosts of the group and remove the field from a lease, or any other document as"
        " a whole: that counts as lost writes, and they go on from what else there is."
    )


def _refuse_newer(text: str, name: str) -> None:
    try:
        version = json.decode(text, type=dict[str, object]).get("v")
    except (DecodeError, ValidationError):
        return
    if isinstance(version, int) and version > VERSION:
        raise Misconfigured(
            f"The document {name!r} was written by a newer evenflow (layout {version}, and this one knows {VERSION})."
            " Upgrade this one, or give it another lease container."
        )


def document_of(name: str, record: object) -> dict[str, Any]:
    """One of our own documents."""
    return {"id": name, OURS: text_of(record)}


# --- leases
def owner_text(lease: Lease | None) -> str:
    """What others see as the owner."""
    if lease is None:
        return ""
    if lease.owner is None:
        return ENDED_OWNER if lease.ended else ""
    return lease.owner.id


def continuation(note: LeaseNote, before: LeaseDocument | None, mode: str = "") -> str:
    """What others see as the continuation.

    A partition that appeared late is read from its beginning by whoever has it: without a continuation somebody else
    would begin by its own settings, which may be later.
    """
    if note.record is not None:
        return layouts.continuation_of(note.record.position, before, mode)
    is_late = note.lease is not None and note.lease.late
    return layouts.continuation_of(Position(layouts.BEGINNING_OFFSET, 0), before, mode) if is_late else ""


def lease_document(
    name: str,
    note: LeaseNote,
    before: LeaseDocument | None,
    *,
    span: tuple[str, str] | None = None,
    mode: str = "",
) -> dict[str, Any]:
    return layouts.written(
        name,
        partition=note.partition,
        before=before,
        owner=owner_text(note.lease),
        continuation=continuation(note, before, mode),
        timestamp=note.timestamp,
        properties={OURS: text_of(note)},
        span=span,
        mode=mode,
    )


def any_note(found: LeaseDocument) -> LeaseNote | None:
    """What is ours in it, of whatever partition; Corrupt when it cannot be read."""
    text = found.properties.get(OURS)
    return read(text, LeaseNote, found.id, f"properties.{OURS}") if text else None


def lease_note(found: LeaseDocument, partition: str) -> LeaseNote | None:
    """What is ours in it, in force or not; None when there is nothing. .NET copies it to the children of a split."""
    note = any_note(found)
    return note if note is not None and note.partition == partition else None


def is_in_force(note: LeaseNote, found: LeaseDocument) -> bool:
    """Whether whoever wrote the document last was one of ours."""
    told = found.timestamp, found.owner, found.continuation
    return told == (note.timestamp, owner_text(note.lease).strip(), continuation(note, found))


def own(record: Checkpoint) -> Checkpoint:
    """Notes are the one part of a record that can be changed in place; they are what JSON would keep."""
    notes: Mapping[str, Any] = json.decode(json.encode(record.notes))
    return structs.replace(record, notes=dict(notes))
