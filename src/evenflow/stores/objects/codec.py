"""The stored form of an object store's records: object names, and readable JSON, compressed if it is large."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct, json, structs

from evenflow.errors import Corrupt, Misconfigured
from evenflow.model import Action, Checkpoint, Group, GroupState, Lease, Member, Move

if TYPE_CHECKING:
    from evenflow.model import PartitionId

LAYOUT = 1
PACKED_ABOVE_BYTES = 8_192
GROUP_OBJECT, RECORDS, SNAPSHOTS, ACTIONS = "group", "checkpoints", "snapshots", "actions"
"""The contents of a group's folder."""
GZIP = b"\x1f\x8b"
UNPACKED_MOST_BYTES = 1 << 30
_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}\.[0-9a-f]{24}")
_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")

S = TypeVar("S", bound="_ObjectBody")


class _ObjectBody(Struct, kw_only=True):
    """Every object names its layout and its group."""

    evenflow: int
    """The layout."""
    group: Group


class GroupObjectBody(_ObjectBody, kw_only=True, omit_defaults=True):
    """Everything a group's instances agree on, with all changes after revision `floor`."""

    lineage: str
    history: int
    revision: int
    newest: int
    deleted: bool = False
    """The group was deleted; only its counters remain."""
    born: int = 0
    roster: int = 0
    writes: tuple[str, ...]
    """Random names of the puts that made the last revisions, newest last."""
    state: GroupState = GroupState()
    began: int = 0
    epoch_floor: int = 0
    """Belongs to the group's name and outlives the group."""
    departed: tuple[str, ...] = ()
    snapshot: str = ""
    folded: int = 0
    """The revision of the snapshot."""
    floor: int = 0
    leases: list[Lease] = []
    rows: list[tuple[int, Member]] = []
    gone: list[tuple[int, str]] = []
    moves: list[tuple[int, Move]] = []
    at_ds: int = 0
    """Time of the put by the writer's wall clock, in tenths of a second."""
    ages: list[int] = []
    """How many revisions ago each member sent a heartbeat, in the order of their ids."""
    silences_ds: list[int] = []
    """How long ago that was, counted from `at_ds`."""


class SnapshotBody(_ObjectBody, kw_only=True):
    """All leases, rows and moves of a group up to a revision."""

    revision: int
    leases: list[Lease]
    rows: list[Member]
    moves: list[tuple[int, Move]]


class RecordBody(_ObjectBody, kw_only=True):
    """A checkpoint. The nonce makes each write unique, because some servers compute the tag from the content."""

    nonce: str
    record: Checkpoint


class ActionsBody(_ObjectBody, kw_only=True):
    """Operator actions, newest first, each with a random name."""

    actions: list[tuple[str, Action]]


_encode = json.Encoder().encode


def pack(body: _ObjectBody) -> bytes:
    text = _encode(body)
    return gzip.compress(text, 1, mtime=0) if len(text) > PACKED_ABOVE_BYTES else text


def unpack(data: bytes, kind: type[S], name: str) -> S:
    """Raises Corrupt if this is not such an object, and Misconfigured if a newer evenflow wrote it."""
    try:
        text = _unzipped(data) if data.startswith(GZIP) else data
        layout = json.decode(text, type=_Layout).evenflow
        if layout > LAYOUT:
            raise Misconfigured(
                f"The object {name} was written by a newer evenflow (layout {layout}; this version supports {LAYOUT})."
                " Upgrade evenflow here, or use another prefix."
            )
        return json.decode(text, type=kind)
    except (msgspec.MsgspecError, zlib.error, ValueError) as error:
        raise damaged(name, kind, str(error)) from error


def damaged(name: str, kind: type[_ObjectBody], why: str) -> Corrupt:
    return Corrupt(
        f"The object {name} is damaged or was not written by evenflow: {why}. Restore an older version. If there is"
        f" none, delete it: {_ADVICE[kind]}"
    )


class _Layout(Struct):
    evenflow: int


_ADVICE: dict[type[_ObjectBody], str] = {
    GroupObjectBody: "stop all instances first; the group then starts again from its checkpoints.",
    SnapshotBody: "stop all instances first; the group then starts again from its checkpoints.",
    RecordBody: "its partition then starts at the configured `start` position.",
    ActionsBody: "the log of operator actions is lost then.",
}


def _unzipped(data: bytes) -> bytes:
    opener = zlib.decompressobj(wbits=31)
    text = opener.decompress(data, UNPACKED_MOST_BYTES)
    if not opener.eof:
        raise ValueError("it is truncated")
    return text


def own(record: Checkpoint) -> Checkpoint:
    """A copy with its own notes, the only mutable part, passed through JSON."""
    return structs.replace(record, notes=json.decode(_encode(record.notes)))


# --- names
def folder(group: Group) -> str:
    """A readable and unique folder name. Group names may be too long for an object key."""
    digest = hashlib.sha256(_encode(structs.astuple(group))).hexdigest()[:24]
    return f"{_clean(group.hub)}.{_clean(group.name)}.{digest}"


def is_folder(name: str) -> bool:
    """Whether this may be a group's folder."""
    return _FOLDER.fullmatch(name) is not None


def group_object_path(group: Group) -> str:
    return f"{folder(group)}/{GROUP_OBJECT}"


def actions_path(group: Group) -> str:
    return f"{folder(group)}/{ACTIONS}"


def snapshots_path(group: Group) -> str:
    return f"{folder(group)}/{SNAPSHOTS}"


def snapshot_name(revision: int, nonce: str) -> str:
    return f"{revision:020}-{nonce}"


def snapshot_revision(name: str) -> int:
    return int(name.partition("-")[0])


def records_path(group: Group) -> str:
    return f"{folder(group)}/{RECORDS}"


def record_path(group: Group, partition: PartitionId) -> str:
    safe = partition if _SAFE.fullmatch(partition) else f"x.{hashlib.sha256(partition.encode()).hexdigest()[:40]}"
    return f"{records_path(group)}/{safe}"


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
