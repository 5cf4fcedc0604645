"""One partition: an ordered log in one SQLite file, written and read in short transactions.

All methods block, so call them off the event loop's thread. A lock lets several threads share a log. Sequence numbers
are contiguous and start at 0. They continue after the log was trimmed, and enqueue times never decrease.
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
from evenflow.embedded.hub.deduplication import Deduplicator, recent_numbers
from evenflow.embedded.hub.log_state import LogState, check_range
from evenflow.embedded.hub.records import LogRead, LogRow, checksum, decode, decode_stored, encode, split_into_rows
from evenflow.embedded.hub.schema import LOG_APPLICATION_ID, create_tables, upgrade_log
from evenflow.errors import Corrupt, EvenflowError, SourceUnavailable
from evenflow.local.database import connect, damaged, immediate, sync_folder, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from evenflow.embedded.hub.deduplication import PartitionSend
    from evenflow.embedded.hub.records import StoredEvent
    from evenflow.model import Event

E = TypeVar("E")

PAGE_BYTES = 16_384
"""Writing rows of hundreds of kilobytes is a third faster with pages of this size than with SQLite's default."""
CHECKPOINT_PAGES = 512
CACHE_BYTES = 512 * 1024
"""Events are written once and read once, so a larger cache only costs memory in a process with many partitions."""
WAL_BYTES_MAX = 64 * 1024 * 1024
"""The write-ahead log is truncated to this size after a long-running reader made it grow."""
TRIM_ROWS = 64
"""How many rows one transaction removes at most."""

_INSERT = """
INSERT INTO batches (first, last, enqueued_us, written, size, crc, sends, events) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

# The end of the log is taken from the newest row, or from the state of the last trim if there is no row. This way an
# append writes to one table only.
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
    """Create the file of a partition that is not visible yet; durable on return.

    Replaces what an attempt that crashed left behind.
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
    """Opens the file at the first use, and again after an error that a restored file may have fixed."""

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
        self, groups: Sequence[Sequence[Event]], now_us: int, sends: Sequence[PartitionSend | None] = ()
    ) -> list[tuple[int, int]]:
        """Write all groups in one durable transaction and return the first and last sequence number of each.

        A group whose send is already stored is not written again. Raises `BatchForgotten` and writes nothing if the
        log no longer knows whether one of them is stored.
        """
        commits = False
        try:
            with self._use() as connection, immediate(connection):
                ranges = self._append(connection, groups, now_us, sends)
                commits = True
        except EvenflowError as error:
            # After a failed commit the data may be durable. Only a full disk is known to have prevented it.
            if commits and not isinstance(error.__cause__, apsw.FullError):
                for send in filter(None, sends):
                    send.in_doubt = True
            raise
        return ranges

    def _append(
        self,
        connection: apsw.Connection,
        groups: Sequence[Sequence[Event]],
        now_us: int,
        sends: Sequence[PartitionSend | None],
    ) -> list[tuple[int, int]]:
        state = _state(connection)
        deduplicator = Deduplicator(self.path, connection, state, sends or [None] * len(groups))
        ranges, new = deduplicator.assign(groups)
        if not new:
            return ranges
        events = new[0] if len(new) == 1 else [event for group in new for event in group]
        enqueued_us = max(now_us, state.enqueued_us)
        end, sequence, written = state.next + len(events), state.next, state.written_bytes
        for row in split_into_rows(events):
            blob = encode(row, sequence, enqueued_us)
            first, sequence, written = sequence, sequence + len(row), written + len(blob)
            batch_ids = deduplicator.encoded_batch_ids() if sequence == end else None
            connection.execute(
                _INSERT, (first, sequence - 1, enqueued_us, written, len(blob), checksum(blob), batch_ids, blob)
            )
        deduplicator.write_numbers()
        return ranges

    def read(self, after: int, max_events: int, max_bytes: int) -> LogRead:
        """Whole rows from the event after `after`, until they hold this many events or bytes."""
        with self._use() as connection:
            cursor = connection.execute(_ROWS, {"next": after + 1, "large": LARGE_BYTES})
            try:
                found = self._collect(connection, cursor, after, max_events, max_bytes)
            finally:
                # An unfinished cursor, which a traceback can keep alive, prevents checkpoints of the write-ahead log.
                cursor.close()
            if not found.rows:
                check_range(self.path, after, _state(connection))
        return found

    def _collect(
        self, connection: apsw.Connection, cursor: apsw.Cursor, after: int, max_events: int, max_bytes: int
    ) -> LogRead:
        rows: list[LogRow] = []
        wanted = after + 1
        for first, last, size, crc, small in cursor:
            if first > wanted:
                # Retention overtook this reader. Return the rows before the gap; the next read raises the error.
                return LogRead(rows, all=False)
            blob = self._read_large(connection, first, size) if small is None else small
            rows.append(LogRow(first, last, size, crc, blob))
            wanted = last + 1
            max_bytes -= size
            if last - after >= max_events or max_bytes <= 0:
                # Fetching another row would read all of it.
                return LogRead(rows, all=False)
        return LogRead(rows, all=True)

    def _read_large(self, connection: apsw.Connection, first: int, size: int) -> bytearray:
        buffer = self._buffers.take(size)
        with connection.blob_open("main", "batches", "events", first, False) as blob:
            blob.read_into(buffer, 0, size)
        return buffer

    def events(self, row: LogRow) -> list[Event]:
        """Decode a row's events. Call it once per row; it needs no file and may run on any thread."""
        return self._decode(row, decode)

    def stored_events(self, row: LogRow) -> list[StoredEvent]:
        """Like `events`, in the form that servers forward."""
        return self._decode(row, decode_stored)

    def _decode(self, row: LogRow, decode: Callable[[memoryview], list[E]]) -> list[E]:
        try:
            with memoryview(row.blob) as whole, whole[: row.size_bytes] as blob:
                if checksum(blob) != row.crc:
                    raise damaged(self.path, f"the checksum of events {row.first} to {row.last} is wrong")
                events = decode(blob)
        except msgspec.DecodeError as error:
            raise damaged(self.path, f"events {row.first} to {row.last} cannot be decoded: {error}") from error
        if len(events) != row.events_count:
            raise damaged(self.path, f"the row for events {row.first} to {row.last} holds {len(events)} events")
        if isinstance(row.blob, bytearray):
            self._buffers.give_back(row.blob)
        return events

    def state(self) -> LogState:
        with self._use() as connection:
            return _state(connection)

    def last_number(self, producer: str) -> int | None:
        """The newest stored number of a producer's sends; None if the log knows none."""
        with self._use() as connection:
            kept = recent_numbers(self.path, connection, producer)
        return kept[-1].number if kept else None

    def enqueued_us(self, after: int) -> int | None:
        """When the first remaining event after this sequence was enqueued; None if there is none."""
        with self._use() as connection, connection:
            state = _state(connection)
            wanted = max(after + 1, state.oldest)
            row = _one(connection, _ROW_OF, wanted) if wanted < state.next else None
        return int(row[2]) if row is not None else None

    def before_time(self, time_us: int) -> int:
        """The sequence before the first event enqueued at or after a time; the newest if there is none.

        Times increase with sequence numbers, so a binary search finds the row and no index is needed.
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
        """Remove some of the oldest rows that exceed the age or size limit. Returns whether there may be more.

        The size limit never removes the newest row.
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
        """Remove the rows whose events all come before a sequence."""
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
        """The connection, after checking that the file at this path is still the connected one."""
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
                # SQLite would treat it as a new database and delete its write-ahead log.
                raise damaged(self.path, "the file is empty")
            self._connection = self._connect()
            self._inode = found.st_ino
        return self._connection

    def _connect(self) -> apsw.Connection:
        connection = connect(self.path, busy_timeout_s=self._busy_timeout_s, create=False)
        try:
            if connection.pragma("application_id") != LOG_APPLICATION_ID:
                raise damaged(self.path, "it is a database, but not of a partition")
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
        """A transient error: the hub may be in the middle of a delete, and a restored file is used at once."""
        if not self.path.parent.is_dir():
            return SourceUnavailable(f"The hub at {self.path.parent.parent} was deleted. Restore or create it again.")
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
