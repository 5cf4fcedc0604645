"""The folder of a SQLite store: creates and opens its two files, and detects that one of them was lost.

`leases.sqlite` has groups, members, leases and moves; `progress.sqlite` has the checkpoints. Each file identifies the
other, so a file that was deleted, emptied or replaced is detected when the pair is next opened. Then the store's
history rises, so that no earlier epoch is assigned again. Creating the files and raising the history happen under a
lock on the folder. Progress is written before leases: the history in progress is never below the one that instances
have seen.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import closing, contextmanager
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import apsw

from evenflow.errors import Corrupt, Misconfigured, StoreUnavailable
from evenflow.local.database import connect, immediate, translated
from evenflow.stores.sqlite.schema import APPLICATION_IDS, LEASES, PROGRESS, SCHEMAS, UPGRADES, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIBLINGS = "-wal", "-shm"
LOCK_RETRY_S = 0.005

ADVICE = {
    LEASES: "Or move it away with its -wal and -shm files: leases are created again, and no progress is lost.",
    PROGRESS: "Without it, partitions start again from the `start` setting.",
}

Identity: TypeAlias = "tuple[int, int] | None"
"""Device and inode of the file at a path; None if there is none."""


class LeasesMeta(NamedTuple):
    lineage: str
    history: int
    progress: str


class ProgressMeta(NamedTuple):
    id: str
    history: int


class FileIdentities(NamedTuple):
    """Which files existed when a connection was opened. While it is open, no other file has the same identity."""

    file: Identity
    other: Identity
    siblings: tuple[Identity, ...]


class _KnownPair(NamedTuple):
    """The pair as this process last saw it.

    The system may reuse an identity after the file is closed. A lineage is never reused, but a copy has the same one.
    """

    leases: tuple[Identity, str | None]
    """The file and its lineage."""
    progress: Identity
    history: int


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Translates SQLite's errors; for a damaged file, adds what happens without it."""
    try:
        with translated(path, StoreUnavailable):
            yield
    except Corrupt as error:
        if isinstance(error.__cause__, apsw.Error):
            raise Corrupt(f"{error} {ADVICE[path.name]}") from error
        raise


class StoreFolder:
    """The folder of one store. All methods block."""

    def __init__(self, path: Path, *, busy_timeout_s: float, create: bool) -> None:
        self.path = path
        leases, progress = str(path / LEASES), str(path / PROGRESS)
        self._paths = {LEASES: (leases, progress), PROGRESS: (progress, leases)}
        self._busy_timeout_s = busy_timeout_s
        self._create = create
        self._known: _KnownPair | None = None

    def identities(self, name: str) -> FileIdentities:
        """Checked before every operation, so that no instance keeps using a deleted file. Cheap."""
        path, other = self._paths[name]
        return FileIdentities(
            identity(path), identity(other), tuple([identity(sibling) for sibling in _siblings(path)])
        )

    def open(
        self, name: str, before: FileIdentities | None, release: Callable[[], None]
    ) -> tuple[apsw.Connection, FileIdentities]:
        """Connects to one of the files. `release` closes the previous connection, which was opened on `before`."""
        self.make()
        path = self.path / name
        with translated(self.path, StoreUnavailable), self._locked_folder():
            if before is not None:
                _clear_replaced(path, before)
            release()
            self._settle(0)
            seen = self.identities(name)
            with guarded(path):
                connection = connect(path, busy_timeout_s=self._busy_timeout_s, create=False)
            # If the file was replaced in between, it differs from `seen`, and the next operation detects it.
            return connection, seen._replace(siblings=self.identities(name).siblings)

    def raise_history(self, at_least: int) -> None:
        self.make()
        with translated(self.path, StoreUnavailable), self._locked_folder():
            self._settle(at_least)

    def saw_history(self, history: int) -> None:
        """Called with every heartbeat, because another process may have raised the history. Cheap."""
        if self._known is not None and history > self._known.history:
            self._known = self._known._replace(history=history)

    @contextmanager
    def pair(self) -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
        """New connections to leases and progress, while no other process opens the store."""
        self.make()
        with translated(self.path, StoreUnavailable), self._locked_folder(), self._settled(0) as both:
            yield both

    def make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise Misconfigured(f"{self.path} is a file. A SQLite store is a folder: give it a path of its own.")
        if self._create:
            with translated(self.path, StoreUnavailable):
                self.path.mkdir(parents=True, exist_ok=True)
        elif not (self.path / LEASES).exists():
            raise Misconfigured(
                f"There is no store at {self.path}: {LEASES} is missing. The first processor that runs with it creates"
                " it; otherwise correct the path."
            )

    def _settle(self, at_least: int) -> None:
        with self._settled(at_least):
            pass

    @contextmanager
    def _settled(self, at_least: int) -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
        """Creates missing files and brings the pair to one history of at least `at_least`.

        If a file was replaced, the history also rises above the one that this process has seen, so that requests in
        flight are rejected by the new store.
        """
        with closing(self._open(LEASES)) as leases, closing(self._open(PROGRESS)) as progress:
            known, found = self._known, self._read_pair(leases)
            is_replaced = known is not None and known.progress != found.progress
            has_leases = known is None or known.leases == found.leases
            if known is not None and (is_replaced or not has_leases):
                at_least = max(at_least, known.history + 1)
            self._pair(leases, progress, at_least, is_progress_lost=is_replaced and has_leases)
            self._known = self._read_pair(leases)
            yield leases, progress

    def _read_pair(self, leases: apsw.Connection) -> _KnownPair:
        look = self.identities(LEASES)
        with guarded(self.path / LEASES):
            mine = _leases_meta(leases)
        return _KnownPair((look.file, mine.lineage if mine else None), look.other, mine.history if mine else 0)

    def _open(self, name: str) -> apsw.Connection:
        path = self.path / name
        with guarded(path):
            # Created only if missing, so that a file that is being deleted is not recreated beside its old log.
            if is_new := not path.exists():
                _clear_orphaned(path)
            connection = connect(path, busy_timeout_s=self._busy_timeout_s, create=is_new)
            try:
                _check(connection, path)
                _upgrade(connection, path.name)
            except BaseException:
                connection.close()
                raise
            return connection

    def _pair(
        self, leases: apsw.Connection, progress: apsw.Connection, at_least: int, *, is_progress_lost: bool
    ) -> None:
        with guarded(self.path / PROGRESS):
            other = _progress_meta(progress)
        with guarded(self.path / LEASES):
            if _is_settled(_leases_meta(leases), other, at_least):
                return
            with immediate(leases):
                mine = _leases_meta(leases)
                with guarded(self.path / PROGRESS), immediate(progress):
                    other = _progress_meta(progress)
                    paired = ProgressMeta(other.id if other else _fresh_id(), next_history(mine, other, at_least))
                    _write_progress_meta(progress, other, paired)
                _write_leases_meta(
                    leases, mine, paired, has_new_lineage=is_progress_lost or has_lost_progress(mine, other)
                )

    @contextmanager
    def _locked_folder(self) -> Iterator[None]:
        descriptor = self._locked(perf_counter() + self._busy_timeout_s)
        try:
            yield
        finally:
            os.close(descriptor)

    def _locked(self, deadline_s: float) -> int:
        """Opens and locks the folder. Tries again if the folder was deleted while it waited."""
        while perf_counter() < deadline_s:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _lock(descriptor) and _identity_of(os.fstat(descriptor)) == identity(self.path):
                return descriptor
            os.close(descriptor)
            Event().wait(LOCK_RETRY_S)
        raise StoreUnavailable(
            f"Another process has been opening the store in {self.path} for more than {self._busy_timeout_s:g} s."
        )


def identity(path: Path | str) -> Identity:
    try:
        return _identity_of(os.stat(path))
    except OSError:
        return None


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def next_history(leases: LeasesMeta | None, progress: ProgressMeta | None, at_least: int) -> int:
    """The history of this pair of files. None stands for a new file."""
    if leases is None or progress is None:
        known = leases or progress
        return max(known.history + 1 if known else 0, at_least)
    # Progress is always written first, so a progress file with a lower history is an older copy.
    is_other = leases.progress != progress.id or leases.history > progress.history
    return max(leases.history + is_other, progress.history + is_other, at_least)


def has_lost_progress(leases: LeasesMeta | None, progress: ProgressMeta | None) -> bool:
    """Whether these leases belong to a progress file that is missing or newer than this one."""
    return leases is not None and (
        progress is None or leases.progress != progress.id or leases.history > progress.history
    )


def _is_settled(leases: LeasesMeta | None, progress: ProgressMeta | None, at_least: int) -> bool:
    if leases is None or progress is None:
        return False
    return (leases.progress, leases.history) == progress and leases.history >= at_least


def _fresh_id() -> str:
    return secrets.token_hex(8)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _siblings(path: Path | str) -> list[str]:
    return [f"{path}{suffix}" for suffix in SIBLINGS]


def _clear_orphaned(path: Path) -> None:
    """Removes the log of a deleted database, so that it is not applied to a new one."""
    for sibling in _siblings(path):
        _unlink(sibling)


def _clear_replaced(path: Path, before: FileIdentities) -> None:
    """Removes the log of a database that was replaced by a move, if no process has opened the new one yet."""
    if identity(path) != before.file:
        for sibling, was in zip(_siblings(path), before.siblings, strict=True):
            if was is not None and identity(sibling) == was:
                _unlink(sibling)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _check(connection: apsw.Connection, path: Path) -> None:
    """Raises Misconfigured if the file is not evenflow's, or was written by a newer version."""
    version, application = _number(connection, "user_version"), _number(connection, "application_id")
    if version == application == 0 and not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
        return
    if application != APPLICATION_IDS[path.name]:
        raise Misconfigured(f"{path} is a database, but not one of evenflow's. Use an empty folder for the store.")
    if version > VERSION:
        raise Misconfigured(
            f"{path} was written by a newer evenflow (schema {version}; this version supports {VERSION}). "
            "Upgrade evenflow here, or use another folder."
        )


def _upgrade(connection: apsw.Connection, name: str) -> None:
    """Upgrades the schema step by step. The caller holds the folder's lock."""
    while 0 < (version := _number(connection, "user_version")) < VERSION:
        with immediate(connection):
            connection.execute(UPGRADES[name][version])
            connection.execute(f"PRAGMA user_version={version + 1:d}")


def _number(connection: apsw.Connection, pragma: str) -> int:
    return int(connection.pragma(pragma))


def _row(connection: apsw.Connection, statement: str) -> tuple[Any, ...]:
    return connection.execute(statement).fetchall()[0]


def _leases_meta(connection: apsw.Connection) -> LeasesMeta | None:
    if _number(connection, "user_version") == 0:
        return None
    return LeasesMeta(*_row(connection, "SELECT lineage, history, progress FROM meta"))


def _progress_meta(connection: apsw.Connection) -> ProgressMeta | None:
    if _number(connection, "user_version") == 0:
        return None
    return ProgressMeta(*_row(connection, "SELECT id, history FROM evenflow_meta"))


def _write_progress_meta(connection: apsw.Connection, before: ProgressMeta | None, after: ProgressMeta) -> None:
    if before is None:
        _make(connection, PROGRESS)
        connection.execute("INSERT INTO evenflow_meta VALUES (?, ?)", after)
    else:
        connection.execute("UPDATE evenflow_meta SET history = ?", (after.history,))


def _write_leases_meta(
    connection: apsw.Connection, before: LeasesMeta | None, paired: ProgressMeta, *, has_new_lineage: bool
) -> None:
    """A store that lost its progress gets a new lineage: so each instance notices the loss and reclaims its partitions
    at once."""
    if before is None:
        _make(connection, LEASES)
        connection.execute("INSERT INTO meta VALUES (?, ?, ?, 0, 0)", (_fresh_id(), paired.history, paired.id))
    else:
        lineage = _fresh_id() if has_new_lineage else before.lineage
        connection.execute("UPDATE meta SET lineage = ?, history = ?, progress = ?", (lineage, *paired[::-1]))


def _make(connection: apsw.Connection, name: str) -> None:
    connection.execute(SCHEMAS[name])
    connection.execute(f"PRAGMA application_id={APPLICATION_IDS[name]:d}; PRAGMA user_version={VERSION:d}")
