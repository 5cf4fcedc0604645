"""A PostgreSQL standby that lags takes over: what the primary answered last is lost, and everybody finds out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from evenflow.model import next_epoch
from evenflow.stores.postgresql.store import PostgreSQLStore, script
from evenflow.testing.store.scene import after, at, first, granted, present
from tests.integration.one_client import GROUP, ME, opened, patiently
from tests.servers.postgres import Postgres, careless_or_skip, shared_or_skip, skip_without_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.process

HEARTBEATS = 20
"""So many that the newcomer's revision is far beyond what was lost."""


@pytest.fixture
def primary() -> Iterator[Postgres]:
    skip_without_postgres()
    server = Postgres()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Postgres]:
    server = Postgres(primary=primary)
    try:
        yield server
    finally:
        server.remove()


def test_a_newcomer_that_is_first_on_a_promoted_standby_gives_no_epoch_twice(
    primary: Postgres, standby: Postgres
) -> None:
    url = primary.url_of_both(standby)

    async def play() -> None:
        async with opened(PostgreSQLStore, url) as old, opened(PostgreSQLStore, url) as new:
            ledger = await old.heartbeat(GROUP, ME, None)
            me = present(ledger)
            kept = granted((await old.swap(GROUP, [first("0", me.owner)]))[0])
            standby.catch_up(primary)
            standby.stop_following()
            lost = granted((await old.swap(GROUP, [after(kept, me.owner), first("1", me.owner)]))[0])
            assert lost.epoch == next_epoch(kept.epoch, 0)
            ledger = await old.heartbeat(GROUP, me, ledger.cursor)
            primary.stop()
            standby.promote()
            newcomer = structs.replace(ME, id="newcomer", nonce="2")
            seen = await patiently(lambda: new.heartbeat(GROUP, newcomer, None))
            assert seen.cursor.history == 1, "it has seen nothing before, and is told all the same"
            for _ in range(HEARTBEATS):
                seen = await new.heartbeat(GROUP, present(seen), seen.cursor)
            assert {lease.partition for lease in (await new.heartbeat(GROUP, present(seen), None)).leases} == {"0"}
            late = (await patiently(lambda: old.swap(GROUP, [after(lost, me.owner)])))[0]
            assert (late.ok, late.why) == (False, "history")
            told = await patiently(lambda: old.heartbeat(GROUP, me, ledger.cursor))
            assert (told.cursor.history, told.whole) == (1, True)
            again = await new.heartbeat(GROUP, present(seen), seen.cursor)
            assert again.cursor.history == 1, "it rises once, not again with each that was there before"

    asyncio.run(play())


def test_whatever_is_first_on_another_server_raises_the_history() -> None:
    """As the row of the store looks to a server that was not the last one to use it."""
    server = shared_or_skip()
    database = server.make_database()

    async def play() -> None:
        async with opened(PostgreSQLStore, server.url(database)) as store:
            ledger = await store.heartbeat(GROUP, ME, None)
            me, before = present(ledger), ledger.cursor
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            await store.seal(GROUP, "0", lease.epoch, at(0))
            requests: dict[str, Callable[[], Awaitable[Any]]] = {
                "heartbeat": lambda: store.heartbeat(GROUP, me, None),
                "swap": lambda: store.swap(GROUP, [after(lease, me.owner)]),
                "seal": lambda: store.seal(GROUP, "0", lease.epoch, at(0)),
                "commit": lambda: store.commit(GROUP, [at(1)]),
                "delete": lambda: store.delete(GROUP),
            }
            for what, ask in requests.items():
                for column in ("timeline", "system", "place"):
                    server.sql(f"UPDATE evenflow.meta SET {column} = 'another'", database)
                    answer = await ask()
                    if what == "swap":
                        assert [outcome.why for outcome in answer] == ["history"]
                    assert server.sql("SELECT history FROM evenflow.meta", database) == [(before.history + 1,)], what
                    raised = (await store.heartbeat(GROUP, me, None)).cursor
                    assert raised.history == before.history + 1, (what, column)
                    assert raised.lineage != before.lineage, (what, column)
                    assert (await store.heartbeat(GROUP, me, before)).cursor.history == raised.history, (what, column)
                    before = raised

    asyncio.run(play())


UNKNOWN = "pg_walfile_name(pg_lsn)", "pg_control_system()"


def test_who_may_not_know_the_server_works_all_the_same_and_still_notices_another_database() -> None:
    """As on services whose log is none of their users' business."""
    server = shared_or_skip()
    database, role = server.make_database(), server.fresh("role")
    server.sql(f"CREATE ROLE {role} LOGIN")
    for function in UNKNOWN:
        server.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC", database)

    async def play() -> None:
        async with opened(PostgreSQLStore, server.url(database)) as knows:
            me = present(await knows.heartbeat(GROUP, ME, None))
            server.sql(script(role=role), database)
            async with opened(PostgreSQLStore, server.url(database, user=role)) as other:
                for store in (other, knows, other, knows):
                    seen = await store.heartbeat(GROUP, me, None)
                    assert seen.cursor.history == 0, "what is not known proves nothing"
                (row,) = server.sql("SELECT ctid::text, m::text FROM evenflow.meta m", database)
                await other.heartbeat(GROUP, me, None)
                assert server.sql("SELECT ctid::text, m::text FROM evenflow.meta m", database) == [row], (
                    "nor is it written"
                )
                server.sql("UPDATE evenflow.meta SET place = 'another'", database)
                assert (await other.heartbeat(GROUP, me, None)).cursor.history == 1

    asyncio.run(play())


def test_what_is_answered_outlives_a_crash_of_a_server_that_is_set_not_to_wait_for_its_disk() -> None:
    server = careless_or_skip()
    database = server.make_database()

    async def play() -> None:
        async with opened(PostgreSQLStore, server.url(database)) as store:
            me = present(await store.heartbeat(GROUP, ME, None))
            server.sql("CHECKPOINT")
            lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
            server.restart()
            kept = await patiently(lambda: store.heartbeat(GROUP, me, None))
            assert kept.leases == (lease,)
            await store.seal(GROUP, "0", lease.epoch, at(3))
            server.restart()
            (record,) = await patiently(lambda: store.checkpoints(GROUP))
            assert record.ordinal == 3
            assert (await store.commit(GROUP, [at(5)]))[0].ok
            server.restart()
            (record,) = await patiently(lambda: store.checkpoints(GROUP))
            assert record.ordinal == 5

    asyncio.run(play())
