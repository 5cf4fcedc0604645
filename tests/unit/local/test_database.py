from __future__ import annotations

import errno
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import apsw
import pytest

from evenflow.errors import Corrupt, EvenflowError, Misconfigured, SourceUnavailable, StorageFull
from evenflow.local.database import connect, immediate, lock_holder, translated

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite"


def opened(path: Path, busy_timeout_s: float = 0.05) -> apsw.Connection:
    return connect(path, busy_timeout_s=busy_timeout_s)


def filled(path: Path) -> apsw.Connection:
    connection = opened(path)
    connection.execute("CREATE TABLE numbers (number INTEGER)")
    return connection


def numbers(connection: apsw.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT number FROM numbers")]


def test_a_connection_is_durable_and_in_wal_mode(path: Path) -> None:
    assert opened(path).pragma("journal_mode") == "wal"
    assert opened(path).pragma("synchronous") == 2
    assert connect(path, busy_timeout_s=1, full_sync=False).pragma("synchronous") == 1


def test_a_block_happens_whole(path: Path) -> None:
    connection = filled(path)
    with immediate(connection):
        connection.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(apsw.SQLError), immediate(connection):
        connection.execute("INSERT INTO numbers VALUES (2); SELECT nonsense")
    assert numbers(connection) == [1]
    assert not connection.in_transaction


def test_a_locked_file_is_unavailable_and_says_who_and_how_long(path: Path) -> None:
    filled(path).close()
    code = (
        "import sys, apsw; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN IMMEDIATE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        connection = opened(path)
        with pytest.raises(SourceUnavailable) as caught, translated(path, SourceUnavailable), immediate(connection):
            pass
        if sys.platform == "linux":
            assert lock_holder(path) == holder.pid
            assert f"(pid {holder.pid})" in str(caught.value)
        holder.kill()
    assert str(path) in str(caught.value)
    assert "gave up after 0." in str(caught.value)
    assert "Try again" in str(caught.value)
    assert isinstance(caught.value.__cause__, apsw.BusyError)
    with immediate(connection):
        connection.execute("INSERT INTO numbers VALUES (1)")


def test_a_lock_is_taken_soon_after_it_is_free(path: Path) -> None:
    holder, waiter = filled(path), opened(path, busy_timeout_s=10)
    delays_s = []
    for _ in range(5):
        freed_s: list[float] = []

        def free(freed_s: list[float] = freed_s) -> None:
            holder.execute("ROLLBACK")
            freed_s.append(time.perf_counter())

        holder.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, free)
        timer.start()
        with immediate(waiter):
            taken_s = time.perf_counter()
        timer.join()
        delays_s.append(taken_s - freed_s[0])
    assert statistics.median(delays_s) < 0.025, delays_s


def test_an_overwritten_file_is_corrupt_and_named(path: Path) -> None:
    path.write_bytes(b"this was never a database" * 1000)
    with pytest.raises(Corrupt, match=r"facts\.sqlite is damaged.*backup"), translated(path, SourceUnavailable):
        opened(path)


def test_a_full_database_is_storage_full_and_keeps_what_it_had(path: Path) -> None:
    connection = filled(path)
    connection.execute("INSERT INTO numbers VALUES (1)")
    connection.execute(f"PRAGMA max_page_count={connection.pragma('page_count')}")
    with (
        pytest.raises(StorageFull, match="free some disk space"),
        translated(path, SourceUnavailable),
        immediate(connection),
    ):
        connection.execute("INSERT INTO numbers VALUES (2); INSERT INTO numbers VALUES (zeroblob(100000))")
    assert numbers(connection) == [1]
    assert not connection.in_transaction


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageFull),
        (OSError(errno.EDQUOT, "Quota exceeded"), StorageFull),
        (PermissionError(errno.EACCES, "Permission denied"), Misconfigured),
        (FileNotFoundError(errno.ENOENT, "No such file"), SourceUnavailable),
        (apsw.IOError("disk I/O error"), SourceUnavailable),
        (apsw.ReadOnlyError("attempt to write a readonly database"), Misconfigured),
    ],
)
def test_errors_of_the_system_become_ours(path: Path, raised: Exception, becomes: type[EvenflowError]) -> None:
    with pytest.raises(becomes, match=r"facts\.sqlite") as caught, translated(path, SourceUnavailable):
        raise raised
    assert type(caught.value) is becomes
    assert caught.value.__cause__ is raised


def test_a_disk_error_on_a_full_disk_is_storage_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(path.parent)
    full = os.statvfs_result((*real[:4], 0, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(StorageFull), translated(path, SourceUnavailable):
        raise apsw.IOError("disk I/O error")


def test_our_own_mistakes_and_cancellation_pass_unchanged(path: Path) -> None:
    for error in (apsw.SQLError("near SELEKT"), ValueError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, translated(path, SourceUnavailable):
            raise error
        assert caught.value is error


def test_paths_that_cannot_be_opened_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no folder"), translated(tmp_path / "no" / "a", SourceUnavailable):
        opened(tmp_path / "no" / "a")
    with pytest.raises(Misconfigured, match="it is a folder"), translated(tmp_path, SourceUnavailable):
        opened(tmp_path)
    with pytest.raises(SourceUnavailable, match="it does not exist"), translated(tmp_path / "b", SourceUnavailable):
        connect(tmp_path / "b", busy_timeout_s=1, create=False)
    assert not (tmp_path / "b").exists()


def test_many_may_make_the_same_file_at_once(tmp_path: Path) -> None:
    def make(number: int) -> None:
        path = tmp_path / f"{number // 8}.sqlite"
        connection = connect(path, busy_timeout_s=10)
        with immediate(connection):
            connection.execute("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)")
            connection.execute("INSERT INTO numbers VALUES (?)", (number,))
        connection.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(make, range(80)))
    assert [sorted(numbers(opened(tmp_path / f"{file}.sqlite"))) for file in range(10)] == [
        list(range(file * 8, file * 8 + 8)) for file in range(10)
    ]
