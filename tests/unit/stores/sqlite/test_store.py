"""What is the SQLite store's own: locks, threads, durability, and what people find in the files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw
import pytest

from evenflow.errors import StoreUnavailable
from evenflow.local.database import connect
from evenflow.model import Position
from evenflow.stores.sqlite import leases as sqlite_leases
from evenflow.stores.sqlite.schema import APPLICATION_IDS
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import at, first
from tests.unit.stores.scenes import GROUP, join, known

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def _held_by_another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    try:
        yield holder
    finally:
        holder.communicate()


@contextmanager
def _held(path: Path) -> Iterator[None]:
    connection = connect(path, busy_timeout_s=1)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


@pytest.mark.process
def test_a_locked_file_is_an_error_that_names_the_holder_and_passes(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path, busy_timeout_s=0.05)
        me = await join(store)
        await store.seal(GROUP, "0", 1, at(0))
        with _held_by_another_process(tmp_path / "leases.sqlite") as holder:
            with pytest.raises(StoreUnavailable, match=rf"leases.sqlite is locked.*pid {holder.pid}"):
                await store.heartbeat(GROUP, me, None)
            with pytest.raises(StoreUnavailable, match=r"leases.sqlite is locked"):
                await store.swap(GROUP, [first("0", me.owner)])
            assert (await store.commit(GROUP, [at(1)]))[0].ok, "progress is another file"
            assert await store.peek(GROUP) is not None, "who reads is not in the way"
        assert known(await store.heartbeat(GROUP, me, None)).mark > me.mark
        await store.aclose()

    asyncio.run(scenario())


@pytest.mark.process
def test_a_file_that_is_locked_for_a_while_only_costs_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path, busy_timeout_s=30)
        me = await join(store)
        with _held_by_another_process(tmp_path / "leases.sqlite"):
            heartbeat = asyncio.create_task(store.heartbeat(GROUP, me, None))
            done, _ = await asyncio.wait([heartbeat], timeout=0.05)
            assert not done
        assert known(await heartbeat).mark > me.mark
        await store.aclose()

    asyncio.run(scenario())


def test_a_long_transaction_in_progress_does_not_delay_a_heartbeat(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path, busy_timeout_s=30)
        me = await join(store)
        await store.seal(GROUP, "0", 1, at(0))
        with _held(tmp_path / "progress.sqlite"):
            commit = asyncio.create_task(store.commit(GROUP, [at(1)]))
            for _ in range(5):
                me = known(await store.heartbeat(GROUP, me, None))
            assert not commit.done()
        assert (await commit)[0].ok
        await store.aclose()

    asyncio.run(scenario())


def test_an_open_store_starts_while_progress_is_in_a_long_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        first_client = SQLiteStore(tmp_path)
        await join(first_client)
        with _held(tmp_path / "progress.sqlite"):
            second = SQLiteStore(tmp_path, busy_timeout_s=0.05)
            assert (await join(second, "b")).incarnation > 0
        for client in (first_client, second):
            await client.aclose()

    asyncio.run(scenario())


def test_what_was_cancelled_may_still_take_effect_and_what_comes_after_sees_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path, busy_timeout_s=30)
        await store.seal(GROUP, "0", 1, at(0))
        with _held(tmp_path / "progress.sqlite"):
            commit = asyncio.create_task(store.commit(GROUP, [at(1)]))
            await asyncio.wait([commit], timeout=0.05)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
        assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 1
        await store.aclose()

    asyncio.run(scenario())


def test_a_store_that_another_process_opens_for_too_long_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        store = SQLiteStore(tmp_path, busy_timeout_s=0.05)
        with pytest.raises(StoreUnavailable, match="Another process has been opening the store"):
            await join(store)
        os.close(descriptor)
        await join(store)
        await store.aclose()

    asyncio.run(scenario())


def test_nothing_is_read_or_written_on_the_loops_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()
    real = sqlite_leases.heartbeat

    def spied(*args: object) -> object:
        threads.add(threading.current_thread())
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_leases, "heartbeat", spied)

    async def scenario() -> None:
        store = SQLiteStore(tmp_path)
        await join(store)
        await join(store, "b")
        await store.aclose()

    asyncio.run(scenario())
    (thread,) = threads
    assert thread is not threading.current_thread()
    thread.join()


def test_all_but_heartbeats_are_synced_to_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path)
        levels: list[int] = []

        def note(file: apsw.Connection) -> None:
            levels.append(file.pragma("synchronous"))

        me = await join(store)
        await store._leases.run(note, full_sync=store._leases._file._full_sync)
        await store.heartbeat(GROUP, me, None)
        await store._leases.run(note, full_sync=store._leases._file._full_sync)
        await store.swap(GROUP, [first("0", me.owner)])
        await store._leases.run(note, full_sync=store._leases._file._full_sync)
        await store.commit(GROUP, [at(0)])
        await store._progress.run(note, full_sync=store._progress._file._full_sync)
        normal, full = 1, 2
        assert levels == [full, normal, full, full]
        await store.aclose()

    asyncio.run(scenario())


def test_people_find_the_ownership_record_and_the_position(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path, wall=lambda: 86_400.5)
        me = await join(store)
        await store.swap(GROUP, [first("0", me.owner, epoch=7, reason="unowned")])
        await store.seal(GROUP, "0", 7, at(3))
        assert (await store.seal(GROUP, "0", 7, at(0))).position == Position("2", 2)
        await store.aclose()

    asyncio.run(scenario())
    connection = apsw.Connection(str(tmp_path / "leases.sqlite"))
    rows = connection.execute(
        "SELECT namespace, hub, consumer_group, owner, partition, epoch, last_modified FROM ownership"
    )
    assert rows.fetchall() == [("homes.example", "sensors", "alerts", "a", "0", 7, "1970-01-02T00:00:00.500Z")]
    connection.close()
    connection = apsw.Connection(str(tmp_path / "progress.sqlite"))
    rows = connection.execute('SELECT partition, epoch, "offset", sequence FROM evenflow_checkpoints')
    assert rows.fetchall() == [("0", 7, "2", 2)]
    connection.close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SQLiteStore(tmp_path)
        await join(store)
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreUnavailable, match="was closed"):
            await join(store)

    asyncio.run(scenario())


def test_a_store_that_was_never_used_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        await SQLiteStore(tmp_path / "store").aclose()

    asyncio.run(scenario())
    assert not (tmp_path / "store").exists()


def test_a_store_of_the_first_version_is_brought_up_with_all_it_holds(tmp_path: Path) -> None:
    """The schema of 0.1, as it was, with a group and a checkpoint in it."""
    for name, schema in OF_VERSION_1.items():
        connection = connect(tmp_path / name, busy_timeout_s=1)
        connection.execute(schema)
        connection.execute(f"PRAGMA application_id={APPLICATION_IDS[name]:d}; PRAGMA user_version=1")
        connection.close()

    async def scenario() -> None:
        store = SQLiteStore(tmp_path)
        assert [record.ordinal for record in await store.checkpoints(GROUP)] == [7]
        ledger = await store.peek(GROUP)
        assert ledger is not None
        assert (ledger.cursor.lineage, ledger.cursor.revision, ledger.state.source) == ("first", 41, "made")
        assert ledger.cursor.history == 0, "nothing was lost"
        await join(store)
        assert (await store.seal(GROUP, "0", 3, at(0), unplanned=True)).ordinal == 7
        await store.delete(GROUP)
        await join(store)
        ledger = await store.peek(GROUP)
        assert ledger is not None
        assert ledger.epoch_floor == 4
        await store.aclose()

    asyncio.run(scenario())


OF_VERSION_1 = {
    "leases.sqlite": f"""
CREATE TABLE meta (
    lineage TEXT NOT NULL, history INTEGER NOT NULL, progress TEXT NOT NULL,
    revision_floor INTEGER NOT NULL, incarnation_floor INTEGER NOT NULL
) STRICT;
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, hub TEXT NOT NULL, name TEXT NOT NULL,
    born INTEGER NOT NULL, revision INTEGER NOT NULL, roster_revision INTEGER NOT NULL, newest INTEGER NOT NULL,
    moves INTEGER NOT NULL,
    source TEXT NOT NULL, paused INTEGER NOT NULL, paused_by TEXT NOT NULL, paused_why TEXT NOT NULL,
    UNIQUE (namespace, hub, name)
) STRICT;
CREATE TABLE members (
    group_id INTEGER NOT NULL, id TEXT NOT NULL, incarnation INTEGER NOT NULL,
    mark INTEGER NOT NULL, heartbeat_at REAL NOT NULL, facts TEXT NOT NULL,
    PRIMARY KEY (group_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_by_mark ON members (group_id, mark);
CREATE TABLE leases (
    group_id INTEGER NOT NULL, partition TEXT NOT NULL, owner TEXT, incarnation INTEGER,
    epoch INTEGER NOT NULL, revision INTEGER NOT NULL, history INTEGER NOT NULL, ttl_s REAL NOT NULL,
    late INTEGER NOT NULL, ended INTEGER NOT NULL, reason TEXT NOT NULL, changed_at REAL NOT NULL,
    PRIMARY KEY (group_id, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_by_revision ON leases (group_id, revision);
CREATE TABLE moves (
    group_id INTEGER NOT NULL, number INTEGER NOT NULL, partition TEXT NOT NULL, before TEXT, after TEXT,
    epoch INTEGER NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (group_id, number)
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('first', 0, 'pair', 0, 0);
INSERT INTO groups VALUES
    (1, '{GROUP.namespace}', '{GROUP.hub}', '{GROUP.name}', 1, 41, 0, 9, 0, 'made', 0, '', '');
""",
    "progress.sqlite": f"""
CREATE TABLE evenflow_meta (id TEXT NOT NULL, history INTEGER NOT NULL) STRICT;
CREATE TABLE evenflow_checkpoints (
    namespace TEXT NOT NULL, hub TEXT NOT NULL, consumer_group TEXT NOT NULL, partition TEXT NOT NULL,
    epoch INTEGER NOT NULL, "offset" TEXT NOT NULL, sequence INTEGER, ordinal INTEGER NOT NULL,
    notes TEXT NOT NULL, changed_at REAL NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition)
) STRICT, WITHOUT ROWID;
INSERT INTO evenflow_meta VALUES ('pair', 0);
INSERT INTO evenflow_checkpoints VALUES
    ('{GROUP.namespace}', '{GROUP.hub}', '{GROUP.name}', '0', 2, '6', 6, 7, '{{}}', 0);
""",
}
