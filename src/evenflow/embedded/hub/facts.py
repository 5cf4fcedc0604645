"""The hub's own facts, in `hub.sqlite`: its name, when it was made, how many partitions it has, what it keeps.

`made` is random and stands for this making of the hub: one that is deleted and made again under the same path is
another hub, and old checkpoints do not fit it.
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


class HubFacts(Struct, frozen=True, kw_only=True):
    """What one making of a hub is."""

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
        """What one partition may keep: the hub's size is divided evenly."""
        return None if self.retention_bytes is None else self.retention_bytes // self.partitions


def facts_path(folder: Path) -> Path:
    return folder / "hub.sqlite"


def partition_path(folder: Path, number: int) -> Path:
    return folder / "partitions" / f"{number:05d}.sqlite"


def bell_path(folder: Path) -> Path:
    return folder / "bell"


def check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise Misconfigured(f"A hub has 1 to {PARTITIONS_MAX} partitions, not {partitions}.")


def create_facts(folder: Path, facts: HubFacts, busy_timeout_s: float, create: Callable[[int], None]) -> None:
    """Write the facts, after `create` has made each partition: with this commit the hub exists.

    Two that make a hub at the same place do so in turn, and the second finds `HubExists`. One that dies on the way
    leaves a folder that is no hub, in which another attempt succeeds.
    """
    path = facts_path(folder)
    with translated(path, SourceUnavailable):
        connection = connect(path, busy_timeout_s=busy_timeout_s)
        try:
            with immediate(connection):
                if connection.pragma("application_id") == APPLICATION_ID:
                    raise HubExists(f"There is a hub at {folder} already. Open that one, or choose another path.")
                for number in range(facts.partitions):
                    create(number)
                _insert(connection, facts)
        finally:
            connection.close()


def _insert(connection: apsw.Connection, facts: HubFacts) -> None:
    connection.execute(
        "CREATE TABLE facts (name TEXT NOT NULL, made TEXT NOT NULL, created_us INTEGER NOT NULL, "
        "partitions INTEGER NOT NULL, retention_s REAL, retention_bytes INTEGER)"
    )
    connection.execute(
        "INSERT INTO facts VALUES (:name, :made, :created_us, :partitions, :retention_s, :retention_bytes)",
        {field: getattr(facts, field) for field in HubFacts.__struct_fields__},
    )
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}")


class FactsFile:
    """An open `hub.sqlite`."""

    def __init__(self, folder: Path, busy_timeout_s: float) -> None:
        self.path = facts_path(folder)
        if not self.path.is_file():
            raise NotAHub(_not_a_hub_text(folder))
        with translated(self.path, SourceUnavailable):
            self._connection = connect(self.path, busy_timeout_s=busy_timeout_s, create=False)
            try:
                self._check()
            except BaseException:
                self._connection.close()
                raise

    def read(self) -> HubFacts:
        with translated(self.path, SourceUnavailable):
            row = self._connection.execute(
                "SELECT name, made, created_us, partitions, retention_s, retention_bytes FROM facts"
            ).fetchone()
        if row is None:
            raise damaged(self.path, "it has no facts")
        return HubFacts(**dict(zip(HubFacts.__struct_fields__, row, strict=True)))

    def grow(self, more: int, create: Callable[[int], None]) -> None:
        """Add partitions, each made by `create` before anybody can see it. Two that grow a hub do so in turn."""
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
            raise NotAHub(f"There is no hub at {self.path.parent}: its making was not finished. {_MAKING}.")
        if written_by != APPLICATION_ID:
            raise NotAHub(f"{self.path} is a database, but not that of a hub. Choose another folder.")
        check_format(self.path, version)
        if version != FORMAT:
            # The partitions' files follow when they are opened. An earlier evenflow refuses the hub from now on.
            self._connection.execute(f"PRAGMA user_version={FORMAT}")


_MAKING = "Make one with `evenflow hub create` (in Python: Hub.create())"


def _not_a_hub_text(folder: Path) -> str:
    if not folder.exists():
        return f"There is no hub at {folder}: it does not exist. {_MAKING}, or correct the path."
    if not folder.is_dir():
        return f"There is no hub at {folder}: it is a file. A hub is a folder; correct the path."
    return f"There is no hub at {folder}: it has no hub.sqlite. {_MAKING}, or correct the path."
