"""What a PostgreSQL store makes of faults of its server and of the way there, one client at a time."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
from msgspec import structs

from evenflow.drivers.postgresql import pool as postgresql_pool
from evenflow.errors import Corrupt, Misconfigured, StorageFull, StoreUnavailable
from evenflow.model import Action, Steering
from evenflow.stores.postgresql.store import PostgreSQLStore
from evenflow.testing.store.scene import after, at, first, granted, present
from tests.integration import one_client
from tests.integration.one_client import GROUP, ME, PATIENCE_S, SOON_S, patiently
from tests.servers.postgres import shared_or_skip
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.model import Lease, Member
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process

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


def test_a_restart_in_the_middle_of_heartbeats_costs_only_the_time_it_takes(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            await one_client.heartbeats_go_on_after(store, server.stop, server.start_again)

    asyncio.run(play())


def test_an_idle_connection_that_was_ended_is_replaced_without_an_error(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            server.restart()
            assert (await store.heartbeat(GROUP, present(ledger), ledger.cursor)).cursor.history == 0

    asyncio.run(play())


def test_a_connection_that_hangs_is_given_up_and_replaced(
    server: Postgres, database: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with opened(server.url(database, port=proxy.port)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            with proxy.holding(), monkeypatch.context() as patch:
                patch.setattr(postgresql_pool.ConnectionPool.run, "__defaults__", (SOON_S,))
                for _ in range(3):
                    started_s = time.monotonic()
                    with pytest.raises(StoreUnavailable):
                        await store.heartbeat(GROUP, present(ledger), ledger.cursor)
                    assert time.monotonic() - started_s < PATIENCE_S / 2
            ledger = await patiently(lambda: store.heartbeat(GROUP, present(ledger), ledger.cursor))
            assert ledger.cursor.history == 0

    asyncio.run(play())


def test_a_client_that_leaves_a_hanging_request_does_not_block_the_next(
    server: Postgres, database: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_pool.ConnectionPool.run, "__defaults__", (2 * PATIENCE_S,))

    async def play() -> None:
        async with opened(server.url(database, port=proxy.port)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            with proxy.holding_old():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(SOON_S):
                        await store.heartbeat(GROUP, present(ledger), ledger.cursor)
                async with asyncio.timeout(PATIENCE_S):  # the one that hangs would have had longer
                    await store.heartbeat(GROUP, present(ledger), ledger.cursor)

    asyncio.run(play())


def test_a_lost_answer_leaves_one_effect(server: Postgres, database: str, proxy: Proxy) -> None:
    async def play() -> None:
        async with opened(server.url(database, port=proxy.port)) as store, opened(server.url(database)) as other:
            await one_client.lost_answers_leave_one_effect(store, other, proxy.losing_answers)

    asyncio.run(play())


def test_a_listener_comes_back_by_itself(server: Postgres, database: str, proxy: Proxy) -> None:
    async def play() -> None:
        async with opened(server.url(database, port=proxy.port)) as store, opened(server.url(database)) as other:
            me, heir = [present(await other.heartbeat(GROUP, structs.replace(ME, id=name), None)) for name in "ab"]
            lease = granted((await other.swap(GROUP, [first("0", me.owner)]))[0])
            woken = asyncio.Event()
            store.watch(GROUP, heir.id, woken.set)
            async with asyncio.timeout(PATIENCE_S):
                await woken.wait()
                for owner in (heir, me, heir):
                    woken.clear()
                    proxy.cut()
                    await woken.wait()  # it listens again, and tells everybody once
                    await asyncio.sleep(0.05)
                    woken.clear()
                    lease = granted((await other.swap(GROUP, [after(lease, owner.owner)]))[0])
                    if owner is heir:
                        await woken.wait()

    asyncio.run(play())


REFUSED = (
    ("keyed", "wrong-geheim", "postgres", "refuses the connection.*password authentication failed"),
    ("keyed", "", "postgres", "refuses the connection.*no password"),
    ("shut", "geheim", "postgres", "refuses the connection.*pg_hba.conf"),
    ("nobody_here", "geheim", "postgres", "refuses the connection.*does not exist"),
    ("postgres", "geheim", "nowhere", "There is no database at .*/nowhere"),
)


def test_refused_credentials_say_what_to_do_and_no_password(server: Postgres) -> None:
    for name in ("keyed", "shut"):
        if not server.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{name}'"):
            server.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'right'")

    async def play() -> None:
        for role, password, database, says in REFUSED:
            async with opened(server.url(database, user=f"{role}:{password}" if password else role)) as store:
                with pytest.raises(Misconfigured, match=says) as caught:
                    await store.heartbeat(GROUP, ME, None)
                assert "geheim" not in f"{caught.value!r} {caught.value.__cause__!r}", says

    asyncio.run(play())


def test_a_role_that_may_not_log_in_for_a_while_is_an_outage(server: Postgres, database: str) -> None:
    role = server.fresh("role")
    server.sql(f"CREATE ROLE {role} SUPERUSER LOGIN")

    async def play() -> None:
        async with opened(server.url(database, user=role)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            server.sql(f"ALTER ROLE {role} NOLOGIN")
            server.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'")
            with pytest.raises(StoreUnavailable, match="not permitted to log in"):
                await store.heartbeat(GROUP, present(ledger), ledger.cursor)
            server.sql(f"ALTER ROLE {role} LOGIN")
            assert (await store.heartbeat(GROUP, present(ledger), ledger.cursor)).cursor.history == 0

    asyncio.run(play())


def test_a_server_that_is_not_there_is_an_outage(server: Postgres, proxy: Proxy) -> None:
    async def play() -> None:
        async with opened(server.url(port=proxy.port)) as store:
            with proxy.refusing(), pytest.raises(StoreUnavailable, match="cannot be reached"):
                await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())


def test_an_emptied_store_is_noticed_whatever_was_emptied(server: Postgres, database: str) -> None:
    tables = "meta, groups, members, leases, moves, actions, checkpoints"
    everything = ", ".join(f"evenflow.{table}" for table in tables.split(", "))
    wounds = [
        f"TRUNCATE {everything}",
        "TRUNCATE evenflow.checkpoints",
        "TRUNCATE evenflow.leases",
        "DELETE FROM evenflow.checkpoints",
        "DELETE FROM evenflow.groups",
        "DELETE FROM evenflow.meta",
    ]

    async def play() -> None:
        async with opened(server.url(database)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            me = present(ledger)
            for wound in wounds:
                await store.seal(GROUP, "0", 1 << 40, at(9))
                ledger = await store.heartbeat(GROUP, me, ledger.cursor)
                server.sql(wound, database)
                healed = await store.heartbeat(GROUP, me, ledger.cursor)
                assert healed.cursor.history > ledger.cursor.history, wound
                assert healed.whole, wound
                ledger = healed
            quiet = await store.heartbeat(GROUP, me, ledger.cursor)
            server.sql("DELETE FROM evenflow.checkpoints WHERE partition = 'none'", database)
            assert (await store.heartbeat(GROUP, me, quiet.cursor)).cursor.history == quiet.cursor.history

    asyncio.run(play())


def test_a_database_that_is_dropped_and_made_again_is_an_emptied_store(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            server.sql(f"DROP DATABASE {database} WITH (FORCE)")
            with pytest.raises(StoreUnavailable, match="There is no database"):
                await store.heartbeat(GROUP, present(ledger), ledger.cursor)
            server.sql(f"CREATE DATABASE {database}")
            healed = await patiently(lambda: store.heartbeat(GROUP, present(ledger), ledger.cursor))
            assert healed.cursor.history == ledger.cursor.history + 1
            assert present(healed).incarnation == present(ledger).incarnation

    asyncio.run(play())


def test_a_full_disk_is_an_outage_that_ends_by_itself(server: Postgres, database: str) -> None:
    async def play(space: str) -> None:
        async with opened(server.url(database)) as store:
            await store.seal(GROUP, "0", 1, at(0))
            server.sql(f"ALTER TABLE evenflow.checkpoints SET TABLESPACE {space}", database)
            assert (await store.commit(GROUP, [at(1)]))[0].ok
            server.sql(f"CREATE TABLE filler (body text) TABLESPACE {space}", database)
            with suppress(psycopg.errors.DiskFull):
                for _ in range(10_000):
                    server.sql("INSERT INTO filler SELECT md5(random()::text) FROM generate_series(1, 9000)", database)
            notes = {"much": secrets.token_urlsafe(6_000)}
            with pytest.raises(StorageFull, match="Free some space"):  # noqa: PT012
                for partition in map(str, range(10_000)):
                    await store.seal(GROUP, partition, 1, at(0, partition=partition, notes=notes))
            ledger = await store.heartbeat(GROUP, ME, None)
            assert ledger.me is not None, "leases are elsewhere"
            server.sql("DROP TABLE filler", database)
            server.sql("CHECKPOINT")
            assert (await store.commit(GROUP, [at(2)]))[0].ok
            assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 2

    with server.small_disk() as space:
        asyncio.run(play(space))
        server.sql(f"DROP DATABASE {database} WITH (FORCE)")


# --- what the server is set to
def test_the_isolation_level_of_the_database_does_not_matter(server: Postgres) -> None:
    for level in ("repeatable read", "serializable"):
        database = server.make_database()
        server.sql(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
        asyncio.run(_many_at_once(server.url(database), level))


async def _many_at_once(url: str, level: str) -> None:
    stores = [PostgreSQLStore(url) for _ in range(8)]
    try:
        heartbeats = [
            store.heartbeat(GROUP, structs.replace(ME, id=f"m{number}"), None) for number, store in enumerate(stores)
        ]
        members = [present(ledger) for ledger in await asyncio.gather(*heartbeats)]
        for turn in map(str, range(10)):
            claims = [s.swap(GROUP, [first(turn, m.owner)]) for s, m in zip(stores, members, strict=True)]
            assert sum(outcomes[0].ok for outcomes in await asyncio.gather(*claims)) == 1, level
        await asyncio.gather(*(store.seal(GROUP, "0", 1, at(0)) for store in stores))
        commits = await asyncio.gather(*(store.commit(GROUP, [at(5)]) for store in stores))
        assert all(outcomes[0].ok for outcomes in commits), level
        assert len((await stores[0].heartbeat(GROUP, members[0], None)).members) == 8, level
    finally:
        for store in stores:
            await store.aclose()


def test_a_server_that_takes_no_writes_is_an_outage(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            await store.groups()
        server.sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        async with opened(server.url(database)) as store:
            assert list(await store.groups()) == []
            with pytest.raises(StoreUnavailable, match="read-only transaction"):
                await store.heartbeat(GROUP, ME, None)

    asyncio.run(play())


def test_a_lock_of_somebody_else_is_waited_for_and_then_an_outage(server: Postgres, database: str) -> None:
    async def play() -> None:
        async with opened(server.url(database)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            with psycopg.connect(server.url(database)) as holder:
                holder.execute("LOCK TABLE evenflow.groups IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(StoreUnavailable, match="lock"):
                    await store.heartbeat(GROUP, present(ledger), ledger.cursor)
            assert (await store.heartbeat(GROUP, present(ledger), ledger.cursor)).cursor.history == 0

    asyncio.run(play())


def test_a_backup_that_is_put_back_is_noticed(server: Postgres, database: str) -> None:
    backup = server.fresh("backup")

    async def play() -> None:
        async with opened(server.url(database)) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            server.sql(f"ALTER DATABASE {database} WITH ALLOW_CONNECTIONS false")
            _end_connections(server, database)
            server.sql(f"CREATE DATABASE {backup} TEMPLATE {database}")
            server.sql(f"ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true")
            for _ in range(3):
                ledger = await patiently(lambda: store.heartbeat(GROUP, me, None))
            server.sql(f"DROP DATABASE {database} WITH (FORCE)")
            server.sql(f"ALTER DATABASE {backup} RENAME TO {database}")
            newcomer = await patiently(lambda: store.heartbeat(GROUP, structs.replace(ME, id="new", nonce="2"), None))
            assert newcomer.cursor.history == ledger.cursor.history + 1, "the database is another one"
            healed = await patiently(lambda: store.heartbeat(GROUP, me, ledger.cursor))
            assert (healed.cursor.history, healed.whole) == (ledger.cursor.history + 1, True)

    asyncio.run(play())


DAMAGED = {
    "members.facts": ME.id,
    "checkpoints.notes": "0",
    "groups.pauses": GROUP.name,
    "groups.retired": GROUP.name,
    "groups.redrives": GROUP.name,
}
"""Columns that hold JSON as text, and the row of each."""


def test_rows_that_are_damaged_are_named(server: Postgres, database: str) -> None:
    """Whether a function meets the damage, or the client that reads its answer. No request raises anything else."""

    async def play() -> None:
        async with opened(server.url(database)) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            for place, row in DAMAGED.items():
                table, _, column = place.partition(".")
                ((whole,),) = server.sql(f"SELECT {column} FROM evenflow.{table}", database)
                for garbage in ("garbage", "[1]"):
                    server.sql(f"UPDATE evenflow.{table} SET {column} = '{garbage}'", database)
                    said = await _complaints(store, me, lease)
                    says = f"column {column} of the row {row!r} in the table {table} cannot be read"
                    assert said, f"{place} = {garbage}"
                    assert not [one for one in said if says not in one], f"{place} = {garbage}"
                server.sql(f"UPDATE evenflow.{table} SET {column} = '{whole}'", database)
            assert await _complaints(store, me, lease) == []

    asyncio.run(play())


async def _complaints(store: PostgreSQLStore, me: Member, lease: Lease) -> list[str]:
    """What each kind of request says about damage."""
    said: list[str] = []
    other = structs.replace(me, id="other", nonce="other", incarnation=0, leaving=True)
    for request in (
        store.peek(GROUP),
        store.checkpoints(GROUP),
        store.heartbeat(GROUP, other, None),
        store.steer(GROUP, Steering(), Action(kind="pause", by="", why="", what="")),
        store.seal(GROUP, "0", lease.epoch + 1, at(0)),
        store.commit(GROUP, [at(1, epoch=lease.epoch)]),
    ):
        try:
            await request
        except Corrupt as error:
            said.append(str(error))
    return said


def _end_connections(server: Postgres, database: str) -> None:
    server.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database}'")


def test_a_role_that_loses_a_grant_is_told_which(server: Postgres, database: str) -> None:
    role = server.fresh("role")
    server.sql(f"CREATE ROLE {role} LOGIN")
    server.sql(f"GRANT CREATE ON DATABASE {database} TO {role}")

    async def play() -> None:
        async with opened(server.url(database, user=role)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            server.sql(f"REVOKE UPDATE ON evenflow.members FROM {role}", database)
            with pytest.raises(StoreUnavailable, match=rf"{role} may not do this: .*members"):
                await store.heartbeat(GROUP, present(ledger), ledger.cursor)
        async with opened(server.url(database, user=role)) as late:
            with pytest.raises(Misconfigured, match=rf"{role} lacks UPDATE ON evenflow.members"):
                await late.heartbeat(GROUP, ME, None)
            server.sql(f"GRANT UPDATE ON evenflow.members TO {role}", database)
            assert present(await late.heartbeat(GROUP, present(ledger), None))

    asyncio.run(play())
