"""Changes that commit late, in another order than they were made: nothing is missed, and each row's are in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Processor
from evenflow.errors import SourceUnavailable
from evenflow.sources.postgresql.source import PostgreSQLTable
from evenflow.stores.memory import MemoryStore
from tests.integration.table_scene import TableScene, keys, next_events, nothing, rows, scene_of, staged
from tests.servers.postgres import Postgres, careless_or_skip, shared_or_skip

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from evenflow.model import Delay, Event
    from evenflow.runtime.partition import OwnedPartition

pytestmark = pytest.mark.process


@pytest.fixture
def server() -> Postgres:
    """One whose transactions can be prepared."""
    return careless_or_skip()


@staged
async def test_what_commits_late_is_waited_for(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    reader = await scene.reader()
    slow, quick = await scene.hand(autocommit=False), await scene.hand()
    await quick.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await slow.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (3, 1)")
    assert keys(await next_events(reader, 1)) == ["1"]
    held = await nothing(reader)
    await slow.commit()
    assert keys(await next_events(reader, 2)) == ["2", "3"]
    again = await scene.source().open("0", held, epoch=1)
    assert keys(await next_events(again, 2)) == ["2", "3"]


async def _hold_back(scene: TableScene) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """Two committed changes behind an open transaction."""
    await scene.make()
    await scene.watch()
    slow, quick = await scene.hand(autocommit=False), await scene.hand()
    await quick.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await slow.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (3, 1), (4, 1)")
    return slow


@staged
async def test_what_waits_for_an_open_transaction_is_lag_and_told_with_whom_it_waits_for(scene: TableScene) -> None:
    slow = await _hold_back(scene)
    source = scene.source()
    newest = (await source.bounds(["0"]))["0"].newest
    assert newest is not None
    assert newest.sequence == 4
    delay = (await source.held_back(["0"]))["0"]
    assert delay.seconds >= 0
    process = slow.info.backend_pid
    assert delay.why.startswith(f"2 committed changes wait for the transaction of process {process}, open since 20")
    processor = Processor(scene.url(), MemoryStore(), "g", start="earliest")
    processor.on_event(_ignore)
    with pytest.raises(SourceUnavailable, match=rf"partition 0: 2 committed changes .* process {process}, .*give_up_s"):
        await processor.serve(until="caught_up", give_up_s=0.3)
    await slow.rollback()
    assert await source.held_back(["0"]) == {}


async def _ignore(event: Event, partition: OwnedPartition) -> None:
    pass


@staged
async def test_a_run_until_caught_up_waits_for_what_was_committed_behind_an_open_transaction(scene: TableScene) -> None:
    slow = await _hold_back(scene)
    seen: list[str | None] = []
    looked = asyncio.Event()

    class Told(PostgreSQLTable):
        async def held_back(self, partitions: Sequence[str]) -> Mapping[str, Delay]:
            looked.set()
            return await super().held_back(partitions)

    async def handle(event: Event, partition: OwnedPartition) -> None:
        seen.append(event.key)

    scene.sources.append(Told(scene.server.url(scene.database), scene.table, schema=scene.schema))
    processor = Processor(scene.sources[-1], MemoryStore(), "g", start="earliest")
    processor.on_event(handle)
    run = asyncio.create_task(processor.serve(until="caught_up"))
    await looked.wait()
    assert seen == ["1"]
    await slow.commit()
    await run
    assert seen == ["1", "2", "3", "4"]


@staged
async def test_what_is_rolled_back_holds_nobody_up_afterwards(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    reader = await scene.reader()
    slow, quick = await scene.hand(autocommit=False), await scene.hand()
    await slow.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (3, 1)")
    await nothing(reader)
    await slow.rollback()
    assert keys(await next_events(reader, 1)) == ["3"]
    await slow.execute(f"INSERT INTO {scene.table} VALUES (4, 1)")
    await slow.rollback()
    resume = await nothing(reader)
    assert resume.sequence == 3, "past the number that was given back"


@staged
async def test_a_savepoint_that_is_rolled_back_takes_its_lock_with_it_and_the_next_change_takes_another(
    scene: TableScene,
) -> None:
    await scene.make()
    await scene.watch()
    reader = await scene.reader()
    slow, quick = await scene.hand(autocommit=False), await scene.hand()
    await slow.execute("SAVEPOINT here")
    await slow.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await slow.execute("ROLLBACK TO here")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
    assert keys(await next_events(reader, 1)) == ["2"]
    await slow.execute(f"INSERT INTO {scene.table} VALUES (3, 1)")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (4, 1)")
    await nothing(reader)
    await slow.execute("SAVEPOINT there")
    await slow.execute(f"INSERT INTO {scene.table} VALUES (5, 1)")
    await slow.execute("RELEASE there")
    await slow.commit()
    assert keys(await next_events(reader, 3)) == ["3", "4", "5"]


def test_a_prepared_transaction_is_waited_for_also_by_a_server_that_was_started_again(server: Postgres) -> None:
    async def main() -> None:
        async with scene_of(server) as scene:
            await scene.make()
            await scene.watch()
            reader = await scene.reader()
            slow, quick = await scene.hand(autocommit=False), await scene.hand()
            await slow.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
            await slow.execute("PREPARE TRANSACTION 'later'")
            await quick.execute("SET synchronous_commit = on")
            await quick.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
            after = await nothing(reader)
            server.restart()
            reader = await scene.source().open("0", after, epoch=1)
            await nothing(reader)
            quick = await scene.hand()
            await quick.execute("COMMIT PREPARED 'later'")
            assert keys(await next_events(reader, 2)) == ["1", "2"]

    asyncio.run(main())


@staged
async def test_a_row_changed_late_by_a_transaction_that_began_early_is_in_order(scene: TableScene) -> None:
    """Transaction ids have another order here than the changes of the row."""
    await scene.make()
    await scene.watch(all_versions=True)
    reader = await scene.reader("all")
    early, quick = await scene.hand(autocommit=False), await scene.hand()
    await quick.execute(f"INSERT INTO {scene.table} VALUES (1, 0)")
    await early.execute("SELECT pg_current_xact_id()")
    await quick.execute(f"UPDATE {scene.table} SET version = 1 WHERE id = 1")
    await early.execute(f"UPDATE {scene.table} SET version = 2 WHERE id = 1")
    await early.commit()
    found = rows(await next_events(reader, 3))
    assert [row["current"]["version"] for row in found] == [0, 1, 2]
    assert [row["previous"]["version"] for row in found[1:]] == [0, 1]


@staged
async def test_a_long_transaction_that_does_not_touch_the_table_holds_nobody_up(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    reader = await scene.reader()
    other, quick = await scene.hand(autocommit=False), await scene.hand()
    await other.execute(f"CREATE TABLE {scene.server.fresh('other')} (id integer)")
    await other.execute("SELECT pg_current_xact_id()")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    assert keys(await next_events(reader, 1)) == ["1"]


def test_a_database_with_a_strict_isolation_level_is_read_all_the_same() -> None:
    async def main() -> None:
        server = shared_or_skip()
        database = server.make_database()
        server.sql(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
        async with scene_of(server, database) as scene:
            await scene.make()
            await scene.watch()
            reader = await scene.reader()
            hand = await scene.hand()
            for number in range(5):
                await hand.execute(f"INSERT INTO {scene.table} VALUES ({number}, 1)")
                assert keys(await next_events(reader, 1)) == [str(number)]

    asyncio.run(main())
