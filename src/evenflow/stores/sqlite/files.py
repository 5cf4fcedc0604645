"""The two files of a SQLite store: what is in them, how they are made, and how it is noticed that one was lost.

`leases.sqlite` has groups, members, leases and moves; `progress.sqlite` has the checkpoints. Each knows of the other,
so that a file which was deleted, emptied or replaced is found the next time somebody opens the pair: then the store's
history rises, and no epoch of before comes back. Whoever makes, pairs or raises does so alone, under a lock on the
folder, and writes progress before leases: the history in progress is never below the one that instances have seen.
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
    LEASES: "Or move it away, with its -wal and -shm files: leases are made anew, and no progress is lost.",
    PROGRESS: "Without it, partitions begin again where the `start` setting says.",
}

Identity: TypeAlias = "tuple[int, int] | None"
"""Which file it is that stands under a path now; None when there is none."""


class LeasesMeta(NamedTuple):
    lineage: str
    history: int
    progress: str


class ProgressMeta(NamedTuple):
    id: str
    history: int


class Look(NamedTuple):
    """Which files stood where when a connection was opened; while it is open, no other has the same identity."""

    file: Identity
    other: Identity
    siblings: tuple[Identity, ...]


class _Known(NamedTuple):
    """The pair as this process has last seen it.

    An identity may be given again once nobody has the file open; a lineage never is, but a copy has it too.
    """

    leases: tuple[Identity, str | None]
    """The file, and its lineage."""
    progress: Identity
    history: int


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """SQLite's errors become ours; those of a damaged file say what this one is good for."""
    try:
        with translated(path, StoreUnavailable):
            yield
    except Corrupt as error:
        if isinstance(error.__cause__, apsw.Error):
            raise Corrupt(f"{error} {ADVICE[path.name]}") from error
        raise


class StoreFolder:
    """Where a store lives, and the rules for opening it. Everything here blocks."""

    def __init__(self, path: Path, *, busy_timeout_s: float, create: bool) -> None:
        self.path = path
        leases, progress = str(path / LEASES), str(path / PROGRESS)
        self._paths = {LEASES: (leases, progress), PROGRESS: (progress, leases)}
        self._busy_timeout_s = busy_timeout_s
        self._create = create
        self._known: _Known | None = None

    def look(self, name: str) -> Look:
        """Cheap, for every operation: an instance must not talk happily to a file that was deleted."""
        path, other = self._paths[name]
        return Look(identity(path), identity(other), tuple([identity(sibling) for sibling in _siblings(path)]))

    def open(self, name: str, before: Look | None, release: Callable[[], None]) -> tuple[apsw.Connection, Look]:
        """A connection to one of the files. `release` closes the one that there was, which was opened on `before`."""
        self.make()
        path = self.path / name
        with translated(self.path, StoreUnavailable), self._alone():
            if before is not None:
                _clear_replaced(path, before)
            release()
            self._settle(0)
            seen = self.look(name)
            with guarded(path):
                connection = connect(path, busy_timeout_s=self._busy_timeout_s, create=False)
            # A file that was replaced in between differs from `seen`, and is found out by the next operation.
            return connection, seen._replace(siblings=self.look(name).siblings)

    def raise_history(self, at_least: int) -> None:
        self.make()
        with translated(self.path, StoreUnavailable), self._alone():
            self._settle(at_least)

    def saw_history(self, history: int) -> None:
        """Cheap, for every heartbeat: another process may have raised it."""
        if self._known is not None and history > self._known.history:
            self._known = self._known._replace(history=history)

    @contextmanager
    def pair(self) -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
        """Connections of one's own to leases and progress, while nobody else opens the store."""
        self.make()
        with translated(self.path, StoreUnavailable), self._alone(), self._settled(0) as both:
            yield both

    def make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise Misconfigured(f"{self.path} is a file. A SQLite store is a folder: give it a path of its own.")
        if self._create:
            with translated(self.path, StoreUnavailable):
                self.path.mkdir(parents=True, exist_ok=True)
        elif not (self.path / LEASES).exists():
            raise Misconfigured(
                f"There is no store at {self.path}: it has no {LEASES}. The first processor that runs with it makes it;"
                " if one has, correct the path."
            )

    def _settle(self, at_least: int) -> None:
        with self._settled(at_least):
            pass

    @contextmanager
    def _settled(self, at_least: int) -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
        """Make what is missing, and bring the pair to one history, which is `at_least` so high.

        It is above the one that this process has seen, where another file stands in the place of one that it has seen:
        no request that was on its way then must meet an empty store that knows nothing of it.
        """
        with closing(self._open(LEASES)) as leases, closing(self._open(PROGRESS)) as progress:
            known, found = self._known, self._look_at(leases)
            is_replaced = known is not None and known.progress != found.progress
            has_leases = known is None or known.leases == found.leases
            if known is not None and (is_replaced or not has_leases):
                at_least = max(at_least, known.history + 1)
            self._pair(leases, progress, at_least, is_progress_lost=is_replaced and has_leases)
            self._known = self._look_at(leases)
            yield leases, progress

    def _look_at(self, leases: apsw.Connection) -> _Known:
        look = self.look(LEASES)
        with guarded(self.path / LEASES):
            mine = _leases_meta(leases)
        return _Known((look.file, mine.lineage if mine else None), look.other, mine.history if mine else 0)

    def _open(self, name: str) -> apsw.Connection:
        path = self.path / name
        with guarded(path):
            # Made only when it was not there, so that a file which is deleted right now is not made beside its old log.
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
                _write_leases_meta(leases, mine, paired, is_another=is_progress_lost or has_lost_progress(mine, other))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = self._locked(perf_counter() + self._busy_timeout_s)
        try:
            yield
        finally:
            os.close(descriptor)

    def _locked(self, deadline_s: float) -> int:
        """The folder itself, open and locked. One that was deleted while we waited is nobody's."""
        while perf_counter() < deadline_s:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _lock(descriptor) and _identity_of(os.fstat(descriptor)) == identity(self.path):
                return descriptor
            os.close(descriptor)
            Event().wait(LOCK_RETRY_S)
        raise StoreUnavailable(f"Another process has been opening the store in {self.path} for too long.")


def identity(path: Path | str) -> Identity:
    try:
        return _identity_of(os.stat(path))
    except OSError:
        return None


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def next_history(leases: LeasesMeta | None, progress: ProgressMeta | None, at_least: int) -> int:
    """The history of this pair of files, of which one or both (None) may be new."""
    if leases is None or progress is None:
        known = leases or progress
        return max(known.history + 1 if known else 0, at_least)
    # Progress is always written first, so that one which lags behind is an older copy of itself.
    is_other = leases.progress != progress.id or leases.history > progress.history
    return max(leases.history + is_other, progress.history + is_other, at_least)


def has_lost_progress(leases: LeasesMeta | None, progress: ProgressMeta | None) -> bool:
    """Whether these leases were paired with a progress that is not there any more, or later than this one is."""
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
    """The log of a database that is gone belongs to nothing, and must not be taken for that of a new one."""
    for sibling in _siblings(path):
        _unlink(sibling)


def _clear_replaced(path: Path, before: Look) -> None:
    """The same for a database that another was moved over, as long as nobody has opened that one yet."""
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
    """Misconfigured when this is no file of ours, or one of a later version of ours."""
    version, application = _number(connection, "user_version"), _number(connection, "application_id")
    if version == application == 0 and not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
        return
    if application != APPLICATION_IDS[path.name]:
        raise Misconfigured(f"{path} is a database, but not one of evenflow's. Give the store a folder of its own.")
    if version > VERSION:
        raise Misconfigured(
            f"{path} was written by a newer evenflow (its schema is {version}, this one knows {VERSION}). "
            "Update evenflow here, or give this store another folder."
        )


def _upgrade(connection: apsw.Connection, name: str) -> None:
    """Step by step to this version. Whoever opens the files does so alone."""
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
    connection: apsw.Connection, before: LeasesMeta | None, paired: ProgressMeta, *, is_another: bool
) -> None:
    """A store that has lost its progress is another one: so each instance learns that what it has seen was lost, and
    has its partitions back at once."""
    if before is None:
        _make(connection, LEASES)
        connection.execute("INSERT INTO meta VALUES (?, ?, ?, 0, 0)", (_fresh_id(), paired.history, paired.id))
    else:
        lineage = _fresh_id() if is_another else before.lineage
        connection.execute("UPDATE meta SET lineage = ?, history = ?, progress = ?", (lineage, *paired[::-1]))


def _make(connection: apsw.Connection, name: str) -> None:
    connection.execute(SCHEMAS[name])
    connection.execute(f"PRAGMA application_id={APPLICATION_IDS[name]:d}; PRAGMA user_version={VERSION:d}")
