"""Opens SQLite files, runs short write transactions, and translates SQLite's errors.

Everything here blocks and must not run on the event loop's thread. No other code may open a database file, not even to
read it: closing any file handle on it drops the locks that this process holds.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING

import apsw

from evenflow.errors import Corrupt, EvenflowError, Misconfigured, StorageFull
from evenflow.local.mounts import network_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from evenflow.errors import Transient
    from evenflow.local.long_work import LongWork

WRITE_LOCK_BYTE = 120
"""The byte of the `-shm` file that a writer in WAL mode locks."""

LOCK_RETRY_S = 0.005
LONG_WORK_MOST_S = 600.0
"""The longest wait for a lock, in any case."""

FULL_DISK_BYTES = 256 * 1024
"""With less free space than this, a file system error is reported as a full disk."""


def connect(
    path: str | Path,
    *,
    busy_timeout_s: float,
    full_sync: bool = True,
    create: bool = True,
    page_bytes: int | None = None,
    long_work: LongWork | None = None,
) -> apsw.Connection:
    """Opens a database in WAL mode. With `full_sync`, a commit that has returned survives a loss of power.

    While `long_work` is announced, it waits for a lock beyond `busy_timeout_s`.

    Raises SQLite's own errors, except for a network file system: wrap it in `translated`.
    """
    path = Path(path)
    if (kind := network_file_system(path)) is not None:
        raise Misconfigured(
            f"{path} is on a network file system ({kind}), where SQLite's locks and shared memory do not work. "
            "Put it on a local disk. To share data between machines, use a store or source on a server."
        )
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(os.fspath(path), flags=flags)
    try:
        connection.set_busy_handler(_patience(busy_timeout_s, long_work))
        if page_bytes is not None:
            connection.execute(f"PRAGMA page_size={page_bytes:d}")
        _use_write_ahead_log(connection, busy_timeout_s)
        connection.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
    except BaseException:
        connection.close(True)
        raise
    return connection


def _patience(busy_timeout_s: float, long_work: LongWork | None) -> Callable[[int], bool]:
    """A busy handler that waits in short steps.

    SQLite's own handler backs off to steps of 100 ms, with which busy writers starve each other for seconds.
    """
    began_s = since_s = 0.0
    pause = Event()

    def wait(times: int) -> bool:
        nonlocal began_s, since_s
        now_s = perf_counter()
        if times == 0:
            began_s = since_s = now_s
        if now_s - since_s >= busy_timeout_s:
            if long_work is None or now_s - began_s >= LONG_WORK_MOST_S or not long_work.is_announced():
                return False
            since_s = now_s
        pause.wait(min(LOCK_RETRY_S, 0.001 * (1 + times // 20)))
        return True

    return wait


def _use_write_ahead_log(connection: apsw.Connection, busy_timeout_s: float) -> None:
    """Retries itself, because SQLite does not wait if two processes switch a new file to WAL mode at the same time."""
    deadline_s = perf_counter() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except apsw.BusyError:
            if perf_counter() >= deadline_s:
                raise
            Event().wait(LOCK_RETRY_S)


def sync_folder(folder: Path) -> None:
    """Makes the names of new files durable; SQLite only syncs their contents."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def immediate(connection: apsw.Connection) -> Iterator[None]:
    """A write transaction around the block.

    It takes the write lock at the start, because a transaction that begins as a reader fails at its first write if
    another process has written in between, whatever the busy timeout.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk or a damaged file may have rolled it back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class translated:
    """Translates SQLite's and the file system's errors inside the block into evenflow's errors."""

    __slots__ = ("_path", "_started_s", "_unavailable")

    def __init__(self, path: str | Path, unavailable: type[Transient]) -> None:
        self._path = path
        self._unavailable = unavailable

    def __enter__(self) -> None:
        self._started_s = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        waited_s = perf_counter() - self._started_s
        ours = _translate(error, Path(self._path), self._unavailable, waited_s)
        if ours is not None:
            raise ours from error


def _translate(error: BaseException, path: Path, unavailable: type[Transient], waited_s: float) -> EvenflowError | None:
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return unavailable(
                f"{path} is locked by {_holder_text(path)}; gave up after {waited_s:.1f} s. Try again (a running "
                "instance retries by itself). If this persists, check whether that process is stopped or hangs."
            )
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return damaged(path, str(error))
        case apsw.FullError():
            return _full(path)
        case apsw.IOError() if _disk_is_full(path):
            return _full(path)
        case apsw.IOError() | apsw.InterruptError():
            return unavailable(f"{path} could not be read or written: {error}. Check the disk.")
        case apsw.ReadOnlyError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_DBMOVED:
            return unavailable(f"{path} was deleted or moved while it was open. Restore it, or restart.")
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return Misconfigured(f"{path} is read-only. Allow this user to write it and its folder.")
        case apsw.CantOpenError():
            return _cannot_open(error, path, unavailable)
        case OSError():
            return _translate_os(error, path, unavailable)
    return None


def _translate_os(error: OSError, path: Path, unavailable: type[Transient]) -> EvenflowError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _full(path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
        return Misconfigured(f"{path}: {error.strerror}. Allow this user to write it and its folder.")
    return unavailable(f"{path}: {error.strerror or error}.")


def _cannot_open(error: apsw.Error, path: Path, unavailable: type[Transient]) -> EvenflowError:
    if not path.parent.is_dir():
        return Misconfigured(f"{path} cannot be opened: no folder {path.parent}. Create it, or correct the path.")
    if path.is_dir():
        return Misconfigured(f"{path} cannot be opened: it is a folder. Use a file in it.")
    if not path.exists() and os.access(path.parent, os.W_OK | os.X_OK):
        return unavailable(f"{path} cannot be opened: it does not exist. Restore it, or correct the path.")
    if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK):
        return Misconfigured(f"{path} cannot be opened. Allow this user to read and write it and its folder.")
    return unavailable(f"{path} cannot be opened: {error}. Check whether this process has too many open files.")


def damaged(path: str | Path, what: str) -> Corrupt:
    """The error for a file with damaged contents."""
    return Corrupt(
        f"{path} is damaged ({what}). Stop all processes that use it, keep a copy, and restore it with its -wal file "
        "from a backup; or recover what is left with `sqlite3 FILE .recover`."
    )


def _full(path: Path) -> StorageFull:
    return StorageFull(
        f"The disk of {path} is full. Nothing was written partially and no acknowledged write is lost: "
        "free some disk space, then try again."
    )


def _disk_is_full(path: Path) -> bool:
    try:
        space = os.statvfs(path.parent)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < FULL_DISK_BYTES


def _holder_text(path: Path) -> str:
    pid = lock_holder(path)
    if pid is None:
        return "another process"
    return "another connection of this process" if pid == os.getpid() else f"another process (pid {pid})"


def lock_holder(path: Path) -> int | None:
    """The pid of the process that holds the write lock, from the kernel's lock table; None if it is unknown.

    Reading that table opens no database file, so it drops no lock.
    """
    try:
        shared = os.stat(f"{path}-shm")
        with open("/proc/locks", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    inode = f":{shared.st_ino}"
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[3] == "WRITE" and fields[5].endswith(inode) and _covers(fields[6], fields[7]):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _covers(first: str, last: str) -> bool:
    return int(first) <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE)
