"""The hub's metadata, in `hub.sqlite`: its name, creation time, number of partitions and retention.

`made` is a random id of this incarnation of the hub. A hub that is deleted and created again at the same path gets a
new one, so that checkpoints of the old hub are not applied to the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
from msgspec import Struct

from evenflow.embedded.hub.schema import FORMAT, check_format
from evenflow.errors import HubExists, Misconfigured, NotAHub, SourceUnavailable
from evenflow.local.database import connect, damaged, immediate, translated
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APPLICATION_ID = 0x45764846
PARTITIONS_MAX = 4_096


class HubMetadata(Struct, frozen=True, kw_only=True):
    """The settings and the identity of one incarnation of a hub."""

    name: str
    made: str
    created_us: int
    partitions: int
    retention_s: float | None = None
    retention_bytes: int | None = None

    @property
    def retention_us(self) -> int | None:
        return None if self.retention_s is None else round(self.retention_s * MICROSECONDS)

    @property
    def share_bytes(self) -> int | None:
        """How much one partition may keep: an even share of the hub's limit."""
        return None if self.retention_bytes is None else self.retention_bytes // self.partitions


def metadata_path(folder: Path) -> Path:
    return folder / "hub.sqlite"


def partition_path(folder: Path, number: int) -> Path:
    return folder / "partitions" / f"{number:05d}.sqlite"


def bell_path(folder: Path) -> Path:
    return folder / "bell"


def check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise Misconfigured(f"A hub must have 1 to {PARTITIONS_MAX} partitions, not {partitions}.")


def create_metadata(folder: Path, metadata: HubMetadata, busy_timeout_s: float, create: Callable[[int], None]) -> None:
    """Write the metadata after `create` has created each partition. This commit makes the hub exist.

    Concurrent attempts at the same path are serialized; the second one raises `HubExists`. An attempt that crashes
    leaves an incomplete folder, and the next attempt succeeds there.
    """
    path = metadata_path(folder)
    with translated(path, SourceUnavailable):
        connection = connect(path, busy_timeout_s=busy_timeout_s)
        try:
            with immediate(connection):
                if connection.pragma("application_id") == APPLICATION_ID:
                    raise HubExists(f"A hub already exists at {folder}. Open it, or choose another path.")
                for number in range(metadata.partitions):
                    create(number)
                _insert(connection, metadata)
        finally:
            connection.close()


def _insert(connection: apsw.Connection, metadata: HubMetadata) -> None:
    connection.execute(
        "CREATE TABLE facts (name TEXT NOT NULL, made TEXT NOT NULL, created_us INTEGER NOT NULL, "
        "partitions INTEGER NOT NULL, retention_s REAL, retention_bytes INTEGER)"
    )
    connection.execute(
        "INSERT INTO facts VALUES (:name, :made, :created_us, :partitions, :retention_s, :retention_bytes)",
        {field: getattr(metadata, field) for field in HubMetadata.__struct_fields__},
    )
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}")


class HubMetadataFile:
    """An open `hub.sqlite`."""

    def __init__(self, folder: Path, busy_timeout_s: float) -> None:
        self.path = metadata_path(folder)
        if not self.path.is_file():
            raise NotAHub(_not_a_hub_text(folder))
        with translated(self.path, SourceUnavailable):
            self._connection = connect(self.path, busy_timeout_s=busy_timeout_s, create=False)
            try:
                self._check()
            except BaseException:
                self._connection.close()
                raise

    def read(self) -> HubMetadata:
        with translated(self.path, SourceUnavailable):
            row = self._connection.execute(
                "SELECT name, made, created_us, partitions, retention_s, retention_bytes FROM facts"
            ).fetchone()
        if row is None:
            raise damaged(self.path, "its metadata row is missing")
        return HubMetadata(**dict(zip(HubMetadata.__struct_fields__, row, strict=True)))

    def grow(self, more: int, create: Callable[[int], None]) -> None:
        """Add partitions; `create` creates each one before it becomes visible. Concurrent calls are serialized."""
        with translated(self.path, SourceUnavailable), immediate(self._connection):
            before = self.read().partitions
            check_partitions(before + more)
            for number in range(before, before + more):
                create(number)
            self._connection.execute("UPDATE facts SET partitions = ?", (before + more,))

    def close(self) -> None:
        self._connection.close()

    def _check(self) -> None:
        try:
            written_by = self._connection.pragma("application_id")
            version = self._connection.pragma("user_version")
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise damaged(self.path, str(error)) from error
        if written_by == 0:
            raise NotAHub(f"There is no hub at {self.path.parent}: its creation was interrupted. {_HOW_TO_CREATE}.")
        if written_by != APPLICATION_ID:
            raise NotAHub(f"{self.path} is a database of another program, not a hub. Choose another folder.")
        check_format(self.path, version)
        if version != FORMAT:
            # Partition files are upgraded when they are opened. Earlier versions of evenflow then refuse the hub.
            self._connection.execute(f"PRAGMA user_version={FORMAT}")


_HOW_TO_CREATE = "Create one with `evenflow hub create` (in Python: Hub.create())"


def _not_a_hub_text(folder: Path) -> str:
    if not folder.exists():
        return f"There is no hub at {folder}: the folder does not exist. {_HOW_TO_CREATE}, or correct the path."
    if not folder.is_dir():
        return f"There is no hub at {folder}: the path is a file, and a hub is a folder. Correct the path."
    return f"There is no hub at {folder}: the folder has no hub.sqlite. {_HOW_TO_CREATE}, or correct the path."
