"""One open incarnation of a container: its metadata, its bell, a connection for writes and a pool for reads."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import apsw

from evenflow.embedded.container.metadata import (
    SIGN,
    bell_path,
    check_file,
    check_format,
    metadata_path,
    one_row,
    read_metadata,
)
from evenflow.embedded.container.write_queue import WriteQueue, WriteTransaction
from evenflow.errors import Corrupt, SourceUnavailable
from evenflow.local.bell import Bell
from evenflow.local.database import connect, translated
from evenflow.local.long_work import LongWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTAINER_SLOT = 0
"""The bell's slot for splits and merges. Range n has slot n + 1."""
IDLE_READERS = 8
CHECKPOINT_PAGES = 512
WAL_BYTES_MAX = 64 * 1024 * 1024
"""The write-ahead log is truncated to this size after a long-running reader made it grow."""


def slot_of(range_id: int) -> int:
    return range_id + 1


class OpenContainer:
    """The open file of a container. Once the folder is deleted or replaced, `is_deleted` is true."""

    def __init__(self, folder: Path, *, busy_timeout_s: float, wall_us: Callable[[], int]) -> None:
        self.folder = folder
        self.path = metadata_path(folder)
        self.wall_us = wall_us
        self._busy_timeout_s = busy_timeout_s
        self._lock = Lock()
        self._closed = False
        self._idle: list[apsw.Connection] = []
        self.sign = LongWork(folder / SIGN)
        check_file(folder)
        with translated(self.path, SourceUnavailable):
            self._write_connection = self._connect()
            self.metadata = read_metadata(self._write_connection, self.path)
            self.bell = Bell(bell_path(folder), CONTAINER_SLOT + 1)
            (most,) = one_row(self._write_connection, "SELECT max(id) FROM ranges")
        self.bell.grow(slot_of(most) + 1)
        self.write_queue = WriteQueue(self._transaction, self._ring)

    @property
    def is_deleted(self) -> bool:
        return self.bell.gone()

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """A connection for one short read, in its own transaction, which sees one consistent state."""
        with translated(self.path, SourceUnavailable):
            connection = self._acquire()
            try:
                with connection:
                    yield connection
            except (Corrupt, apsw.CorruptError, apsw.NotADBError, apsw.IOError):
                connection.close(True)
                raise
            except BaseException:
                self._release(connection)
                raise
            self._release(connection)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close(True)
        self._write_connection.close(True)
        self.bell.close()

    @contextmanager
    def _transaction(self) -> Iterator[WriteTransaction]:
        if self._closed:
            raise SourceUnavailable(f"{self.path} is closed. Open the container again.")
        if self.is_deleted:
            raise SourceUnavailable(f"The container at {self.folder} was deleted. Restore it or create it again.")
        with translated(self.path, SourceUnavailable):
            yield WriteTransaction(self._write_connection, self.metadata, self.wall_us())

    def _ring(self, slots: set[int]) -> None:
        if slots:
            self.bell.grow(max(slots) + 1)
        for slot in slots:
            self.bell.ring(slot)

    def _acquire(self) -> apsw.Connection:
        with self._lock:
            if self._closed:
                raise SourceUnavailable(f"{self.path} is closed. Open the container again.")
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _release(self, connection: apsw.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_READERS:
                self._idle.append(connection)
                return
        connection.close(True)

    def _connect(self) -> apsw.Connection:
        connection = connect(self.path, busy_timeout_s=self._busy_timeout_s, create=False, long_work=self.sign)
        try:
            check_format(connection, self.path)
            connection.wal_autocheckpoint(CHECKPOINT_PAGES)
            connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
        except BaseException:
            connection.close()
            raise
        return connection
