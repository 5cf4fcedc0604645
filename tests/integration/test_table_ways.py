"""Whatever changes a watched table is in its log; what a table's owner does; and what goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from typer.testing import CliRunner

from evenflow.cli.app import assembled
from evenflow.container import Container
from evenflow.container.documents import SYSTEM
from evenflow.container.envelopes import every
from evenflow.errors import Misconfigured, PositionGone, SourceUnavailable
from evenflow.sources import postgresql_watch as owner
from evenflow.sources.postgresql_link import Unwatched
from evenflow.sources.postgresql_reader import TableReader
from evenflow.sources.postgresql_trigger import MADE_BY
from evenflow.sources.postgresql_watch import Terms
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
    from pathlib import Path

    from evenflow.model import Event
    from evenflow.ports import Reader

pytestmark = pytest.mark.process


def kinds(events: list[Event]) -> list[tuple[str, str | None]]:
    return [(msgspec.json.decode(event.body)["metadata"]["operationType"], event.key) for event in events]


# --- what changes a table
def test_all_versions_are_told_as_the_embedded_container_tells_them(tmp_path: Path) -> None:
    """As official clients get them from it."""
    with Container.create(tmp_path / "orders", "/id") as container:
        for id in ("a", "b"):
            container.insert({"id": id, "n": 1})
            container.replace({"id": id, "n": 2})
        container.delete("a", "a")
        container.insert({"id": "a", "n": 3})
        page = container.feed("0", mode="all", max_items=100)
        wanted = [msgspec.json.decode(every(change, ("/id",))) for change in page.changes]
    for change in wanted:
        for image in (change["current"], change.get("previous", {})):
            for name in SYSTEM:
                image.pop(name, None)

    async def main() -> None:
        async with scene_of() as scene:
            await scene.make("id text PRIMARY KEY, n integer")
            await scene.watch(all_versions=True)
            hand = await scene.hand()
            for id in ("a", "b"):
                await hand.execute(f"INSERT INTO {scene.table} VALUES ('{id}', 1)".encode())
                await hand.execute(f"UPDATE {scene.table} SET n = 2 WHERE id = '{id}'".encode())
            await hand.execute(f"DELETE FROM {scene.table} WHERE id = 'a'")
            await hand.execute(f"INSERT INTO {scene.table} VALUES ('a', 3)")
            events = await next_events(await scene.reader("all"), len(wanted))
            found = rows(events)
            assert [row["metadata"]["lsn"] for row in found] == [event.sequence for event in events]
            for change in found + wanted:
                assert isinstance(change["metadata"].pop("crts"), int)
            assert found == wanted

    asyncio.run(main())


async def _all_of(reader: Reader) -> list[Any]:
    """What comes, ten at a time, and then a place at the end of all numbers."""
    found: list[Any] = []
    while (batch := await reader.read(10, 1 << 18, 0.0)).events:
        found += rows(list(batch.events))
    return found


async def _fill_and_change(scene: TableScene, note: str = "NULL") -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """600 rows, of which some get this note; then half of them are deleted, and the others replaced."""
    hand = await scene.hand()
    for statement in (
        f"INSERT INTO {scene.table} SELECT g, 0, CASE WHEN g > 595 THEN ({note}) END FROM generate_series(1, 600) g",
        f"DELETE FROM {scene.table} WHERE id <= 300",
        f"UPDATE {scene.table} SET version = 1",
        f"INSERT INTO {scene.table} VALUES (7, 7)",
    ):
        await hand.execute(statement.encode())
    return hand


LARGE = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 4000) n"


@pytest.mark.parametrize("all_versions", [False, True], ids=["latest", "all"])
def test_latest_versions_from_the_beginning_are_what_the_table_has(all_versions: bool) -> None:
    """Also where a row was replaced or removed many pages later, and where rows are large."""

    async def main() -> None:
        async with scene_of() as scene:
            await scene.make("id integer PRIMARY KEY, version integer, note text")
            await scene.watch(all_versions=all_versions)
            hand = await _fill_and_change(scene, "NULL" if all_versions else LARGE)
            given = [(row["id"], row["version"]) for row in await _all_of(await scene.reader())]
            assert given == [(number, 1) for number in range(301, 601)] + [(7, 7)]
            await hand.execute(f"TRUNCATE {scene.table}".encode())
            await hand.execute(f"INSERT INTO {scene.table} VALUES (9, 9)".encode())
            assert [row["id"] for row in await _all_of(await scene.reader())] == [9]
            await hand.execute(f"DELETE FROM {scene.table}".encode())
            (newest,) = (await scene.log("max(sequence) OVER ()"))[0]
            assert (await nothing(await scene.reader(), 0.5)).sequence == newest, "lag is 0"

    asyncio.run(main())


@staged
async def test_a_feed_of_an_older_evenflow_gives_versions_as_they_came(scene: TableScene) -> None:
    """It has no index that tells which ones were replaced later."""
    await scene.make("id integer PRIMARY KEY, version integer, note text")
    await scene.watch()
    await (await scene.hand()).execute(f"DROP INDEX {scene.schema}.log_1_later".encode())
    await _fill_and_change(scene)
    found = await _all_of(await scene.reader())
    assert len(found) > 600
    assert {row["id"]: row["version"] for row in found if row["version"]} == dict.fromkeys(range(301, 601), 1) | {7: 7}


@staged
async def test_a_row_that_is_changed_all_the_time_is_given_all_the_same(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    source, hand = scene.source(), await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(1, 300) g".encode())
    await hand.execute(f"UPDATE {scene.table} SET version = 1 WHERE id = 1".encode())
    slow, quick = [
        await source.open("0", await source.resolve("0", start), epoch=1) for start in ("earliest", "latest")
    ]
    found: list[Any] = []
    while len(found) < 300:
        found += rows(list((await slow.read(10, 1 << 18, PATIENCE_S)).events))
        await hand.execute(f"UPDATE {scene.table} SET version = version + 1 WHERE id = 1".encode())
        await next_events(quick, 1)  # from now on it is known here, too, that there is a newer one
    assert found[-1] == {"id": 1, "version": 1}


@staged
async def test_another_key_is_another_row_and_truncate_is_reported_in_every_partition(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(16, all_versions=True)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await hand.execute(f"UPDATE {scene.table} SET id = 3")
    assert sorted(await scene.log()) == [("d", "1"), ("i", "1"), ("i", "3")]
    places = dict(await scene.log("key, partition"))
    assert places["1"] != places["3"], "this shows nothing where both are in one partition"
    await hand.execute(f"TRUNCATE {scene.table}")
    assert [place for place, op in await scene.log("partition, op") if op == "t"] == list(range(16))
    place = str(places["3"])
    assert kinds(await next_events(await scene.reader("all", partition=place), 2)) == [
        ("create", "3"),
        ("truncate", None),
    ]
    await nothing(await scene.reader(partition=place), 0.5)


@staged
async def test_a_composite_key_a_cascade_and_a_copy(scene: TableScene) -> None:
    parent, hand = scene.server.fresh("parents"), await scene.hand()
    await hand.execute(f"CREATE TABLE {parent} (id integer PRIMARY KEY)")
    await scene.make(f"parent integer REFERENCES {parent} ON DELETE CASCADE, name text, PRIMARY KEY (parent, name)")
    await scene.watch(all_versions=True)
    await hand.execute(f"INSERT INTO {parent} VALUES (7)")
    async with hand.cursor() as cursor, cursor.copy(f"COPY {scene.table} FROM STDIN") as copy:
        await copy.write_row((7, 'with "quotes"'))
    await hand.execute(f"DELETE FROM {parent}")
    events = await next_events(await scene.reader("all"), 2)
    key = '[7, "with \\"quotes\\""]'
    assert kinds(events) == [("create", key), ("delete", key)]


@staged
async def test_changes_of_partitions_are_logged_also_of_those_to_come_and_replicated_ones(scene: TableScene) -> None:
    await scene.make(more="PARTITION BY RANGE (id)")
    hand = await scene.hand()
    await hand.execute(f"CREATE TABLE {scene.table}_a PARTITION OF {scene.table} FOR VALUES FROM (0) TO (10)")
    await scene.watch(all_versions=True)
    await hand.execute(f"CREATE TABLE {scene.table}_b PARTITION OF {scene.table} FOR VALUES FROM (10) TO (20)")
    await hand.execute(f"CREATE TABLE {scene.table}_c (LIKE {scene.table} INCLUDING ALL)")
    await hand.execute(f"ALTER TABLE {scene.table} ATTACH PARTITION {scene.table}_c FOR VALUES FROM (20) TO (30)")
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await hand.execute(f"INSERT INTO {scene.table}_b VALUES (11, 1)")
    await hand.execute(f"UPDATE {scene.table} SET id = 12 WHERE id = 1")
    await hand.execute("SET session_replication_role = replica")
    await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 1), (13, 1), (21, 1)")
    events = await next_events(await scene.reader("all"), 7)
    assert kinds(events[:4]) == [("create", "1"), ("create", "11"), ("delete", "1"), ("create", "12")]
    assert kinds(events[4:]) == [("create", "2"), ("create", "13"), ("create", "21")]


@staged
async def test_replicated_changes_upserts_and_changes_by_other_triggers(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(all_versions=True)
    hand = await scene.hand()
    await hand.execute(
        f"CREATE FUNCTION {scene.schema}_again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE {scene.table}"
        " SET version = version + 100 WHERE id = NEW.id; RETURN NULL; END $$".encode()
    )
    await hand.execute(
        f"CREATE TRIGGER again AFTER INSERT ON {scene.table} FOR EACH ROW"
        f" EXECUTE FUNCTION {scene.schema}_again()".encode()
    )
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)")
    await hand.execute("SET session_replication_role = replica")
    upsert = "ON CONFLICT (id) DO UPDATE SET version = 2"
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1), (2, 1) {upsert}".encode())
    events = await next_events(await scene.reader("all"), 4)
    assert [(row["current"]["id"], row["current"]["version"]) for row in rows(events)] == [
        (1, 1),
        (1, 101),
        (1, 2),
        (2, 1),
    ]


@staged
async def test_a_key_has_one_partition_whatever_a_session_is_set_to(scene: TableScene) -> None:
    await scene.make("at timestamptz PRIMARY KEY, n integer")
    await scene.watch(64, all_versions=True)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} VALUES ('2026-01-01T00:00Z', 1)")
    await hand.execute("SET TimeZone = 'Asia/Tokyo'")
    await hand.execute("SET DateStyle = 'German'")
    await hand.execute(f"UPDATE {scene.table} SET n = 2")
    log = await scene.log("op, key, partition, after->>'at'")
    assert [row[0] for row in log] == ["i", "u"]
    assert len({row[1:] for row in log}) == 1


@staged
async def test_a_long_backlog_is_not_looked_through_again_for_each_page(scene: TableScene) -> None:
    """The server, which knows nothing of the log yet, takes all that it is asked about, and sorts it."""
    await scene.make("id integer PRIMARY KEY, note text")
    await scene.watch(4)
    hand, note = await scene.hand(), "repeat('x', 200)"
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, {note} FROM generate_series(1, 40000) g".encode())
    source, found = scene.source(), 0
    for place in "0123":
        reader = await source.open(place, await source.resolve(place, "earliest"), epoch=1)
        while events := (await reader.read(1000, 1 << 20, 0.0)).events:
            found += len(events)
    assert found == 40000
    await source.aclose()  # its connections tell what they did when they end
    read = 0
    while read < found:
        await asyncio.sleep(0.05)
        ((read,),) = scene.server.sql(
            f"SELECT sum(idx_tup_read)::bigint FROM pg_stat_all_indexes WHERE schemaname = '{scene.schema}'"
        )
    assert read < 2 * found


@staged
async def test_long_gaps_are_passed(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(all_versions=True)
    hand = await scene.hand(autocommit=False)
    for first in (1, 20001):
        await hand.execute(f"INSERT INTO {scene.table} SELECT g, 0 FROM generate_series(2, 20000) g".encode())
        await hand.rollback()
        await hand.execute(f"INSERT INTO {scene.table} VALUES ({first}, 0)".encode())
        await hand.commit()
    for mode in ("latest", "all"):
        assert keys(await next_events(await scene.reader(mode), 2)) == ["1", "20001"]


@staged
async def test_large_rows_are_fetched_a_few_at_a_time(scene: TableScene) -> None:
    await scene.make("id integer PRIMARY KEY, note text")
    await scene.watch()
    hand = await scene.hand()
    large = "SELECT string_agg(md5(n::text || g), '') FROM generate_series(1, 4000) n"
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 'x' FROM generate_series(1, 300) g".encode())
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, ({large}) FROM generate_series(301, 340) g".encode())
    reader = await scene.reader()
    assert isinstance(reader, TableReader)
    found: list[str | None] = []
    while len(found) < 340:
        batch = await reader.read(1000, 1 << 18, PATIENCE_S)
        assert sum(len(event.body) for event in reader._events) < 1 << 20
        found += keys(list(batch.events))
    assert found == [str(number) for number in range(1, 341)]


# --- what its owner does
@staged
async def test_existing_rows_are_copied_while_they_are_changed(scene: TableScene) -> None:
    """Whoever reads from the beginning ends with what the table has."""
    await scene.make("id integer, part text, version integer, PRIMARY KEY (part, id)")
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 'p' || g % 3, 0 FROM generate_series(1, 5000) g".encode())

    async def change() -> None:
        busy = await scene.hand()
        for number in range(1, 200):
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
        await owner.watch(scene.link, Terms(partitions=1), stop)
    assert not (await scene.link.feed()).is_filled
    await scene.watch()
    assert len(await scene.log()) == 2500
    await owner.fill(scene.link, again=True)
    assert len(await scene.log()) == 5000


@staged
async def test_several_may_watch_it_at_once_and_again(scene: TableScene) -> None:
    await scene.make()
    links = [owner.opened(scene.url()) for _ in range(4)]
    feeds = await asyncio.gather(*(owner.watch(link, Terms(partitions=2)) for link in links))
    assert len({feed.id for feed in feeds}) == 1
    await owner.watch(scene.link, Terms(keep_s=5.0))
    assert (await scene.link.feed()).keep_s == 5.0
    for terms in (Terms(partitions=3), Terms(all_versions=True)):
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
    with pytest.raises(Misconfigured, match=r"may not do this.*permission denied for schema \w+\. Let"):
        await link.feed()
    await scene.watch(reader=role)
    feed = await link.feed()
    assert (await link.look(feed)).newest == [1]
    with pytest.raises(Misconfigured, match="may not do that"):
        await owner.watch(link, Terms())
    with pytest.raises(Misconfigured):
        await owner.prune(link, 0.0)
    link.close()


# --- what goes wrong
UNFIT = [
    ("CREATE TABLE {} (id integer)", "has no primary key"),
    ("CREATE TABLE {} (id integer PRIMARY KEY DEFERRABLE)", "is deferrable"),
    ("CREATE UNLOGGED TABLE {} (id integer PRIMARY KEY)", "temporary or unlogged"),
    ("CREATE VIEW {} AS SELECT 1 AS id", "is no table"),
    ("SELECT 1", "There is no table"),
]


def test_a_table_that_cannot_be_watched_is_reported_with_the_reason() -> None:
    async def main() -> None:
        for statement, reason in UNFIT:
            async with scene_of() as scene:
                await (await scene.hand()).execute(statement.format(scene.table).encode())
                with pytest.raises(Misconfigured, match=reason):
                    await scene.watch()
                with pytest.raises(Unwatched, match="evenflow table watch"):
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
    ("DROP TABLE {table}; CREATE TABLE {table} (id integer PRIMARY KEY)", "it was made again, or came out of a dump"),
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
    with pytest.raises(Unwatched, match=r"evenflow table watch .postgresql-table://OWNER@\S+\?table=\S+."):
        await reader.read(10, 100, PATIENCE_S)
    await scene.watch()
    await source.open("0", start, epoch=1)
    assert (await source.identity()).made != before.made


@staged
async def test_mode_all_needs_a_log_with_all_versions(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    source = scene.source("all")
    with pytest.raises(Misconfigured, match="watched for its latest versions alone"):
        await source.open("0", await source.resolve("0", "earliest"), epoch=1)
    with pytest.raises(Misconfigured, match="it has 0 to 0"):
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
        assert "holds readers back" in shown
        hand.commit()
        assert "older evenflow" not in shown
        noter = f"{scene.schema}.note_1"
        ((text,),) = hand.execute(f"SELECT pg_get_functiondef('{noter}'::regproc)".encode()).fetchall()
        hand.execute(text.replace(MADE_BY, "-- version 1\n").encode())
        hand.commit()
    assert "an older evenflow made its trigger" in said("show")
    said("watch")
    facts = msgspec.json.decode(said("show", "--json"))
    assert sum(one["changes"] for one in facts["partitions"]) == 2
    assert not facts["is_old"]
    assert "copied all rows" in said("fill", "--yes")
    assert "removed 4 changes" in said("prune", "--older-than", "0s")
    assert "no longer watched" in said("unwatch", "--yes")
