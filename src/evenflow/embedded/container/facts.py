"""A container's own facts, and the tables of its one file, `container.sqlite`.

Everything of a container is in one file, so that a split or merge is one transaction. `rid` is random and stands for
this making of the container: one that is deleted and made again under the same path is another.
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
"""The `default_ttl_s` of a container whose documents expire only if they say so themselves."""

SIGN = "reshaping"
"""The file that is locked while ranges are split or merged, which takes long where they are large."""
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
# A floor is up to where changes were trimmed. A merged range has those of its parents, each for its part of the space:
# their LSNs are of two logs.


class ContainerFacts(Struct, frozen=True, kw_only=True):
    """What one making of a container is."""

    name: str
    rid: bytes
    created_us: int
    keys: KeyPaths
    default_ttl_s: int | None = None
    """Documents expire so long after their last change; None: never, whatever they say."""
    retention_s: float | None = None
    """All versions and deletes are kept for so long; 0 keeps none, None all."""
    properties: Mapping[str, Any] = {}
    """What else the one who made it wants to be told again."""
    revision: int = 0

    @property
    def retention_us(self) -> int | None:
        return None if self.retention_s is None else round(self.retention_s * MICROSECONDS)

    @property
    def rid_text(self) -> str:
        return rid_text(self.rid)


def rid_text(rid: bytes) -> str:
    """As Cosmos DB writes them: base64, fit for a path."""
    return b64encode(rid, b"+-").decode()


def new_rid(parent: bytes = b"") -> bytes:
    """Of a container, in a database with this one. The upper bit tells it from the number of a document."""
    parent = parent or token_bytes(RID_BYTES // 2)
    own = bytearray(token_bytes(RID_BYTES // 2))
    own[0] |= 0x80
    return parent + bytes(own)


def facts_path(folder: Path) -> Path:
    return folder / "container.sqlite"


def bell_path(folder: Path) -> Path:
    return folder / "bell"


def make_container(folder: Path, facts: ContainerFacts, ranges: int, busy_timeout_s: float) -> None:
    """Make the folder and all that is in it; durable when it returns.

    Two that make one at the same place do so in turn, and the second finds `ContainerExists`. One that dies on the way
    leaves a folder in which another attempt succeeds.
    """
    _check(facts)
    bounds = even_bounds(ranges)
    path = facts_path(folder)
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
                    raise ContainerExists(f"There is a container at {folder} already. Open it, or choose another path.")
                _insert(connection, facts, bounds)
        finally:
            connection.close()
        sync_folder(folder)
        sync_folder(folder.absolute().parent)


def _check(facts: ContainerFacts) -> None:
    if facts.default_ttl_s is not None and facts.default_ttl_s != TTL_ONLY_OWN and facts.default_ttl_s < 1:
        raise Misconfigured(f"default_ttl_s is a number of seconds above zero, -1 or None, not {facts.default_ttl_s}.")
    if facts.retention_s is not None and facts.retention_s < 0:
        raise Misconfigured(f"retention_s is a number of seconds, 0 for no log or None, not {facts.retention_s}.")


def _insert(connection: apsw.Connection, facts: ContainerFacts, bounds: list[tuple[str, str]]) -> None:
    connection.execute(_SCHEMA)
    values = (facts.name, facts.rid, facts.created_us, _json(facts.keys.paths), facts.default_ttl_s, facts.retention_s)
    connection.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, 0)", (*values, _json(facts.properties)))
    for number, (low, high) in enumerate(bounds):
        connection.execute("INSERT INTO ranges VALUES (?, ?, ?, '[]', 0, 0, 0)", (number, low, high))
        connection.execute("INSERT INTO floors VALUES (?, ?, ?, 0)", (number, low, high))
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}")


def read_facts(connection: apsw.Connection, path: Path) -> ContainerFacts:
    row = connection.execute(
        "SELECT name, rid, created_us, paths, default_ttl_s, retention_s, properties, revision FROM facts"
    ).fetchone()
    if row is None:
        raise damaged(path, "it has no facts")
    name, rid, created_us, paths, default_ttl_s, retention_s, properties, revision = row
    return ContainerFacts(
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
    """Raise unless there is a container's file."""
    if not facts_path(folder).is_file():
        what = "it does not exist" if not folder.exists() else "it is a file" if not folder.is_dir() else "it has none"
        raise NotAContainer(
            f"There is no container at {folder}: {what}. Make one with Container.create(), or correct the path."
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
        return NotAContainer(f"There is no container at {path.parent}: its making was not finished. Make it again.")
    if written_by != APPLICATION_ID:
        return NotAContainer(f"{path} is a database, but not that of a container. Choose another folder.")
    if not isinstance(version, int) or version > FORMAT:
        return Misconfigured(
            f"{path} was made by a newer evenflow (format {version}; this one knows {FORMAT}). Upgrade evenflow."
        )
    return None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
