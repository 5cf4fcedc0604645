"""What the owner of a watched table does: copy its rows, prune its log, grant rights; and the commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from evenflow.cli.app import assembled
from evenflow.errors import Misconfigured, PositionGone, SourceUnavailable
from evenflow.sources.postgresql import admin as owner
from evenflow.sources.postgresql.admin import WatchOptions
from evenflow.sources.postgresql.client import TableNotWatched
from evenflow.sources.postgresql.trigger import MADE_BY
from tests.integration.table_scene import (
    PATIENCE_S,
    TableScene,
    keys,
    next_events,
    nothing,
    rows,
    scene_of,
    staged,
)

if TYPE_CHECKING:
    from evenflow.ports import Reader

pytestmark = pytest.mark.process


@staged
async def test_existing_rows_are_copied_while_they_are_changed(scene: TableScene) -> None:
    """Whoever reads from the beginning ends with what the table has."""
    await scene.make("id integer, part text, version integer, PRIMARY KEY (part, id)")
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 'p' || g % 3, 0 FROM generate_series(1, 5000) g".encode())

    async def change() -> None:
        busy = await scene.hand()
        for number in range(1, 200, 4):
            await busy.execute(f"UPDATE {scene.table} SET version = version + 1 WHERE id % 200 = {number}".encode())
            await busy.execute(f"DELETE FROM {scene.table} WHERE id = {number * 7}")

    await asyncio.gather(scene.watch(2), change())
    cursor = await hand.execute(f"SELECT id, version FROM {scene.table}".encode())
    wanted = dict(await cursor.fetchall())
    latest: dict[int, int | None] = {}
    for key, after in await scene.log("key, after"):
        number = msgspec.json.decode(key)[1]
        latest[number] = after["version"] if after else None
    assert {key: version for key, version in latest.items() if version is not None} == wanted
    assert (await scene.link.feed()).is_filled


@staged
async def test_a_copy_goes_on_where_it_was_interrupted_and_can_be_asked_for_again(scene: TableScene) -> None:
    await scene.make()
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 2500) g".encode())

    def stop(copied: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await owner.watch(scene.link, WatchOptions(partitions=1), stop)
    assert not (await scene.link.feed()).is_filled
    await scene.watch()
    assert len(await scene.log()) == 2500
    await owner.fill(scene.link, again=True)
    assert len(await scene.log()) == 5000


@staged
async def test_several_may_watch_it_at_once_and_again(scene: TableScene) -> None:
    await scene.make()
    links = [owner.opened(scene.url()) for _ in range(4)]
    feeds = await asyncio.gather(*(owner.watch(link, WatchOptions(partitions=2)) for link in links))
    assert len({feed.id for feed in feeds}) == 1
    await owner.watch(scene.link, WatchOptions(keep_s=5.0))
    assert (await scene.link.feed()).keep_s == 5.0
    for terms in (WatchOptions(partitions=3), WatchOptions(all_versions=True)):
        with pytest.raises(Misconfigured, match="is watched already, with 2 partitions and latest versions"):
            await owner.watch(scene.link, terms)
    await owner.unwatch(scene.link)
    for link in links:
        link.close()
    left = scene.server.sql(
        f"SELECT proname FROM pg_proc JOIN pg_trigger ON tgfoid = pg_proc.oid AND tgrelid = '{scene.table}'::regclass"
        f" UNION SELECT relname FROM pg_class WHERE relnamespace = '{scene.schema}'::regnamespace"
        " AND relname !~ '^(feeds|written)'"
    )
    assert left == []


@staged
async def test_of_latest_versions_the_latest_of_each_row_is_never_pruned(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(2)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 20) g".encode())
    reader = await scene.reader()
    await hand.execute(f"UPDATE {scene.table} SET version = 1 WHERE id <= 10")
    await hand.execute(f"DELETE FROM {scene.table} WHERE id <= 5")
    assert await owner.prune(scene.link, 3600.0) == 0
    assert await owner.prune(scene.link, 0.0) == 20
    found = [row for place in "01" for row in await _all(scene, place)]
    assert sorted((row["id"], row["version"]) for row in found) == [(n, 1 if n <= 10 else 0) for n in range(6, 21)]
    await reader.read(100, 1 << 20, 1.0)  # from before all that: it has lost nothing that there is


@staged
async def test_what_was_deleted_stays_so_however_little_is_pruned_at_once(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 4) g".encode())
    await hand.execute(f"TRUNCATE {scene.table}")
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 1 FROM generate_series(3, 8) g".encode())
    await hand.execute(f"DELETE FROM {scene.table} WHERE id IN (4, 5)")
    await hand.execute(f"UPDATE {scene.table} SET version = 2 WHERE id = 6")
    feed = await scene.link.feed()
    removed = 1
    while removed:
        latest: dict[str, Any] = {}
        for op, key, after in await scene.log("op, key, after"):
            latest = {} if op == "t" else {**latest, key: after}
        kept = {key: after["version"] for key, after in latest.items() if after}
        assert kept == {"3": 1, "6": 2, "7": 1, "8": 1}
        cursor = await hand.execute(f"SELECT {scene.schema}.prune({feed.id}, 0, 1)".encode())
        ((removed,),) = await cursor.fetchall()
    assert len(await scene.log()) == 4


@staged
async def test_what_is_gone_is_told_also_where_a_gap_follows_it(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(all_versions=True)
    hand = await scene.hand(autocommit=False)
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 900) g".encode())
    await hand.commit()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(901, 5000) g".encode())
    await hand.rollback()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (9000, 0)")
    await hand.commit()
    behind = await scene.reader("all")
    assert len((await behind.read(5, 1 << 20, PATIENCE_S)).events) == 5
    feed = await scene.link.feed()
    await hand.execute(f"SELECT {scene.schema}.forget({feed.id}, ARRAY[900])".encode())
    await hand.commit()
    with pytest.raises(PositionGone, match="the log was pruned up to 900"):
        await _to_the_end(behind)


async def _to_the_end(reader: Reader) -> None:
    while True:
        await reader.read(5, 1 << 20, PATIENCE_S)


async def _all(scene: TableScene, partition: str) -> list[Any]:
    batch = await (await scene.reader(partition=partition)).read(100, 1 << 20, 0.5)
    return rows(list(batch.events))


def test_of_all_versions_what_is_old_is_gone_and_reported() -> None:
    """Behind by less than a page, and by many pages."""

    async def main() -> None:
        for changes in (20, 5000):
            async with scene_of() as scene:
                await _fall_behind(scene, changes)

    asyncio.run(main())


async def _fall_behind(scene: TableScene, changes: int) -> None:
    await scene.make()
    await scene.watch(all_versions=True)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, {changes}) g".encode())
    source = scene.source("all")
    start = await source.resolve("0", "earliest")
    behind = await source.open("0", start, epoch=1)
    assert len((await behind.read(5, 1 << 20, PATIENCE_S)).events) == 5
    assert await owner.prune(scene.link, 0.0) == changes
    await hand.execute(f"INSERT INTO {scene.table} VALUES (0, 0)")
    with pytest.raises(PositionGone, match=f"the log was pruned up to {changes}"):
        await _to_the_end(behind)
    with pytest.raises(PositionGone):
        await source.open("0", start, epoch=1)
    again = await source.open("0", await source.resolve("0", "earliest"), epoch=1)
    assert keys(await next_events(again, 1)) == ["0"]


@staged
async def test_readers_keep_to_the_retention(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(all_versions=True, keep_s=0.001)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await hand.execute(f"UPDATE {scene.schema}.feeds SET pruned_at = now() - interval '1 day'")
    reader = await scene.reader("all", "latest")
    await nothing(reader, 0.1)
    assert await scene.log() == []


@staged
async def test_a_role_with_its_grants_reads_and_one_without_is_told(scene: TableScene) -> None:
    await scene.make()
    role, hand = scene.server.fresh("reader"), await scene.hand()
    await hand.execute(f"CREATE ROLE {role} LOGIN")
    await scene.watch(keep_s=1000.0)
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    link = owner.opened(scene.url(user=role))
    with pytest.raises(Misconfigured, match=r"may not do this.*permission denied for schema \w+\. Ask"):
        await link.feed()
    await scene.watch(reader=role)
    feed = await link.feed()
    assert (await link.horizon(feed)).newest == [1]
    with pytest.raises(Misconfigured, match="lacks a right"):
        await owner.watch(link, WatchOptions())
    with pytest.raises(Misconfigured):
        await owner.prune(link, 0.0)
    link.close()


# --- what goes wrong
UNFIT = [
    ("CREATE TABLE {} (id integer)", "has no primary key"),
    ("CREATE TABLE {} (id integer PRIMARY KEY DEFERRABLE)", "is deferrable"),
    ("CREATE UNLOGGED TABLE {} (id integer PRIMARY KEY)", "temporary or unlogged"),
    ("CREATE VIEW {} AS SELECT 1 AS id", "is a view or a foreign table"),
    ("SELECT 1", "does not exist. Correct the name"),
]


def test_a_table_that_cannot_be_watched_is_reported_with_the_reason() -> None:
    async def main() -> None:
        for statement, reason in UNFIT:
            async with scene_of() as scene:
                await (await scene.hand()).execute(statement.format(scene.table).encode())
                with pytest.raises(Misconfigured, match=reason):
                    await scene.watch()
                with pytest.raises(TableNotWatched, match="evenflow table watch"):
                    await scene.source().identity()

    asyncio.run(main())


def test_a_table_that_is_written_to_for_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LOCK_S", 1)

    async def main() -> None:
        async with scene_of() as scene:
            await scene.make()
            busy = await scene.hand(autocommit=False)
            await busy.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
            with pytest.raises(SourceUnavailable, match="Try again when long transactions have ended"):
                await scene.watch()

    asyncio.run(main())


DAMAGES = [
    ('DROP TRIGGER "00_{schema}" ON {table}', "its trigger was dropped or disabled"),
    ("ALTER TABLE {table} DISABLE TRIGGER ALL", "its trigger was dropped or disabled"),
    ("DROP TABLE {table}", "the table was dropped"),
    ("DROP TABLE {table}; CREATE TABLE {table} (id integer PRIMARY KEY)", "it was recreated, or restored from a dump"),
]


def test_a_table_whose_changes_are_no_longer_logged_is_an_error() -> None:
    async def main() -> None:
        for damage, reason in DAMAGES:
            async with scene_of() as scene:
                await _damage(scene, damage, reason)

    asyncio.run(main())


async def _damage(scene: TableScene, damage: str, reason: str) -> None:
    await scene.make()
    scene.rename(f"public.{scene.table}")
    await scene.watch()
    reader, hand = await scene.reader(), await scene.hand()
    await nothing(reader, 0.05)
    await hand.execute(damage.format(table=scene.table, schema=scene.schema).encode())
    with pytest.raises(Misconfigured, match=reason):
        await reader.read(10, 100, PATIENCE_S)
    with pytest.raises(Misconfigured, match=reason):
        await scene.source().identity()


@staged
async def test_one_that_is_watched_anew_is_another(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    source = scene.source()
    before = await source.identity()
    start = await source.resolve("0", "latest")
    reader = await source.open("0", start, epoch=1)
    await owner.unwatch(scene.link)
    with pytest.raises(TableNotWatched, match=r"evenflow table watch .postgresql-table://OWNER@\S+\?table=\S+."):
        await reader.read(10, 100, PATIENCE_S)
    await scene.watch()
    await source.open("0", start, epoch=1)
    assert (await source.identity()).made != before.made


@staged
async def test_mode_all_needs_a_log_with_all_versions(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    source = scene.source("all")
    with pytest.raises(Misconfigured, match="watched for its latest versions only"):
        await source.open("0", await source.resolve("0", "earliest"), epoch=1)
    with pytest.raises(Misconfigured, match="its partitions are 0 to 0"):
        await source.resolve("1", "earliest")


# --- the commands
def test_the_commands() -> None:
    scene = TableScene()

    def said(*arguments: str) -> str:
        run = CliRunner().invoke(assembled(["table"]), ["table", arguments[0], scene.url(), *arguments[1:]])
        assert run.exit_code == 0, run.output
        return run.output

    with psycopg.connect(scene.server.url()) as hand:
        hand.execute(f"CREATE TABLE {scene.table} (id integer PRIMARY KEY)".encode())
        hand.execute(f"INSERT INTO {scene.table} VALUES (1)".encode())
        hand.commit()
        assert "watching public." in said("watch", "--partitions", "2", "--all-versions", "--retention", "7d")
        hand.execute(f"INSERT INTO {scene.table} VALUES (2)".encode())
        shown = said("show")
        assert "all versions; keeps 7" in shown
        assert "blocks readers" in shown
        hand.commit()
        assert "older version" not in shown
        noter = f"{scene.schema}.note_1"
        ((text,),) = hand.execute(f"SELECT pg_get_functiondef('{noter}'::regproc)".encode()).fetchall()
        hand.execute(text.replace(MADE_BY, "-- version 1\n").encode())
        hand.commit()
    assert "the trigger is of an older version of evenflow" in said("show")
    said("watch")
    facts = msgspec.json.decode(said("show", "--json"))
    assert sum(one["changes"] for one in facts["partitions"]) == 2
    assert not facts["is_old"]
    assert "copied all rows" in said("fill", "--yes")
    assert "removed 4 changes" in said("prune", "--older-than", "0s")
    assert "no longer watched" in said("unwatch", "--yes")
