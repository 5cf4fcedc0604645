"""The process that holds a transaction of the SQLite store open: what stops it, and what its end leaves behind."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import signal
import sys
import threading
from datetime import UTC, datetime
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow import EvenflowError, LeaseLost, Misconfigured, StoreUnavailable, TransactionTimeout
from evenflow.local.database import lock_holder
from evenflow.stores.sqlite import store as sqlite
from evenflow.stores.sqlite import transactions as sqlite_transactions
from evenflow.stores.sqlite.channel import WriterChannel
from evenflow.stores.sqlite.messages import error_of, fault_of, plain_row
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import at
from tests.integration.programs import wait_for
from tests.unit.stores.scenes import GROUP, PROGRESS, execute
from tests.unit.stores.sqlite.test_transactions import ENDLESS, PATIENCE_S, mine, ordinal_of, play, transaction

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event

LONG_S = 20 * PATIENCE_S


def writer_of(path: Path) -> int:
    """Who holds the lock: the writer process of a transaction that is open."""
    found: list[int] = []

    def is_held() -> bool:  # the kernel's table of locks is read in pieces, so that one may be missed
        holder = lock_holder(path / PROGRESS)
        found.extend([holder] if holder is not None else [])
        return bool(found)

    wait_for(is_held, "the lock to be held")
    return found[0]


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False


# --- the application's process
@pytest.mark.process
def test_who_is_stopped_inside_blocks_no_other_caller_and_is_refused_afterwards(tmp_path: Path) -> None:
    """The other process writes, and takes the partition over, while this one is still stopped."""
    context = multiprocessing.get_context("spawn")
    inside, ours, theirs = context.Event(), *context.Pipe()

    async def scene(store: SQLiteStore) -> None:
        await store.seal(GROUP, "1", 1, at(0, partition="1"))
        other = context.Process(target=_be_stopped_inside, args=(tmp_path, inside, theirs))
        other.start()
        try:
            assert await asyncio.to_thread(inside.wait, PATIENCE_S)
            assert other.pid is not None
            assert writer_of(tmp_path) != other.pid
            os.kill(other.pid, signal.SIGSTOP)
            await asyncio.to_thread(wait_for, lambda: lock_holder(tmp_path / PROGRESS) is None, "the lock to be free")
            assert (await store.commit(GROUP, [at(1, partition="1")]))[0].ok
            await store.seal(GROUP, "0", 2, at(0))
            async with store.transaction(GROUP, at(5, epoch=2), committed=1, start=1, limit_s=PATIENCE_S) as tx:
                await tx.execute("INSERT INTO mine VALUES ('of the new owner')")
            os.kill(other.pid, signal.SIGCONT)
            assert await asyncio.to_thread(ours.poll, PATIENCE_S)
            found = [ours.recv() for _ in range(3)]
        finally:
            other.kill()
            other.join()
        assert found == ["TransactionTimeout", "TransactionTimeout: stopped", "LeaseLost"]

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == (["of the new owner"], 5)


def _be_stopped_inside(path: Path, inside: Event, report: Connection) -> None:
    async def sit() -> None:
        store = SQLiteStore(path)
        try:
            async with transaction(store, 2, limit_s=LONG_S) as tx:
                await tx.execute("INSERT INTO mine VALUES ('stopped')")
                inside.set()
                while True:
                    await asyncio.sleep(0.01)
                    try:
                        await tx.execute("SELECT 1")
                    except EvenflowError as error:
                        report.send(type(error).__name__)
                        break
        except TransactionTimeout as error:
            report.send(f"TransactionTimeout: {'stopped' if 'was stopped' in str(error) else error}")
        try:
            async with transaction(store, 2):
                pass
        except LeaseLost:
            report.send("LeaseLost")
        await store.aclose()

    asyncio.run(sit())


@pytest.mark.process
def test_the_writer_ends_with_the_process_it_works_for(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    inside = context.Event()

    async def scene(store: SQLiteStore) -> None:
        other = context.Process(target=_sit_inside, args=(tmp_path, inside))
        other.start()
        assert await asyncio.to_thread(inside.wait, PATIENCE_S)
        writer = writer_of(tmp_path)
        other.kill()
        other.join()
        await asyncio.to_thread(wait_for, lambda: not is_running(writer), "the writer to end")
        assert (await store.commit(GROUP, [at(2)]))[0].ok

    play(tmp_path, scene)
    assert mine(tmp_path) == []


def _sit_inside(path: Path, inside: Event) -> None:
    async def sit() -> None:
        async with transaction(SQLiteStore(path), 2, limit_s=LONG_S) as tx:
            await tx.execute("INSERT INTO mine VALUES ('killed')")
            inside.set()
            await asyncio.Event().wait()

    asyncio.run(sit())


# --- the writer process
@pytest.mark.process
def test_a_writer_that_is_killed_costs_its_transaction_alone(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="has ended"):
                await _kill_inside(store, tmp_path)
        async with transaction(store, 2) as tx:
            await tx.execute("INSERT INTO mine VALUES ('after')")

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == (["after"], 2)


async def _kill_inside(store: SQLiteStore, path: Path) -> None:
    async with transaction(store, 2) as tx:
        await tx.execute("INSERT INTO mine VALUES ('killed')")
        os.kill(writer_of(path), signal.SIGKILL)
        with pytest.raises(StoreUnavailable):
            await tx.execute(ENDLESS)


@pytest.mark.process
def test_a_writer_that_is_stopped_is_killed_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_transactions, "GRACE_S", 0.1)

    async def scene(store: SQLiteStore) -> None:
        with pytest.raises(StoreUnavailable, match="has ended"):  # noqa: PT012
            async with transaction(store, 2, limit_s=0.5) as tx:
                await tx.execute("INSERT INTO mine VALUES ('a')")
                os.kill(writer_of(tmp_path), signal.SIGSTOP)
                await tx.execute("INSERT INTO mine VALUES ('b')")
        assert (await store.commit(GROUP, [at(2)]))[0].ok

    play(tmp_path, scene)
    assert mine(tmp_path) == []


@pytest.mark.process
def test_a_writer_does_not_end_with_the_terminal_or_the_service(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            writer = writer_of(tmp_path)
            assert os.getsid(writer) == writer
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(writer, number)
            await tx.execute("INSERT INTO mine VALUES ('a')")

    play(tmp_path, scene)
    assert mine(tmp_path) == ["a"]


@pytest.mark.process
def test_a_writer_whose_first_caller_left_is_used_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[WriterChannel] = []
    is_asked, may_start = threading.Event(), threading.Event()

    def make(*settings: Any) -> WriterChannel:
        is_asked.set()
        assert may_start.wait(PATIENCE_S)
        made.append(WriterChannel(*settings))
        return made[-1]

    async def scene() -> None:
        store = SQLiteStore(tmp_path)
        await store.seal(GROUP, "0", 1, at(0))
        monkeypatch.setattr(sqlite, "WriterChannel", make)
        leaving = asyncio.create_task(transaction(store, 1).__aenter__())
        assert await asyncio.to_thread(is_asked.wait, PATIENCE_S)
        leaving.cancel()
        await asyncio.wait([leaving])
        may_start.set()
        async with transaction(store, 1):
            pass
        await store.aclose()
        assert [channel.closed is not None for channel in made] == [True]

    asyncio.run(scene())


@pytest.mark.process
def test_a_writer_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "get_executable", lambda: str(tmp_path / "python"))

    async def scene() -> None:
        store = SQLiteStore(tmp_path)
        await store.seal(GROUP, "0", 1, at(0))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="did not start"):
                async with transaction(store, 1):
                    pytest.fail("it began")
        assert (await store.commit(GROUP, [at(1)]))[0].ok
        await store.aclose()

    asyncio.run(scene())


def test_a_program_without_an_interpreter_writes_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)

    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            await tx.execute("INSERT INTO mine VALUES ('a')")
            assert writer_of(tmp_path) == os.getpid()

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == (["a"], 2)


def test_who_gives_up_at_once_is_heard_during_the_statement(tmp_path: Path) -> None:
    """The writer may get both requests in one piece."""

    async def scene(store: SQLiteStore) -> None:
        async def enter() -> None:
            async with transaction(store, 2, limit_s=LONG_S) as tx:
                asking.append(asyncio.create_task(tx.execute(ENDLESS)))
                await asyncio.sleep(0)
                raise ZeroDivisionError

        asking: list[asyncio.Task[Any]] = []
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(enter(), PATIENCE_S)
        with pytest.raises(Misconfigured, match="has ended"):
            await asking[0]

    play(tmp_path, scene)


# --- what goes to and fro
def test_values_and_rows_are_the_same_on_both_sides(tmp_path: Path) -> None:
    class Number(int):
        pass

    given = [None, 1, -(2**63), 2**63 - 1, 0.5, math.inf, "ä\0\U0001f600", "", b"\0\xff", b"", True]

    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            marks = ",".join("?" * len(given))
            assert await tx.execute(f"SELECT {marks}", given) == [tuple(given)]
            odd = [Number(7), bytearray(b"a"), memoryview(b"b")]
            assert await tx.execute("SELECT ?, ?, ?", odd) == [(7, b"a", b"b")]
            long = "x" * 3_000_000
            assert await tx.execute("SELECT ?", (long,)) == [(long,)]
            with pytest.raises(TypeError, match="argument #1: type datetime"):
                await tx.execute("SELECT ?", (datetime.now(UTC),))
            with pytest.raises(OverflowError):
                await tx.execute("SELECT ?", (2**63,))
            with pytest.raises(OverflowError):
                await tx.execute("SELECT ?", (2**70,))

    play(tmp_path, scene)
    assert ordinal_of(tmp_path) == 2


def test_a_row_of_plain_values_is_not_copied() -> None:
    row = (1, "a", None)
    assert plain_row(row) is row


def test_an_error_of_sqlites_keeps_its_codes(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            await tx.execute("INSERT INTO mine VALUES ('a')")
            with pytest.raises(apsw.ConstraintError) as found:
                await tx.execute("INSERT INTO mine VALUES ('a')")
        assert vars(found.value)["result"] == apsw.SQLITE_CONSTRAINT
        assert vars(found.value)["extendedresult"] == apsw.SQLITE_CONSTRAINT_PRIMARYKEY

    play(tmp_path, scene)


def test_an_error_that_is_not_known_here_says_what_it_was() -> None:
    class OddError(Exception):
        pass

    assert str(error_of(fault_of(OddError("how odd")))) == "The writer process failed: OddError: how odd"
    assert isinstance(error_of(fault_of(SystemExit("no"))), StoreUnavailable)


def test_a_statement_whose_caller_left_is_finished_before_the_next(tmp_path: Path) -> None:
    count = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 300000) SELECT max(x) FROM n"

    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            left = asyncio.create_task(tx.execute(f"INSERT INTO mine {count}"))
            await asyncio.sleep(0)
            left.cancel()
            assert await tx.execute("SELECT name FROM mine") == [("300000",)]

    play(tmp_path, scene)
    assert ordinal_of(tmp_path) == 2
    assert execute(tmp_path / PROGRESS, "PRAGMA integrity_check") == [("ok",)]
