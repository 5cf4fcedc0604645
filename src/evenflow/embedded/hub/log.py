"""One partition: an ordered log in one SQLite file, written and read in short transactions.

All of it blocks and belongs off the event loop's thread; a lock lets several threads share a log. Sequences are
contiguous and start at 0; they go on after everything was trimmed, and times never go back.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import msgspec

from evenflow.embedded.hub.buffers import LARGE_BYTES, Buffers
from evenflow.embedded.hub.marks import Recognition, numbers_kept
from evenflow.embedded.hub.records import Look, Row, checksum, cut, decode, decode_stored, encode
from evenflow.embedded.hub.schema import LOG_APPLICATION_ID, create_tables, upgrade_log
from evenflow.embedded.hub.state import LogState, check_range
from evenflow.errors import Corrupt, EvenflowError, SourceUnavailable
from evenflow.local.database import connect, damaged, immediate, sync_folder, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from evenflow.embedded.hub.marks import Mark
    from evenflow.embedded.hub.records import StoredEvent
    from evenflow.model import Event

E = TypeVar("E")

PAGE_BYTES = 16_384
"""Rows of hundreds of kilobytes fill pages of this size a third faster than the usual ones."""
CHECKPOINT_PAGES = 512
CACHE_BYTES = 512 * 1024
"""Events are written once and read once; a larger cache only makes a process with many partitions larger."""
WAL_BYTES_MAX = 64 * 1024 * 1024
"""A log that grew beside a reader that stood still is cut back to this."""
TRIM_ROWS = 64
"""How many rows one transaction removes at most."""

_INSERT = """
INSERT INTO batches (first, last, enqueued_us, written, size, crc, sends, events) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

# The newest row says where the log stands; the state of the last trim does when there is none. An append thus writes
# to one place only.
_STATE = """
SELECT oldest, coalesce(newest.last + 1, state.next), coalesce(newest.enqueued_us, state.enqueued_us),
    coalesce(newest.written, trimmed), trimmed
FROM state LEFT JOIN (SELECT last, enqueued_us, written FROM batches ORDER BY first DESC LIMIT 1) AS newest
"""

_ROWS = """
SELECT first, last, size, crc, CASE WHEN size < :large THEN events END FROM batches
WHERE first >= coalesce((SELECT first FROM batches WHERE first <= :next ORDER BY first DESC LIMIT 1), 0)
    AND last >= :next
ORDER BY first
"""

_ROW_OF = "SELECT first, last, enqueued_us FROM batches WHERE first <= ? ORDER BY first DESC LIMIT 1"


def create_log(path: Path, made: str, number: int, busy_timeout_s: float) -> None:
    """Make the file of a partition that nobody can see yet; durable when it returns.

    What a crashed attempt left behind is replaced.
    """
    with translated(path, SourceUnavailable):
        for leftover in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            leftover.unlink(missing_ok=True)
        connection = connect(path, busy_timeout_s=busy_timeout_s, page_bytes=PAGE_BYTES)
        try:
            with immediate(connection):
                create_tables(connection, made, number)
        finally:
            connection.close()
        sync_folder(path.parent)


class PartitionLog:
    """The file is opened at the first use, and again after an error that a restored file may have cured."""

    def __init__(
        self, path: Path, made: str, number: int, busy_timeout_s: float, buffers: Buffers | None = None
    ) -> None:
        self.path = path
        self._made = made
        self._number = number
        self._busy_timeout_s = busy_timeout_s
        self._lock = Lock()
        self._connection: apsw.Connection | None = None
        self._inode = 0
        self._closed = False
        self._buffers = buffers or Buffers()

    def append(
        self, groups: Sequence[Sequence[Event]], now_us: int, marks: Sequence[Mark | None] = ()
    ) -> list[tuple[int, int]]:
        """Write all groups in one durable transaction; the first and last sequence of each.

        A group whose mark says that it is stored already is not written again. Raises `BatchForgotten`, and writes
        nothing, when that can no longer be told of one of them.
        """
        commits = False
        try:
            with self._use() as connection, immediate(connection):
                places = self._append(connection, groups, now_us, marks)
                commits = True
        except EvenflowError as error:
            # Only a disk that was full before the last page is known not to have the whole commit.
            if commits and not isinstance(error.__cause__, apsw.FullError):
                for mark in filter(None, marks):
                    mark.in_doubt = True
            raise
        return places

    def _append(
        self, connection: apsw.Connection, groups: Sequence[Sequence[Event]], now_us: int, marks: Sequence[Mark | None]
    ) -> list[tuple[int, int]]:
        state = _state(connection)
        known = Recognition(self.path, connection, state, marks or [None] * len(groups))
        places, new = known.places(groups)
        if not new:
            return places
        events = new[0] if len(new) == 1 else [event for group in new for event in group]
        enqueued_us = max(now_us, state.enqueued_us)
        end, sequence, written = state.next + len(events), state.next, state.written_bytes
        for row in cut(events):
            blob = encode(row, sequence, enqueued_us)
            first, sequence, written = sequence, sequence + len(row), written + len(blob)
            sends = known.added() if sequence == end else None
            connection.execute(
                _INSERT, (first, sequence - 1, enqueued_us, written, len(blob), checksum(blob), sends, blob)
            )
        known.write_numbers()
        return places

    def read(self, after: int, max_events: int, max_bytes: int) -> Look:
        """Whole rows from the event after `after` on, until they have so many events or bytes."""
        with self._use() as connection:
            cursor = connection.execute(_ROWS, {"next": after + 1, "large": LARGE_BYTES})
            try:
                look = self._collected(connection, cursor, after, max_events, max_bytes)
            finally:
                # A cursor that is left half read, if only by a traceback, holds the write-ahead log back.
                cursor.close()
            if not look.rows:
                check_range(self.path, after, _state(connection))
        return look

    def _collected(
        self, connection: apsw.Connection, cursor: apsw.Cursor, after: int, max_events: int, max_bytes: int
    ) -> Look:
        rows: list[Row] = []
        wanted = after + 1
        for first, last, size, crc, small in cursor:
            if first > wanted:
                # Retention was faster than this reader: it gets what is before the gap, and next time the error.
                return Look(rows, all=False)
            rows.append(Row(first, last, size, crc, self._large(connection, first, size) if small is None else small))
            wanted = last + 1
            max_bytes -= size
            if last - after >= max_events or max_bytes <= 0:
                # Asking for another row would read all of it.
                return Look(rows, all=False)
        return Look(rows, all=True)

    def _large(self, connection: apsw.Connection, first: int, size: int) -> bytearray:
        buffer = self._buffers.take(size)
        with connection.blob_open("main", "batches", "events", first, False) as blob:
            blob.read_into(buffer, 0, size)
        return buffer

    def events(self, row: Row) -> list[Event]:
        """A row's events, once. This needs no file and may be called on any thread."""
        return self._decoded(row, decode)

    def stored_events(self, row: Row) -> list[StoredEvent]:
        """The same, for whoever passes them on."""
        return self._decoded(row, decode_stored)

    def _decoded(self, row: Row, decode: Callable[[memoryview], list[E]]) -> list[E]:
        try:
            with memoryview(row.blob) as whole, whole[: row.size_bytes] as blob:
                if checksum(blob) != row.crc:
                    raise damaged(self.path, f"the checksum of events {row.first} to {row.last} is wrong")
                events = decode(blob)
        except msgspec.DecodeError as error:
            raise damaged(self.path, f"events {row.first} to {row.last} cannot be decoded: {error}") from error
        if len(events) != row.events_count:
            raise damaged(self.path, f"there are {len(events)} events where {row.first} to {row.last} should be")
        if isinstance(row.blob, bytearray):
            self._buffers.give_back(row.blob)
        return events

    def state(self) -> LogState:
        with self._use() as connection:
            return _state(connection)

    def last_number(self, producer: str) -> int | None:
        """The newest number that is stored of a producer's sends; None when the log knows none."""
        with self._use() as connection:
            kept = numbers_kept(self.path, connection, producer)
        return kept[-1].number if kept else None

    def enqueued_us(self, after: int) -> int | None:
        """When the first event after this place was enqueued, of those that are still there; None: there is none."""
        with self._use() as connection, connection:
            state = _state(connection)
            wanted = max(after + 1, state.oldest)
            row = _one(connection, _ROW_OF, wanted) if wanted < state.next else None
        return int(row[2]) if row is not None else None

    def before_time(self, time_us: int) -> int:
        """The sequence before the first event that was enqueued at or after a time; the newest when there is none.

        Times rise with sequences, so this halves the log until one row is left; no index has to be kept.
        """
        low = 0
        with self._use() as connection, connection:
            low, high, *_ = _state(connection)
            while low < high:
                first, last, enqueued_us = _one(connection, _ROW_OF, (low + high) // 2)
                if enqueued_us >= time_us:
                    high = first
                else:
                    low = last + 1
        return low - 1

    def trim(self, before_us: int | None, keep_bytes: int | None) -> bool:
        """Remove some of the oldest rows that are too old or too much; whether there may be more.

        For size alone the newest row always stays.
        """
        with self._use() as connection, immediate(connection):
            state = _state(connection)
            oldest, trimmed = state.oldest, state.trimmed_bytes
            removed = 0
            for last, enqueued_us, written in connection.execute(
                "SELECT last, enqueued_us, written FROM batches ORDER BY first LIMIT ?", (TRIM_ROWS,)
            ):
                too_old = before_us is not None and enqueued_us < before_us
                kept_bytes = state.written_bytes - trimmed
                too_much = keep_bytes is not None and kept_bytes > keep_bytes and last + 1 < state.next
                if not too_old and not too_much:
                    break
                oldest, trimmed, removed = last + 1, written, removed + 1
            if removed:
                _remove(connection, state, oldest, trimmed)
        return removed == TRIM_ROWS

    def remove_before(self, sequence: int) -> None:
        """Remove all rows whose events all come before a sequence."""
        with self._use() as connection, immediate(connection):
            row = connection.execute(
                "SELECT last, written FROM batches WHERE last < ? ORDER BY first DESC LIMIT 1", (sequence,)
            ).fetchone()
            if row is not None:
                _remove(connection, _state(connection), row[0] + 1, row[1])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    @contextmanager
    def _use(self) -> Iterator[apsw.Connection]:
        with self._lock, translated(self.path, SourceUnavailable):
            try:
                yield self._opened()
            except (Corrupt, apsw.CorruptError, apsw.NotADBError, apsw.IOError):
                self._drop()
                raise

    def _opened(self) -> apsw.Connection:
        """The connection, after a look whether the file at this path is still the one that it is connected to."""
        if self._closed:
            raise SourceUnavailable(f"{self.path} is closed. Open the hub again.")
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            self._drop()
            raise self._missing() from None
        if self._connection is None or found.st_ino != self._inode:
            self._drop()
            if found.st_size == 0:
                # SQLite would take it for a new database, and delete its write-ahead log.
                raise damaged(self.path, "it is empty")
            self._connection = self._connect()
            self._inode = found.st_ino
        return self._connection

    def _connect(self) -> apsw.Connection:
        connection = connect(self.path, busy_timeout_s=self._busy_timeout_s, create=False)
        try:
            if connection.pragma("application_id") != LOG_APPLICATION_ID:
                raise damaged(self.path, "it is a database, but not that of a partition")
            row = connection.execute("SELECT made, number FROM state").fetchone()
            if row != (self._made, self._number):
                raise damaged(self.path, f"it is not partition {self._number} of this hub")
            upgrade_log(self.path, connection)
            connection.wal_autocheckpoint(CHECKPOINT_PAGES)
            connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
            connection.execute(f"PRAGMA cache_size={-CACHE_BYTES // 1024}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _missing(self) -> SourceUnavailable:
        """No damage for good: it may be a hub that is just being deleted, and a restored file is used at once."""
        if not self.path.parent.is_dir():
            return SourceUnavailable(f"The hub at {self.path.parent.parent} was deleted. Make it again or restore it.")
        return SourceUnavailable(
            f"{self.path} is missing. Restore it from a backup; the other partitions are not affected."
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close(True)
            self._connection = None


def _state(connection: apsw.Connection) -> LogState:
    return LogState(*_one(connection, _STATE))


def _one(connection: apsw.Connection, query: str, *values: int) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    if row is None:
        raise apsw.CorruptError("a row is missing")
    return row


def _remove(connection: apsw.Connection, state: LogState, oldest: int, trimmed: int) -> None:
    connection.execute("DELETE FROM batches WHERE first < ?", (oldest,))
    connection.execute(
        "UPDATE state SET oldest = ?, next = ?, enqueued_us = ?, trimmed = ?",
        (oldest, state.next, state.enqueued_us, trimmed),
    )
