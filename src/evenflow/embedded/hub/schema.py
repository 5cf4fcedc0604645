"""The tables of a hub's files, and the upgrade of files in an earlier format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.errors import Misconfigured
from evenflow.local.database import immediate

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

FORMAT = 2
"""Format 1 had no ids of sends and no producers; its partition files carry the number 0."""

LOG_APPLICATION_ID = 0x45764850

# `sends` comes before `events`, so that SQLite reads it without reading the events, which may be a megabyte.
_LOG = """
CREATE TABLE batches (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, enqueued_us INTEGER NOT NULL, written INTEGER NOT NULL,
    size INTEGER NOT NULL, crc INTEGER NOT NULL, sends BLOB, events BLOB NOT NULL
);
CREATE TABLE state (
    made TEXT NOT NULL, number INTEGER NOT NULL,
    oldest INTEGER NOT NULL, next INTEGER NOT NULL, enqueued_us INTEGER NOT NULL, trimmed INTEGER NOT NULL,
    forgotten INTEGER NOT NULL DEFAULT 0
);
"""
_PRODUCERS = "CREATE TABLE producers (id TEXT PRIMARY KEY, newest INTEGER NOT NULL, kept BLOB NOT NULL) WITHOUT ROWID;"

_UPGRADE = f"""
ALTER TABLE batches ADD COLUMN sends BLOB;
ALTER TABLE state ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
{_PRODUCERS}
PRAGMA user_version={FORMAT};
"""


def create_tables(connection: apsw.Connection, made: str, number: int) -> None:
    connection.execute(_LOG + _PRODUCERS)
    connection.execute("INSERT INTO state VALUES (?, ?, 0, 0, 0, 0, 0)", (made, number))
    connection.execute(f"PRAGMA application_id={LOG_APPLICATION_ID}; PRAGMA user_version={FORMAT}")


def upgrade_log(path: Path, connection: apsw.Connection) -> None:
    """Upgrade a partition's file to this format. Concurrent attempts are serialized."""
    if connection.pragma("user_version") < FORMAT:
        with immediate(connection):
            if connection.pragma("user_version") < FORMAT:
                connection.execute(_UPGRADE)
    check_format(path, connection.pragma("user_version"))


def check_format(path: Path, version: object) -> None:
    if not isinstance(version, int) or version > FORMAT:
        raise Misconfigured(
            f"{path} was written by a newer evenflow (format {version}, supported: {FORMAT}). Upgrade evenflow."
        )
