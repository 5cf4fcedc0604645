"""How an object store's records are kept: names of objects, and JSON that people can read, packed where it is large."""

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
HEART, RECORDS, SNAPSHOTS, ACTIONS = "heart", "checkpoints", "snapshots", "actions"
"""What is in a group's folder."""
GZIP = b"\x1f\x8b"
UNPACKED_MOST_BYTES = 1 << 30
_FOLDER = re.compile(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9_-]{1,40}\.[0-9a-f]{24}")
_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")

S = TypeVar("S", bound="_Stamped")


class _Stamped(Struct, kw_only=True):
    """Every object says that it is ours, in which layout, and of which group."""

    evenflow: int
    """The layout."""
    group: Group


class HeartBody(_Stamped, kw_only=True, omit_defaults=True):
    """What a group's instances agree on, with all that changed after revision `floor`."""

    lineage: str
    history: int
    revision: int
    newest: int
    deleted: bool = False
    """The group was: what counts on is all that stays."""
    born: int = 0
    roster: int = 0
    writes: tuple[str, ...]
    """Who put the last revisions, the newest last: a random name for each put."""
    state: GroupState = GroupState()
    began: int = 0
    epoch_floor: int = 0
    """Of the group's name: it outlives the group."""
    departed: tuple[str, ...] = ()
    snapshot: str = ""
    folded: int = 0
    """The revision that the snapshot is of."""
    floor: int = 0
    leases: list[Lease] = []
    rows: list[tuple[int, Member]] = []
    gone: list[tuple[int, str]] = []
    moves: list[tuple[int, Move]] = []
    at_ds: int = 0
    """When it was put, by that client's wall clock, in tenths of a second."""
    ages: list[int] = []
    """How many revisions ago each member heartbeat, in the order of their ids."""
    silences_ds: list[int] = []
    """And how long ago, counted from `at_ds`."""


class SnapshotBody(_Stamped, kw_only=True):
    """All leases, rows and moves of a group up to a revision."""

    revision: int
    leases: list[Lease]
    rows: list[Member]
    moves: list[tuple[int, Move]]


class RecordBody(_Stamped, kw_only=True):
    """A checkpoint. The same content would have the same tag on some servers: so there is something random in it."""

    nonce: str
    record: Checkpoint


class ActionsBody(_Stamped, kw_only=True):
    """What people did, the newest first, each with a random name."""

    actions: list[tuple[str, Action]]


_encode = json.Encoder().encode


def pack(body: _Stamped) -> bytes:
    text = _encode(body)
    return gzip.compress(text, 1, mtime=0) if len(text) > PACKED_ABOVE_BYTES else text


def unpack(data: bytes, kind: type[S], name: str) -> S:
    """Corrupt when it is no such thing; Misconfigured when a newer evenflow made it."""
    try:
        text = _unzipped(data) if data.startswith(GZIP) else data
        layout = json.decode(text, type=_Layout).evenflow
        if layout > LAYOUT:
            raise Misconfigured(
                f"The object {name} was written by a newer evenflow (layout {layout}, and this one knows {LAYOUT})."
                " Upgrade this one, or give it another prefix."
            )
        return json.decode(text, type=kind)
    except (msgspec.MsgspecError, zlib.error, ValueError) as error:
        raise damaged(name, kind, str(error)) from error


def damaged(name: str, kind: type[_Stamped], why: str) -> Corrupt:
    return Corrupt(
        f"The object {name} is damaged, or somebody else's: {why}. Put an older version of it back. If there is none,"
        f" delete it: {_ADVICE[kind]}"
    )


class _Layout(Struct):
    evenflow: int


_ADVICE: dict[type[_Stamped], str] = {
    HeartBody: "the group then begins anew, with the checkpoints that it has, once everybody has stopped.",
    SnapshotBody: "the group then begins anew, with the checkpoints that it has, once everybody has stopped.",
    RecordBody: "its partition then begins where `start` says.",
    ActionsBody: "what people did to the group is forgotten then.",
}


def _unzipped(data: bytes) -> bytes:
    opener = zlib.decompressobj(wbits=31)
    text = opener.decompress(data, UNPACKED_MOST_BYTES)
    if not opener.eof:
        raise ValueError("its end is missing")
    return text


def own(record: Checkpoint) -> Checkpoint:
    """Notes are the one part of a record that can be changed in place; they are what JSON would keep."""
    return structs.replace(record, notes=json.decode(_encode(record.notes)))


# --- names
def folder(group: Group) -> str:
    """Readable, and no two groups have the same. Names may be longer than a key can be."""
    digest = hashlib.sha256(_encode(structs.astuple(group))).hexdigest()[:24]
    return f"{_clean(group.hub)}.{_clean(group.name)}.{digest}"


def is_folder(name: str) -> bool:
    """Whether this may be the folder of a group."""
    return _FOLDER.fullmatch(name) is not None


def heart_path(group: Group) -> str:
    return f"{folder(group)}/{HEART}"


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
