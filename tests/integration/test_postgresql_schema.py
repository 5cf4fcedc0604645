"""The schema of a PostgreSQL store: made once by many, brought up to date, and what roles and versions allow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import LeaseLost, Misconfigured
from evenflow.model import Cursor, Group, Member
from evenflow.stores.postgresql import schema as postgresql_schema
from evenflow.stores.postgresql.store import PostgreSQLStore, script
from evenflow.testing.store.scene import at
from tests.servers.postgres import shared_or_skip

if TYPE_CHECKING:
    from evenflow.model import Ledger
    from tests.servers.postgres import Postgres

pytestmark = pytest.mark.process

GROUP = Group("homes.example", "sensors", "alerts")
ME = Member(id="me", nonce="1", ttl_s=8.0)
MANY = 12


@pytest.fixture
def server() -> Postgres:
    return shared_or_skip()


@pytest.fixture
def database(server: Postgres) -> str:
    return server.make_database()


async def beaten(url: str, **options: object) -> Ledger:
    store = PostgreSQLStore(url, **options)  # type: ignore[arg-type]
    try:
        return await store.heartbeat(GROUP, ME, None)
    finally:
        await store.aclose()


def test_many_that_start_at_once_make_one(server: Postgres, database: str) -> None:
    async def start() -> set[str]:
        ledgers = await asyncio.gather(*(beaten(server.url(database)) for _ in range(MANY)))
        return {ledger.cursor.lineage for ledger in ledgers}

    assert len(asyncio.run(start())) == 1


def test_a_missing_one_is_an_error_for_those_who_only_look(server: Postgres, database: str) -> None:
    async def look() -> None:
        store = PostgreSQLStore(server.url(database), create=False)
        try:
            await store.groups()
        finally:
            await store.aclose()

    with pytest.raises(Misconfigured, match="There is no store in schema evenflow"):
        asyncio.run(look())
    assert server.sql("SELECT to_regnamespace('evenflow')", database) == [(None,)]
    asyncio.run(beaten(server.url(database)))
    asyncio.run(look())


def test_one_of_a_newer_version_is_refused_and_left_alone(server: Postgres, database: str) -> None:
    asyncio.run(beaten(server.url(database)))
    newer = "CREATE OR REPLACE FUNCTION evenflow.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 99'"
    server.sql(newer, database)
    with pytest.raises(Misconfigured, match=r"newer evenflow \(its version is 99.*Update evenflow here"):
        asyncio.run(beaten(server.url(database)))
    assert server.sql("SELECT revision FROM evenflow.groups", database) == [(2,)]


def test_an_older_one_is_brought_up_step_by_step_and_keeps_what_it_has(
    server: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.run(beaten(server.url(database)))
    monkeypatch.setattr(postgresql_schema, "VERSION", postgresql_schema.VERSION + 2)
    upgrades = {
        postgresql_schema.VERSION - 2: "ALTER TABLE evenflow.groups ADD COLUMN first integer NOT NULL DEFAULT 1",
        postgresql_schema.VERSION - 1: "ALTER TABLE evenflow.groups ADD COLUMN second integer NOT NULL DEFAULT 2",
    }
    monkeypatch.setattr(postgresql_schema, "UPGRADES", upgrades)

    async def start() -> list[Ledger]:
        return list(await asyncio.gather(*(beaten(server.url(database)) for _ in range(MANY))))

    after = asyncio.run(start())
    assert {ledger.cursor.lineage for ledger in after} == {before.cursor.lineage}
    assert {ledger.cursor.history for ledger in after} == {0}
    assert server.sql("SELECT first, second FROM evenflow.groups", database) == [(1, 2)]
    assert server.sql("SELECT evenflow.version()", database) == [(postgresql_schema.VERSION,)]


FIRST_VERSION = """
ALTER TABLE evenflow.meta DROP COLUMN timeline, DROP COLUMN system, DROP COLUMN place;
ALTER TABLE evenflow.groups DROP COLUMN began, DROP COLUMN epoch_floor;
ALTER TABLE evenflow.checkpoints DROP COLUMN edition;
DROP TABLE evenflow.floors, evenflow.departures;
DROP FUNCTION evenflow.current_meta(), evenflow.timeline(), evenflow.system(), evenflow.locked_floor(text, text, text);
CREATE OR REPLACE FUNCTION evenflow.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
"""
"""What is not in a schema of the first version."""


def test_one_of_the_first_version_is_brought_up_and_nothing_counts_as_lost(server: Postgres, database: str) -> None:
    async def play() -> Cursor:
        store = PostgreSQLStore(server.url(database))
        try:
            await store.seal(GROUP, "0", 1, at(0))
            await store.commit(GROUP, [at(3)])
            return (await store.heartbeat(GROUP, ME, None)).cursor
        finally:
            await store.aclose()

    before = asyncio.run(play())
    server.sql(FIRST_VERSION, database)
    assert asyncio.run(play()) == Cursor(before.lineage, before.history, before.revision + 1)
    assert server.sql("SELECT evenflow.version()", database) == [(postgresql_schema.VERSION,)]


def test_a_role_that_may_not_create_says_what_to_do_and_runs_once_that_is_done(server: Postgres, database: str) -> None:
    role = server.fresh("role")
    server.sql(f"CREATE ROLE {role} LOGIN", database)
    url = server.url(database, user=role)
    with pytest.raises(Misconfigured, match=rf"{role} may not make the schema evenflow .*script\(schema, role\)"):
        asyncio.run(beaten(url))
    server.sql(script(), database)
    with pytest.raises(Misconfigured, match=r"lacks USAGE ON SCHEMA evenflow, .*UPDATE ON evenflow.meta") as told:
        asyncio.run(beaten(url))
    server.sql(str(told.value).partition("run:\n")[2], database)
    server.sql("REVOKE DELETE ON evenflow.members FROM " + role, database)
    with pytest.raises(Misconfigured, match=r"lacks DELETE ON evenflow.members\."):
        asyncio.run(beaten(url))
    server.sql(script(role=role), database)
    assert asyncio.run(_everything(url)) == 5


async def _everything(url: str) -> int:
    """All that a role must be able to do."""
    store = PostgreSQLStore(url)
    try:
        me = (await store.heartbeat(GROUP, ME, None)).me
        assert me is not None
        await store.seal(GROUP, "0", 1, at(0))
        await store.commit(GROUP, [at(3)])
        async with store.transaction(GROUP, at(5), committed=3, start=3, limit_s=5.0) as tx:
            await tx.execute("SELECT 1")
        (record,) = await store.checkpoints(GROUP)
        await store.delete(GROUP)
        return record.ordinal
    finally:
        await store.aclose()


def test_what_somebody_dropped_is_made_anew_and_the_history_rises(server: Postgres, database: str) -> None:
    async def play() -> list[int]:
        store = PostgreSQLStore(server.url(database))
        try:
            first = await store.heartbeat(GROUP, ME, None)
            await store.seal(GROUP, "0", 1, at(7))
            server.sql("DROP TABLE evenflow.checkpoints CASCADE", database)
            with pytest.raises(LeaseLost, match="lost writes"):
                await store.seal(GROUP, "0", 1, at(0))
            second = await store.heartbeat(GROUP, first.me or ME, first.cursor)
            server.sql("DROP SCHEMA evenflow CASCADE", database)
            third = await store.heartbeat(GROUP, first.me or ME, second.cursor)
            assert third.cursor.lineage != second.cursor.lineage
            return [ledger.cursor.history for ledger in (first, second, third)]
        finally:
            await store.aclose()

    assert asyncio.run(play()) == [0, 1, 2]


def test_people_can_look_at_views(server: Postgres, database: str) -> None:
    async def play() -> None:
        store = PostgreSQLStore(server.url(database))
        await store.seal(GROUP, "0", 1, at(0))
        await store.commit(GROUP, [at(3)])
        await store.aclose()

    asyncio.run(play())
    assert server.sql("SELECT consumer_group, partition, handled FROM evenflow.progress", database) == [
        ("alerts", "0", 3)
    ]
    assert server.sql("SELECT consumer_group, partitions, behind_s FROM evenflow.lag", database) == [
        ("alerts", 1, None)
    ]
    assert server.sql("SELECT * FROM evenflow.ownership", database) == []
