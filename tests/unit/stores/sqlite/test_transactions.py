"""SQLiteTransactions in the SQLite store: what an application cannot say in one, and what it cannot hold up."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from evenflow import AlreadyDone, EvenflowError, LeaseLost, Misconfigured, StoreUnavailable, TransactionTimeout
from evenflow.stores.sqlite.guard import refusal
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import at
from tests.unit.stores.scenes import GROUP, PROGRESS, execute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from multiprocessing.synchronize import Event
    from pathlib import Path

    from evenflow.stores.sqlite.transactions import SQLiteTransaction

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
PATIENCE_S = 20.0


def transaction(
    store: SQLiteStore, ordinal: int = 1, *, partition: str = "0", limit_s: float = PATIENCE_S
) -> AbstractAsyncContextManager[SQLiteTransaction]:
    wanted = at(ordinal, partition=partition)
    return store.transaction(GROUP, wanted, committed=0, start=ordinal - 1, limit_s=limit_s)


def play(path: Path, scene: Callable[[SQLiteStore], Awaitable[None]]) -> None:
    async def played() -> None:
        store = SQLiteStore(path)
        try:
            await store.seal(GROUP, "0", 1, at(0))
            await store.commit(GROUP, [at(0)])  # so that BEGIN and COMMIT are known statements to the connection
            async with transaction(store) as tx:
                await tx.execute("CREATE TABLE mine (name TEXT PRIMARY KEY)")
            await scene(store)
        finally:
            await store.aclose()

    asyncio.run(played())


def ordinal_of(path: Path) -> object:
    return execute(path / PROGRESS, "SELECT ordinal FROM evenflow_checkpoints WHERE partition = '0'")[0][0]


def mine(path: Path) -> list[object]:
    return [name for (name,) in execute(path / PROGRESS, "SELECT name FROM mine ORDER BY name")]


# --- what it cannot say
@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("COMMIT", "commits at the end of its block"),
        ("COMMIT; BEGIN IMMEDIATE", "commits at the end of its block"),
        ("END", "commits at the end of its block"),
        ("ROLLBACK", "commits at the end of its block"),
        ("BEGIN", "commits at the end of its block"),
        ("BEGIN IMMEDIATE", "commits at the end of its block"),
        ("SAVEPOINT a", "commits at the end of its block"),
        ("RELEASE a", "commits at the end of its block"),
        ("ROLLBACK TO a", "commits at the end of its block"),
        ("PRAGMA synchronous=OFF", "PRAGMA"),
        ("PRAGMA journal_mode=DELETE", "PRAGMA"),
        ("PRAGMA writable_schema=ON", "PRAGMA"),
        ("PRAGMA page_size=512", "PRAGMA"),
        ("PRAGMA user_version=99", "PRAGMA"),
        ("ATTACH ':memory:' AS other", "another file"),
        ("DETACH main", "another file"),
        ("CREATE TEMP TABLE evenflow_checkpoints (x)", "the connection is shared"),
        ("CREATE TEMP VIEW v AS SELECT 1", "the connection is shared"),
        ("CREATE TEMP TRIGGER t AFTER INSERT ON mine BEGIN SELECT 1; END", "the connection is shared"),
        ("UPDATE evenflow_checkpoints SET ordinal = 0", "evenflow's own"),
        ("update EVENFLOW_checkpoints set ordinal = 0", "evenflow's own"),
        ("INSERT INTO evenflow_meta VALUES ('x', 9)", "evenflow's own"),
        ("DELETE FROM main.evenflow_checkpoints", "evenflow's own"),
        ("DROP TABLE evenflow_meta", "evenflow's own"),
        ("ALTER TABLE evenflow_checkpoints RENAME TO x", "evenflow's own"),
        ("CREATE TABLE evenflow_more (x)", "evenflow's own"),
        ("CREATE INDEX i ON evenflow_checkpoints (epoch)", "evenflow's own"),
        ("CREATE TRIGGER t AFTER INSERT ON evenflow_checkpoints BEGIN SELECT RAISE(ROLLBACK, 'x'); END", "evenflow's"),
    ],
)
def test_what_would_leave_the_transaction_is_refused(tmp_path: Path, statement: str, why: str) -> None:
    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            await tx.execute("INSERT INTO mine VALUES ('before')")
            with pytest.raises(Misconfigured, match=why):
                await tx.execute(statement)
            await tx.execute("INSERT INTO mine VALUES ('after')")

    play(tmp_path, scene)
    assert mine(tmp_path) == ["after", "before"], "the refused statement did nothing, the transaction went on"
    assert ordinal_of(tmp_path) == 2


def test_a_trigger_of_ones_own_cannot_do_it_either(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        trigger = "CREATE TRIGGER t AFTER INSERT ON mine BEGIN UPDATE evenflow_checkpoints SET ordinal = 77; END"
        async with transaction(store, 2) as tx:
            await tx.execute(trigger)
            with pytest.raises(Misconfigured, match="evenflow's own"):
                await tx.execute("INSERT INTO mine VALUES ('a')")

    play(tmp_path, scene)
    assert ordinal_of(tmp_path) == 2


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM evenflow_checkpoints",
        "CREATE TABLE more AS SELECT * FROM evenflow_meta",
        "CREATE VIRTUAL TABLE words USING fts5(word)",
        "PRAGMA table_info(mine)",
        "SELECT * FROM pragma_table_list",
        "ANALYZE",
        "CREATE INDEX i ON mine (name)",
        "WITH a AS (SELECT 'x' AS b) INSERT INTO mine SELECT b FROM a RETURNING name",
    ],
)
def test_everything_else_is_fine(tmp_path: Path, statement: str) -> None:
    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            await tx.execute(statement)

    play(tmp_path, scene)
    assert ordinal_of(tmp_path) == 2


def test_what_an_action_is_about_decides() -> None:
    assert refusal(apsw.SQLITE_UPDATE, "mine", "evenflow_column") == "", "a column may be called anything"
    assert refusal(apsw.SQLITE_DROP_TRIGGER, "mine", "evenflow_meta")
    assert refusal(apsw.SQLITE_PRAGMA, "page_size", None) == ""
    assert refusal(apsw.SQLITE_PRAGMA, "page_size", "512")


def test_a_statement_that_rolls_back_ends_it(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        with pytest.raises(Misconfigured, match="OR ROLLBACK"):
            await roll_back_inside(store)

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == ([], 1)


async def roll_back_inside(store: SQLiteStore) -> None:
    async with transaction(store, 2) as tx:
        await tx.execute("INSERT INTO mine VALUES ('a')")
        with pytest.raises(apsw.ConstraintError):
            await tx.execute("INSERT OR ROLLBACK INTO mine VALUES ('a')")
        with pytest.raises(Misconfigured, match="OR ROLLBACK"):
            await tx.execute("INSERT INTO mine VALUES ('outside of any transaction')")


def test_errors_of_the_applications_own_sql_are_sqlites(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            await tx.execute("INSERT INTO mine VALUES ('a')")
            for kind, statement, values in (
                (apsw.ConstraintError, "INSERT INTO mine VALUES (?)", ("a",)),
                (apsw.SQLError, "INSERT INTO nowhere VALUES (?)", ("a",)),
                (apsw.BindingsError, "INSERT INTO mine VALUES (?)", ()),
                (TypeError, "INSERT INTO mine VALUES (?)", (object(),)),
            ):
                with pytest.raises(kind):
                    await tx.execute(statement, values)
            with pytest.raises(apsw.ConstraintError):
                await tx.execute_many("INSERT INTO mine VALUES (?)", [("b",), ("a",)])

    play(tmp_path, scene)
    assert mine(tmp_path)[:1] == ["a"], "what is caught does not end the transaction"
    assert ordinal_of(tmp_path) == 2


# --- what it cannot hold up
@pytest.mark.parametrize("many", [False, True])
def test_a_statement_that_takes_too_long_is_interrupted(tmp_path: Path, many: bool) -> None:
    async def scene(store: SQLiteStore) -> None:
        with pytest.raises(TransactionTimeout, match=r"0\.3 s"):  # noqa: PT012
            async with transaction(store, 2, limit_s=0.3) as tx:
                if many:
                    row = ("x",)
                    await tx.execute_many("INSERT OR REPLACE INTO mine VALUES (?)", [row] * 2_000_000)
                else:
                    await tx.execute(ENDLESS)
        assert (await store.commit(GROUP, [at(2)]))[0].ok

    play(tmp_path, scene)
    assert mine(tmp_path) == []


def test_a_blocked_event_loop_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The thread of the file keeps the deadline, not a timer of the loop."""

    async def scene(store: SQLiteStore) -> None:
        freed = threading.Event()

        def neighbour() -> None:
            other = SQLiteStore(tmp_path, busy_timeout_s=PATIENCE_S)

            async def commit() -> None:
                assert (await other.commit(GROUP, [at(9)]))[0].ok
                await other.aclose()

            asyncio.run(commit())
            freed.set()

        with pytest.raises(TransactionTimeout):  # noqa: PT012
            async with transaction(store, 2, limit_s=0.3) as tx:
                await tx.execute("INSERT INTO mine VALUES ('a')")
                threading.Thread(target=neighbour).start()
                assert freed.wait(PATIENCE_S), "this blocks the loop"

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == ([], 9)


def test_who_is_cancelled_while_it_waits_leaves_the_line(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        async def enter() -> None:
            async with transaction(store, 2) as tx:
                await tx.execute("INSERT INTO mine VALUES ('cancelled')")

        async with transaction(store, 2) as tx:
            waiting = asyncio.create_task(enter())
            await tx.execute("INSERT INTO mine VALUES ('a')")
            waiting.cancel()
            await asyncio.wait([waiting])
        assert waiting.cancelled()

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == (["a"], 2)


def test_who_is_cancelled_in_a_statement_does_not_wait_for_it(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        async def enter() -> None:
            async with transaction(store, 2) as tx:
                await tx.execute("INSERT INTO mine VALUES ('a')")
                began.set()
                await tx.execute(ENDLESS)

        began = asyncio.Event()
        endless = asyncio.create_task(enter())
        await began.wait()
        await asyncio.sleep(0.05)
        endless.cancel()
        await asyncio.wait([endless], timeout=PATIENCE_S / 2)
        assert endless.cancelled()
        assert (await store.commit(GROUP, [at(2)]))[0].ok

    play(tmp_path, scene)
    assert mine(tmp_path) == []


def test_closing_the_store_rolls_back(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        with pytest.raises(StoreUnavailable):  # noqa: PT012
            async with transaction(store, 2) as tx:
                await tx.execute("INSERT INTO mine VALUES ('a')")
                await asyncio.wait_for(store.aclose(), PATIENCE_S / 2)
        with pytest.raises(StoreUnavailable, match="closed"):
            async with transaction(store, 2):
                pass

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == ([], 1)


def test_who_sits_in_a_block_blocks_no_other_caller_of_the_same_process_and_touches_no_other_transaction(
    tmp_path: Path,
) -> None:
    """Its time is over, and its block is not. The next transaction is in the same connection."""

    async def scene(store: SQLiteStore) -> None:
        with pytest.raises(TransactionTimeout, match=r"0\.3 s"):
            await _sit_until_the_next_is_over(store)
        assert (await store.commit(GROUP, [at(3)]))[0].ok

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == (["of the next"], 3)


async def _sit_until_the_next_is_over(store: SQLiteStore) -> None:
    async with transaction(store, 2, limit_s=0.3) as tx:
        await tx.execute("INSERT INTO mine VALUES ('of one who sits')")
        assert (await store.commit(GROUP, [at(1)]))[0].ok, "it waits for the limit, and no longer"
        async with transaction(store, 2) as other:
            await other.execute("INSERT INTO mine VALUES ('of the next')")
            with pytest.raises(TransactionTimeout):
                await tx.execute("INSERT INTO mine VALUES ('late')")
            with pytest.raises(TransactionTimeout):
                await tx.execute_many("INSERT INTO mine VALUES (?)", [("late",)])


def test_a_statement_after_the_end_has_an_answer(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        async with transaction(store, 2) as tx:
            pass
        for _ in range(2):
            with pytest.raises(EvenflowError, match="has ended"):
                await tx.execute("INSERT INTO mine VALUES ('late')")

    play(tmp_path, scene)
    assert mine(tmp_path) == []


def test_a_refused_one_never_touches_anything(tmp_path: Path) -> None:
    async def scene(store: SQLiteStore) -> None:
        for kind, wanted in ((AlreadyDone, at(1)), (LeaseLost, at(1, epoch=2))):
            with pytest.raises(kind):
                async with store.transaction(GROUP, wanted, committed=0, start=0, limit_s=PATIENCE_S):
                    pytest.fail("it began")

    play(tmp_path, scene)


# --- between processes
@pytest.mark.process
def test_a_process_that_is_killed_in_a_transaction_leaves_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    inside = context.Event()

    async def scene(store: SQLiteStore) -> None:
        other = context.Process(target=_sit_inside, args=(tmp_path, inside))
        other.start()
        try:
            assert await asyncio.to_thread(inside.wait, PATIENCE_S)
        finally:
            other.kill()
            other.join()
        async with transaction(store, 2) as tx:
            await tx.execute("INSERT INTO mine VALUES ('mine')")

    play(tmp_path, scene)
    assert (mine(tmp_path), ordinal_of(tmp_path)) == (["mine"], 2)


def _sit_inside(path: Path, inside: Event) -> None:
    async def sit() -> None:
        async with transaction(SQLiteStore(path), 2, limit_s=10 * PATIENCE_S) as tx:
            await tx.execute("INSERT INTO mine VALUES ('killed')")
            inside.set()
            time.sleep(10 * PATIENCE_S)  # noqa: ASYNC251

    asyncio.run(sit())


@pytest.mark.process
def test_processes_take_turns_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    play(tmp_path, _count_table)
    others = [context.Process(target=_count, args=(tmp_path, str(number))) for number in (1, 2)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
        assert other.exitcode == 0
    assert execute(tmp_path / PROGRESS, "SELECT count FROM counts") == [(100,)]


async def _count_table(store: SQLiteStore) -> None:
    async with transaction(store, 2) as tx:
        await tx.execute("CREATE TABLE counts (count INTEGER)")
        await tx.execute("INSERT INTO counts VALUES (0)")


def _count(path: Path, partition: str) -> None:
    async def count() -> None:
        store = SQLiteStore(path, busy_timeout_s=PATIENCE_S)
        await store.seal(GROUP, partition, 1, at(0, partition=partition))
        for turn in range(50):
            async with transaction(store, turn + 1, partition=partition) as tx:
                rows: Any = await tx.execute("SELECT count FROM counts")
                await asyncio.sleep(0)
                await tx.execute("UPDATE counts SET count = ?", (rows[0][0] + 1,))
        await store.aclose()

    asyncio.run(count())
