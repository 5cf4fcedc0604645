"""A container's metadata, and the tables of its only file, `container.sqlite`.

The whole container is in one file, so that a split or merge is one transaction. `rid` is a random id of this
incarnation: a container that is deleted and created again at the same path gets a new one.
"""

from __future__ import annotations

import os
from base64 import b64encode
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from msgspec import Struct

from evenflow.embedded.container.keys import KeyPaths, key_paths
from evenflow.embedded.container.ranges import even_bounds
from evenflow.errors import ContainerExists, EvenflowError, Misconfigured, NotAContainer, SourceUnavailable
from evenflow.local.bell import SLOT_BYTES
from evenflow.local.database import connect, damaged, immediate, sync_folder, translated
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
APPLICATION_ID = 0x45764346
RID_BYTES = 8
TTL_ONLY_OWN = -1
"""The `default_ttl_s` of a container in which only documents with their own `ttl` expire."""

SIGN = "reshaping"
"""The file that is locked while ranges are split or merged, which takes long for large ranges."""
_OUR_NAMES = frozenset(("bell", SIGN, *(f"container.sqlite{end}" for end in ("", "-journal", "-wal", "-shm"))))

_SCHEMA = """
CREATE TABLE facts (
    name TEXT NOT NULL, rid BLOB NOT NULL, created_us INTEGER NOT NULL, paths TEXT NOT NULL, default_ttl_s INTEGER,
    retention_s REAL, properties TEXT NOT NULL, revision INTEGER NOT NULL
);
CREATE TABLE ranges (
    id INTEGER PRIMARY KEY, min TEXT NOT NULL, max TEXT NOT NULL, parents TEXT NOT NULL, lsn INTEGER NOT NULL,
    revision INTEGER NOT NULL, gone INTEGER NOT NULL
);
CREATE INDEX ranges_live ON ranges (min) WHERE NOT gone;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, range INTEGER NOT NULL, lsn INTEGER NOT NULL, epk TEXT NOT NULL,
    id TEXT NOT NULL, etag TEXT NOT NULL, changed_us INTEGER NOT NULL, expires_s INTEGER, body BLOB NOT NULL
);
CREATE UNIQUE INDEX documents_key ON documents (epk, id);
CREATE INDEX documents_feed ON documents (range, lsn);
CREATE INDEX documents_expiry ON documents (expires_s) WHERE expires_s IS NOT NULL;
CREATE TABLE changes (
    number INTEGER PRIMARY KEY, range INTEGER NOT NULL, lsn INTEGER NOT NULL, epk TEXT NOT NULL, kind TEXT NOT NULL,
    expired INTEGER NOT NULL, changed_us INTEGER NOT NULL, previous_lsn INTEGER, body BLOB, previous BLOB
);
CREATE INDEX changes_feed ON changes (range, lsn);
CREATE TABLE floors (range INTEGER NOT NULL, min TEXT NOT NULL, max TEXT NOT NULL, lsn INTEGER NOT NULL);
"""
# A floor is the LSN up to which changes were trimmed. A merged range inherits the floors of its parents, each for its
# part of the EPK space, because their LSNs come from two logs.


class ContainerMetadata(Struct, frozen=True, kw_only=True):
    """The settings and the identity of one incarnation of a container."""

    name: str
    rid: bytes
    created_us: int
    keys: KeyPaths
    default_ttl_s: int | None = None
    """Documents expire this long after their last change. None: they never expire, even with their own `ttl`."""
    retention_s: float | None = None
    """How long all versions and deletes are kept. 0 keeps none, None keeps all."""
    properties: Mapping[str, Any] = {}
    """Further properties, returned as given at creation."""
    revision: int = 0

    @property
    def retention_us(self) -> int | None:
        return None if self.retention_s is None else round(self.retention_s * MICROSECONDS)

    @property
    def rid_text(self) -> str:
        return rid_text(self.rid)


def rid_text(rid: bytes) -> str:
    """A resource id as Cosmos DB writes it: base64 that is safe in a path."""
    return b64encode(rid, b"+-").decode()


def new_rid(parent: bytes = b"") -> bytes:
    """A new resource id of a container in the database `parent`. Its upper bit distinguishes it from a document's."""
    parent = parent or token_bytes(RID_BYTES // 2)
    own = bytearray(token_bytes(RID_BYTES // 2))
    own[0] |= 0x80
    return parent + bytes(own)


def metadata_path(folder: Path) -> Path:
    return folder / "container.sqlite"


def bell_path(folder: Path) -> Path:
    return folder / "bell"


def create_container(folder: Path, metadata: ContainerMetadata, ranges: int, busy_timeout_s: float) -> None:
    """Create the folder and its files; durable on return.

    Concurrent attempts at the same path are serialized; the second one raises `ContainerExists`. After an attempt that
    crashed, the next attempt succeeds.
    """
    _check(metadata)
    bounds = even_bounds(ranges)
    path = metadata_path(folder)
    with translated(folder, SourceUnavailable):
        if folder.exists() and (not folder.is_dir() or not _OUR_NAMES.issuperset(os.listdir(folder))):
            raise Misconfigured(f"{folder} exists and is not an empty folder. Choose another path for the container.")
        folder.mkdir(parents=True, exist_ok=True)
        if not bell_path(folder).exists():
            bell_path(folder).write_bytes(bytes((ranges + 1) * SLOT_BYTES))
        connection = connect(path, busy_timeout_s=busy_timeout_s)
        try:
            with immediate(connection):
                if connection.pragma("application_id") == APPLICATION_ID:
                    raise ContainerExists(f"A container already exists at {folder}. Open it, or choose another path.")
                _insert(connection, metadata, bounds)
        finally:
            connection.close()
        sync_folder(folder)
        sync_folder(folder.absolute().parent)


def _check(metadata: ContainerMetadata) -> None:
    if metadata.default_ttl_s is not None and metadata.default_ttl_s != TTL_ONLY_OWN and metadata.default_ttl_s < 1:
        raise Misconfigured(f"default_ttl_s must be above zero, -1 or None, not {metadata.default_ttl_s}.")
    if metadata.retention_s is not None and metadata.retention_s < 0:
        raise Misconfigured(f"retention_s must be above zero, 0 for no log, or None, not {metadata.retention_s}.")


def _insert(connection: apsw.Connection, metadata: ContainerMetadata, bounds: list[tuple[str, str]]) -> None:
    connection.execute(_SCHEMA)
    values = (
        metadata.name,
        metadata.rid,
        metadata.created_us,
        _json(metadata.keys.paths),
        metadata.default_ttl_s,
        metadata.retention_s,
    )
    connection.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, 0)", (*values, _json(metadata.properties)))
    for number, (low, high) in enumerate(bounds):
        connection.execute("INSERT INTO ranges VALUES (?, ?, ?, '[]', 0, 0, 0)", (number, low, high))
        connection.execute("INSERT INTO floors VALUES (?, ?, ?, 0)", (number, low, high))
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}")


def read_metadata(connection: apsw.Connection, path: Path) -> ContainerMetadata:
    row = connection.execute(
        "SELECT name, rid, created_us, paths, default_ttl_s, retention_s, properties, revision FROM facts"
    ).fetchone()
    if row is None:
        raise damaged(path, "its metadata row is missing")
    name, rid, created_us, paths, default_ttl_s, retention_s, properties, revision = row
    return ContainerMetadata(
        name=name,
        rid=rid,
        created_us=created_us,
        keys=key_paths(msgspec.json.decode(paths)),
        default_ttl_s=default_ttl_s,
        retention_s=retention_s,
        properties=msgspec.json.decode(properties),
        revision=revision,
    )


def one_row(connection: apsw.Connection, text: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(text, values).fetchone()
    if row is None:
        raise apsw.CorruptError("a row is missing")
    return row


def all_rows(connection: apsw.Connection, text: str, values: Any = ()) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = connection.execute(text, values).fetchall()
    return rows


def check_file(folder: Path) -> None:
    """Raise `NotAContainer` unless the folder has a container's file."""
    if not metadata_path(folder).is_file():
        why = (
            "the folder does not exist"
            if not folder.exists()
            else "the folder has no container.sqlite"
            if folder.is_dir()
            else "the path is a file"
        )
        raise NotAContainer(
            f"There is no container at {folder}: {why}. Create one with Container.create(), or correct the path."
        )


def check_format(connection: apsw.Connection, path: Path) -> None:
    try:
        problem = _format_problem(path, connection.pragma("application_id"), connection.pragma("user_version"))
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise damaged(path, str(error)) from error
    if problem is not None:
        raise problem


def _format_problem(path: Path, written_by: object, version: object) -> EvenflowError | None:
    if written_by == 0:
        return NotAContainer(f"There is no container at {path.parent}: its creation was interrupted. Create it again.")
    if written_by != APPLICATION_ID:
        return NotAContainer(f"{path} is a database of another program, not a container. Choose another folder.")
    if not isinstance(version, int) or version > FORMAT:
        return Misconfigured(
            f"{path} was written by a newer evenflow (format {version}, supported: {FORMAT}). Upgrade evenflow."
        )
    return None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
