"""What would make a feed lose a change, give it in the wrong order, or hold it back: crashes, triggers in triggers, odd
keys, and owners who change their mind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from evenflow import HubReplaced, PartitionHalted, Processor
from evenflow.errors import Misconfigured, PositionOutOfRange, SourceUnavailable
from evenflow.sources.postgresql import admin as owner
from evenflow.stores.memory import MemoryStore
from tests.integration.table_scene import (
    MUCH,
    PATIENCE_S,
    TableScene,
    add_trigger,
    keys,
    latest_in_log,
    next_events,
    nothing,
    rows,
    scene_of,
    staged,
)
from tests.servers.postgres import Postgres, careless_or_skip, skip_without_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import Event, Position
    from evenflow.ports import Reader
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.signals import Signal

pytestmark = pytest.mark.process


# --- crashes
@pytest.fixture
def careless() -> Postgres:
    """A server that keeps what is committed in memory for a while."""
    return careless_or_skip()


def test_what_a_crash_can_undo_is_not_read_yet(careless: Postgres) -> None:
    """Otherwise its number is given once more, to a change that everybody takes for one that was read."""

    async def main() -> None:
        async with scene_of(careless) as scene:
            await scene.make()
            await scene.watch()
            reader, hand = await scene.reader(), await scene.hand()
            await hand.execute("CHECKPOINT")
            await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
            (event,) = await next_events(reader, 1)
            careless.restart()
            assert await scene.log() == [("i", "1")], "it was read, and is gone"
            hand = await scene.hand()
            await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
            reader = await scene.source().open("0", event.position, epoch=1)
            assert keys(await next_events(reader, 1)) == ["2"]

    asyncio.run(main())


def test_numbers_that_were_given_back_are_passed_only_when_a_crash_cannot_bring_them_again(careless: Postgres) -> None:
    async def main() -> None:
        async with scene_of(careless) as scene:
            await scene.make()
            await scene.watch()
            hand = await scene.hand(autocommit=False)
            await hand.execute("CHECKPOINT")
            await hand.commit()
            reader = await scene.reader()
            await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
            await hand.rollback()
            passed = await nothing(reader, 0.02)
            assert passed.sequence == 1
            careless.restart()
            hand = await scene.hand()
            await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
            reader = await scene.source().open("0", passed, epoch=1)
            assert keys(await next_events(reader, 1)) == ["2"]

    asyncio.run(main())


def test_after_a_failover_what_was_lost_is_reported_and_new_changes_go_on_above_it() -> None:
    """Also when the server was restored from a backup: numbers that were read are not given to other changes. And the
    first transaction that writes afterwards blocks no other."""
    skip_without_postgres()
    server = Postgres()
    try:
        asyncio.run(_fail_over(server))
    finally:
        server.remove()


async def _fail_over(server: Postgres) -> None:
    async with scene_of(server) as scene:
        await scene.make()
        await scene.watch(2)
        hand = await scene.hand()
        await hand.execute(f"INSERT INTO {scene.table} SELECT g, 1 FROM generate_series(201, 210) g".encode())
        kept = [(await next_events(await scene.reader(partition=place), 1))[-1].position for place in "01"]
        before = await scene.source().identity()
        server.stop(at_once=False)
        backup = server.copy()
        server.start()
        hand = await scene.hand()
        await hand.execute(f"INSERT INTO {scene.table} SELECT g, 1 FROM generate_series(1, 100) g".encode())
        lost = [await _newest(scene, place) for place in "01"]
        server.stop()
        server.take_over(backup)
        await _write_beside_an_open_transaction(scene)
        source = scene.source()
        assert await source.identity() == before
        found: list[str | None] = []
        for place, position in zip("01", lost, strict=True):
            with pytest.raises(PositionOutOfRange, match="the server that took over"):
                await source.open(place, position, epoch=1)
            reader = await source.open(place, kept[int(place)], epoch=1)
            events = [event for event in await _rest(reader) if int(event.key or 0) < 200]
            assert all((event.sequence or 0) > (position.sequence or 0) for event in events)
            found += keys(events)
        assert sorted(key for key in found if key) == sorted(str(key) for key in range(2, 12))


async def _write_beside_an_open_transaction(scene: TableScene) -> None:
    slow, quick = await scene.hand(autocommit=False), await scene.hand()
    await slow.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    async with asyncio.timeout(PATIENCE_S):  # where it is blocked it is for good
        for key in range(2, 12):
            await quick.execute(f"INSERT INTO {scene.table} VALUES ({key}, 1)")
    await slow.rollback()


async def _newest(scene: TableScene, partition: str) -> Position:
    return (await _rest(await scene.reader(partition=partition)))[-1].position


async def _rest(reader: Reader) -> list[Event]:
    """All that is committed."""
    found: list[Event] = []
    while (batch := await reader.read(1000, MUCH, 0.0)).events:
        found += batch.events
    return found


# --- triggers inside triggers
async def _table(scene: TableScene) -> dict[str, Any]:
    cursor = await (await scene.hand()).execute(f"SELECT id::text, to_json(t) FROM {scene.table} t".encode())
    return dict(await cursor.fetchall())


NESTED = (
    ("next", "UPDATE", "UPDATE {} SET version = version + 100 WHERE id = NEW.id + 1"),
    ("gone", "UPDATE", "DELETE FROM {} WHERE id = NEW.id + 2 AND version > 300"),
    ("back", "DELETE", "INSERT INTO {} VALUES (OLD.id + 1, 7) ON CONFLICT DO NOTHING"),
)


@pytest.mark.parametrize("all_versions", [False, True], ids=["latest", "all"])
def test_a_trigger_that_changes_other_rows_of_the_same_statement(all_versions: bool) -> None:
    """The server tells of the inner change first: it was made later."""

    async def main() -> None:
        async with scene_of() as scene:
            await scene.make()
            await scene.watch(all_versions=all_versions)
            hand = await scene.hand()
            for name, event, body in NESTED:
                await add_trigger(hand, scene, name, event, body)
            await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 5) g".encode())
            for statement in (
                "UPDATE {} SET version = version + 1",
                "UPDATE {} SET version = version + 300 WHERE id <= 3",
                "UPDATE {} SET version = version + 1",
                "DELETE FROM {} WHERE id IN (1, 2)",
            ):
                await hand.execute(statement.format(scene.table).encode())
                assert await latest_in_log(scene) == await _table(scene), statement

    asyncio.run(main())


@staged
async def test_a_key_that_cascades_into_its_own_table(scene: TableScene) -> None:
    await scene.make(f"id integer PRIMARY KEY, parent integer REFERENCES {scene.table} ON UPDATE CASCADE")
    await scene.watch(3)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, NULL), (2, 1), (3, 2)")
    await hand.execute(f"UPDATE {scene.table} SET id = id + 100")
    assert await latest_in_log(scene) == await _table(scene)


@staged
async def test_what_was_before_a_change_inside_a_trigger_is_what_the_feed_told_last(scene: TableScene) -> None:
    """Who adds up differences has what is in the table, though the server tells of versions that the feed left out."""
    await scene.make()
    await scene.watch(all_versions=True)
    hand = await scene.hand()
    for event, body in (
        ("UPDATE", "UPDATE {} SET version = version + 100 WHERE id = NEW.id + 1"),
        ("INSERT", "UPDATE {} SET version = version + 100 WHERE id = NEW.id + 1"),
        ("DELETE", "INSERT INTO {} VALUES (OLD.id + 1, 7) ON CONFLICT DO NOTHING"),
    ):
        await add_trigger(hand, scene, event, event, body)
    for statement in (
        "INSERT INTO {} VALUES (1, 0)",
        "INSERT INTO {} VALUES (2, 0)",
        "UPDATE {} SET version = version + 1",
        "INSERT INTO {} VALUES (3, 0), (4, 0), (5, 0)",
        "DELETE FROM {} WHERE id IN (1, 2, 3)",
        "TRUNCATE {}",
        "INSERT INTO {} VALUES (4, 0), (5, 0)",
    ):
        await hand.execute(statement.format(scene.table).encode())
    sums: dict[str, int] = {}
    for op, key, after, before in await scene.log("op, key, after, before"):
        if op == "t":
            sums.clear()
        else:
            sums[key] = sums.get(key, 0) + (after or {"version": 0})["version"] - (before or {"version": 0})["version"]
    assert {key: total for key, total in sums.items() if total} == {
        key: row["version"] for key, row in (await _table(scene)).items() if row["version"]
    }


# --- partitioned tables
@staged
async def test_a_partition_whose_trigger_is_disabled_is_an_error(scene: TableScene) -> None:
    await scene.make(more="PARTITION BY RANGE (id)")
    hand = await scene.hand()
    await hand.execute(f"CREATE TABLE {scene.table}_a PARTITION OF {scene.table} FOR VALUES FROM (0) TO (10)")
    await scene.watch()
    reader = await scene.reader()
    await nothing(reader, 0.05)
    await hand.execute(f"ALTER TABLE {scene.table}_a DISABLE TRIGGER ALL")
    with pytest.raises(Misconfigured, match="its trigger was dropped or disabled"):
        await reader.read(10, 100, PATIENCE_S)


def test_a_table_and_its_partition_are_not_both_watched() -> None:
    """Whichever of the two was first."""

    async def main() -> None:
        for names in ("", "_a"), ("_a", ""):
            async with scene_of() as scene:
                await scene.make(more="PARTITION BY RANGE (id)")
                table, hand = scene.table, await scene.hand()
                await hand.execute(f"CREATE TABLE {table}_a PARTITION OF {table} FOR VALUES FROM (0) TO (10)")
                first, second = (f"{table}{name}" for name in names)
                scene.rename(first)
                await scene.watch()
                scene.rename(second)
                with pytest.raises(Misconfigured, match="are a table and its partition"):
                    await scene.watch()

    asyncio.run(main())


# --- owners who change their mind
@staged
async def test_a_renamed_table_goes_on_under_its_old_name_and_has_one_feed(scene: TableScene) -> None:
    await scene.make()
    scene.rename(f"public.{scene.table}")
    await scene.watch()
    reader, hand = await scene.reader(), await scene.hand()
    await hand.execute(f"ALTER TABLE {scene.table} RENAME TO {scene.schema}_new")
    await hand.execute(f"INSERT INTO {scene.schema}_new VALUES (1, 1)")
    assert keys(await next_events(reader, 1)) == ["1"]
    old = scene.table
    scene.rename(f"public.{scene.schema}_new")
    with pytest.raises(Misconfigured, match=f"is watched already under its earlier name {old}"):
        await scene.watch()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
    assert keys(await next_events(reader, 1)) == ["2"]


@staged
async def test_a_trigger_that_was_dropped_is_not_just_put_back(scene: TableScene) -> None:
    """What was changed meanwhile would be missing, and nobody would know."""
    await scene.make()
    await scene.watch()
    hand = await scene.hand()
    await hand.execute(f'DROP TRIGGER "00_{scene.schema}" ON {scene.table}')
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    with pytest.raises(Misconfigured, match=r"its trigger was dropped or disabled.*unwatch"):
        await scene.watch()
    await owner.unwatch(scene.link)
    await scene.watch()
    assert keys(await next_events(await scene.reader(), 1)) == ["1"]


@staged
async def test_another_primary_key_is_an_error_and_a_renamed_column_is_none(scene: TableScene) -> None:
    await scene.make("id integer, other integer, CONSTRAINT k PRIMARY KEY (id)")
    await scene.watch()
    reader, hand = await scene.reader(), await scene.hand()
    await hand.execute(f"ALTER TABLE {scene.table} RENAME COLUMN id TO name")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await scene.watch()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    assert rows(await next_events(reader, 1)) == [{"name": 1, "other": 1}]
    await hand.execute(f"ALTER TABLE {scene.table} DROP CONSTRAINT k, ADD CONSTRAINT k PRIMARY KEY (other)")
    with pytest.raises(Misconfigured, match="its primary key is not the one"):
        await reader.read(10, 100, PATIENCE_S)
    with pytest.raises(Misconfigured, match="its primary key is not the one"):
        await scene.watch()


@staged
async def test_the_log_of_a_table_that_was_dropped_can_be_removed_by_its_short_name(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    hand = await scene.hand()
    await hand.execute(f"DROP TABLE {scene.table}")
    with pytest.raises(Misconfigured, match="the table was dropped"):
        await scene.source().identity()
    await owner.unwatch(scene.link)
    await scene.make()
    await scene.watch()


# --- retention
@staged
async def test_what_an_open_transaction_holds_back_is_not_pruned(scene: TableScene) -> None:
    """Readers who are as far as they can be are not told that they come too late."""
    await scene.make()
    await scene.watch(all_versions=True)
    slow, quick = await scene.hand(autocommit=False), await scene.hand()
    await quick.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    reader = await scene.reader("all")
    assert keys(await next_events(reader, 1)) == ["1"]
    await slow.execute(f"INSERT INTO {scene.table} VALUES (2, 1)")
    await quick.execute(f"INSERT INTO {scene.table} VALUES (3, 1)")
    assert await owner.prune(scene.link, 0.0) == 1
    late = await scene.reader("all", "latest")
    await slow.commit()
    assert keys(await next_events(reader, 2)) == ["2", "3"]
    assert keys(await next_events(late, 2)) == ["2", "3"]


# --- rights
@staged
async def test_rights_that_are_taken_away_for_a_while_are_waited_for(scene: TableScene) -> None:
    await scene.make()
    role, hand = scene.server.fresh("reader"), await scene.hand()
    await hand.execute(f"CREATE ROLE {role} LOGIN")
    await scene.watch(reader=role)
    source = scene.source(user=role)
    reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
    await nothing(reader, 0.05)
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await hand.execute(f"REVOKE ALL ON SCHEMA {scene.schema} FROM {role}")
    with pytest.raises(SourceUnavailable, match=r"--reader ROLE.*The source has served this process before"):
        await reader.read(10, 100, PATIENCE_S)
    await hand.execute(f"GRANT USAGE ON SCHEMA {scene.schema} TO {role}")
    assert keys(await next_events(reader, 1)) == ["1"]


@staged
async def test_a_role_that_may_only_read_reads_sees_what_holds_it_back_and_cannot_write(scene: TableScene) -> None:
    await scene.make()
    role, hand, slow = scene.server.fresh("reader"), await scene.hand(), await scene.hand(autocommit=False)
    await hand.execute(f"CREATE ROLE {role} LOGIN")
    await scene.watch(reader=role, keep_s=100.0)
    link = owner.opened(scene.url(user=role))
    with pytest.raises(Misconfigured):
        await owner.fill(link, again=True)
    with pytest.raises(Misconfigured):
        await link.rows("SELECT @schema@.fill_@feed@(NULL, 10)", feed=(await link.feed()).id)
    link.close()
    await hand.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    source = scene.source(user=role)
    reader = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
    for number in range(3):
        await hand.execute(f"INSERT INTO {scene.table} VALUES ({number}, 1)")
        assert keys(await next_events(reader, 1)) == [str(number)]
        await nothing(reader, 0.5)
    await slow.execute(f"INSERT INTO {scene.table} VALUES (3, 1)")
    link = owner.opened(scene.url(user=role))
    assert len((await owner.feed_status(link)).writers) == 1
    link.close()


# --- through a processor
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 2.0, "margin_s": 0.5, "refresh_s": 0.3}


class Run:
    """A processor on a scene's table."""

    def __init__(self, scene: TableScene, store: MemoryStore, mode: str = "latest", **options: Any) -> None:
        self.keys: list[str | None] = []
        self.signals: list[Signal] = []
        self.processor = Processor(scene.url(mode), store, "group", start="earliest", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.signals.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.keys += [event.key for event in events]

    def told(self, text: str) -> bool:
        return any(text in str(one) for one in self.signals)


@staged
async def test_a_group_that_comes_too_late_is_halted_or_goes_on_as_it_was_told_to(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(all_versions=True)
    hand, store = await scene.hand(), MemoryStore()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 5) g".encode())
    await Run(scene, store, "all").processor.serve(until="caught_up")
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(6, 9) g".encode())
    await owner.prune(scene.link, 0.0)
    await hand.execute(f"INSERT INTO {scene.table} VALUES (10, 0)")
    with pytest.raises(PartitionHalted, match="the log was pruned up to 9"):
        await Run(scene, store, "all").processor.serve(until="caught_up")
    late = Run(scene, store, "all", on_gone="earliest")
    await late.processor.serve(until="caught_up")
    assert late.keys == ["10"]


@staged
async def test_a_trigger_dropped_under_a_processor_is_told_and_a_new_log_ends_it(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    hand, store = await scene.hand(), MemoryStore()
    run = Run(scene, store)
    serving = asyncio.create_task(run.processor.serve())
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 0)")
    await _until(lambda: run.keys == ["1"])
    await hand.execute(f'DROP TRIGGER "00_{scene.schema}" ON {scene.table}')
    await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 0)")
    await _until(lambda: run.told("its trigger was dropped or disabled"))
    await owner.unwatch(scene.link)
    await scene.watch()
    with pytest.raises(HubReplaced):
        await serving
    assert run.keys == ["1"]
    fresh = Run(scene, MemoryStore())
    await fresh.processor.serve(until="caught_up")
    assert fresh.keys == ["1", "2"]


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what it waits for comes from many sides
        await asyncio.sleep(0.02)
