"""Transactions of an application in a PostgreSQL store: what ends them, who waits for them, what is refused."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from evenflow.errors import LeaseLost, Misconfigured, StoreUnavailable, TransactionTimeout, Transient
from evenflow.stores.postgresql.store import PostgreSQLStore
from evenflow.testing.store.scene import at, present
from tests.integration import one_client
from tests.integration.one_client import GROUP, ME, PATIENCE_S, SOON_S
from tests.servers.postgres import shared_or_skip
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from evenflow.model import Checkpoint
    from evenflow.ports import Transaction
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process

LIMIT_S = 3.0
"""Of a transaction that is to be ended: a busy machine has said by then what it says in it."""
opened = partial(one_client.opened, PostgreSQLStore)


@pytest.fixture
def server() -> Postgres:
    return shared_or_skip()


@pytest.fixture
def database(server: Postgres) -> str:
    return server.make_database()


@pytest.fixture
def proxy(server: Postgres) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def test_a_transaction_that_checked_before_a_takeover_cannot_commit_after_the_seal(
    server: Postgres, database: str, proxy: Proxy
) -> None:
    """Its process stands still, as far as the server can tell, until that gives it up; then the new owner seals."""

    async def play() -> None:
        async with opened(server.url(database, port=proxy.port)) as old, opened(server.url(database)) as new:
            await old.seal(GROUP, "0", 1, at(0))
            server.sql("CREATE TABLE effects (name text)", database)
            block = old.transaction(GROUP, at(5), committed=0, start=0, limit_s=LIMIT_S)
            tx = await block.__aenter__()
            await tx.execute("INSERT INTO effects VALUES ($1)", ("old",))
            with proxy.holding():
                sealed = await _sealed(new, 2)
                assert sealed.ordinal == 0
            with pytest.raises((StoreUnavailable, TransactionTimeout, LeaseLost)):
                await block.__aexit__(None, None, None)
            assert (await new.seal(GROUP, "0", 2, at(0))).ordinal == 0
            async with new.transaction(GROUP, at(5, epoch=2), committed=0, start=0, limit_s=5.0) as again:
                await again.execute("INSERT INTO effects VALUES ($1)", ("new",))
            assert server.sql("SELECT name FROM effects", database) == [("new",)]

    asyncio.run(play())


async def _sealed(store: PostgreSQLStore, epoch: int, partition: str = "0") -> Checkpoint:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Transient):
                return await store.seal(GROUP, partition, epoch, at(0, partition=partition))


SPOKEN: dict[str, Callable[[Transaction], Awaitable[object]]] = {
    "nothing": lambda _: asyncio.sleep(0),
    "a statement without values": lambda tx: tx.execute("SELECT 1"),
    "a statement with a value": lambda tx: tx.execute("SELECT $1::int", (1,)),
    "many statements": lambda tx: tx.execute_many("SELECT $1::int", [(1,), (2,)]),
}
"""What a client may have said last in its transaction."""


def test_the_server_ends_what_a_dead_client_has_left_open(server: Postgres, database: str, proxy: Proxy) -> None:
    async def play() -> None:
        async with opened(server.url(database, port=proxy.port)) as old, opened(server.url(database)) as new:
            blocks = {
                said: old.transaction(GROUP, at(5, partition=said), committed=0, start=0, limit_s=LIMIT_S)
                for said in SPOKEN
            }
            for said in SPOKEN:
                await old.seal(GROUP, said, 1, at(0, partition=said))
            transactions = await asyncio.gather(*(block.__aenter__() for block in blocks.values()))
            await asyncio.gather(*(speak(tx) for speak, tx in zip(SPOKEN.values(), transactions, strict=True)))
            with proxy.holding():
                for said, block in blocks.items():
                    await _sealed(new, 2, said)
                    with pytest.raises((StoreUnavailable, TransactionTimeout)):
                        await block.__aexit__(None, None, None)

    asyncio.run(play())


def test_a_statement_that_runs_too_long_is_ended_on_the_server(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            await store.seal(GROUP, "0", 1, at(0))
            with pytest.raises(TransactionTimeout):
                async with store.transaction(GROUP, at(5), committed=0, start=0, limit_s=SOON_S) as tx:
                    await tx.execute("SELECT pg_sleep(60)")
            assert (await store.seal(GROUP, "0", 2, at(0))).ordinal == 0
            running = "query LIKE '%pg_sleep(60)%' AND state = 'active' AND pid <> pg_backend_pid()"
            assert server.sql(f"SELECT 1 FROM pg_stat_activity WHERE {running}", database) == []

    asyncio.run(play())


def test_a_statement_that_began_late_is_cancelled_in_time(server: Postgres, database: str) -> None:
    """The server's own limit counts from the statement's beginning, so that it would come later."""
    limit_s, began_s = 4.0, 3.0

    async def play() -> float:
        async with opened(server.url(database)) as old, opened(server.url(database)) as new:
            await old.seal(GROUP, "0", 1, at(0))
            started_s = time.monotonic()
            with pytest.raises(TransactionTimeout):  # noqa: PT012
                async with old.transaction(GROUP, at(5), committed=0, start=0, limit_s=limit_s) as tx:
                    await asyncio.sleep(began_s)
                    await tx.execute("SELECT pg_sleep(60)")
            await _sealed(new, 2)
            return time.monotonic() - started_s

    if server.sql("SHOW server_version_num")[0][0] < "170000":
        assert asyncio.run(play()) < began_s + limit_s, "the server's own limit comes then at the earliest"


NOT_ALLOWED = {
    "COMMIT": "it commits at the end of its block",
    "SELECT 1; COMMIT": "multiple commands",
    "UPDATE evenflow.checkpoints SET ordinal = 0": "evenflow.checkpoints is evenflow's own",
    "TRUNCATE evenflow.leases": "evenflow.leases is evenflow's own",
    "SELECT evenflow.delete('homes.example', 'sensors', 'alerts')": "is evenflow's own",
    "SET statement_timeout = 0": "the connection is reused",
}


def test_what_would_end_it_or_write_to_our_tables_is_refused(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            await store.heartbeat(GROUP, ME, None)
            await store.seal(GROUP, "0", 1, at(3))
            for statement, says in NOT_ALLOWED.items():
                with pytest.raises((Misconfigured, psycopg.errors.SyntaxError), match=says):
                    async with store.transaction(GROUP, at(5), committed=3, start=3, limit_s=PATIENCE_S) as tx:
                        await tx.execute(statement)
                assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 3, statement

    asyncio.run(play())


def test_an_error_that_the_application_swallows_rolls_back_and_says_so(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            await store.seal(GROUP, "0", 1, at(0))
            with pytest.raises(Misconfigured, match="SAVEPOINT"):  # noqa: PT012
                async with store.transaction(GROUP, at(5), committed=0, start=0, limit_s=5.0) as tx:
                    with suppress(psycopg.Error):
                        await tx.execute("SELECT 1 / 0")
            assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 0
            async with store.transaction(GROUP, at(5), committed=0, start=0, limit_s=5.0) as tx:
                await tx.execute("SAVEPOINT here")
                with suppress(psycopg.Error):
                    await tx.execute("SELECT 1 / 0")
                await tx.execute("ROLLBACK TO here")
            assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 5

    asyncio.run(play())


def test_a_heartbeat_never_waits_for_a_transaction_or_a_seal(server: Postgres, database: str) -> None:
    """One that waited would fail: what it waited for is held for longer than a lock is waited for."""

    async def play() -> None:
        async with opened(server.url(database)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            await store.seal(GROUP, "0", 1, at(0))
            async with store.transaction(GROUP, at(5), committed=0, start=0, limit_s=30.0):
                seals = [asyncio.create_task(store.seal(GROUP, "0", 2, at(0))) for _ in range(8)]
                for _ in range(20):
                    ledger = await store.heartbeat(GROUP, present(ledger), ledger.cursor)
            await asyncio.gather(*seals)

    asyncio.run(play())


def test_a_commit_without_an_answer_is_in_doubt_and_not_a_timeout(server: Postgres, database: str) -> None:
    """Whether the connection is cut before its limit has passed, after it, or never."""

    async def doubtful(partition: str, cut_after_s: float | None) -> None:
        with Proxy(server.port) as proxy:
            async with opened(server.url(database, port=proxy.port)) as store, opened(server.url(database)) as other:
                await store.seal(GROUP, partition, 1, at(0, partition=partition))
                target = at(5, partition=partition)
                block = store.transaction(GROUP, target, committed=0, start=0, limit_s=LIMIT_S)
                tx = await block.__aenter__()
                await tx.execute("SELECT 1")
                with proxy.losing_answers():
                    ending = asyncio.ensure_future(block.__aexit__(None, None, None))
                    await _until_committed(other, partition)
                    if cut_after_s is not None:
                        await asyncio.wait([ending], timeout=cut_after_s)
                        proxy.cut()
                    with pytest.raises(StoreUnavailable):
                        await ending

    async def play() -> None:
        await asyncio.gather(doubtful("0", 0.0), doubtful("1", LIMIT_S + 0.5), doubtful("2", None))

    asyncio.run(play())


async def _until_committed(store: PostgreSQLStore, partition: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (partition, 5) not in await _ordinals(store):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _ordinals(store: PostgreSQLStore) -> list[tuple[str, int]]:
    return [(record.partition, record.ordinal) for record in await store.checkpoints(GROUP)]
