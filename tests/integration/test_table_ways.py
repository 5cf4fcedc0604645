"""Whatever changes a watched table is in its log; what a table's owner does; and what goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from evenflow.embedded.container import Container
from evenflow.embedded.container.change_json import all_versions
from evenflow.embedded.container.documents import SYSTEM_PROPERTIES
from evenflow.sources.postgresql.reader import TableReader
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

    import psycopg

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
        wanted = [msgspec.json.decode(all_versions(change, ("/id",))) for change in page.changes]
    for change in wanted:
        for image in (change["current"], change.get("previous", {})):
            for name in SYSTEM_PROPERTIES:
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
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, {note} FROM generate_series(1, 16000) g".encode())
    source, found = scene.source(), 0
    for place in "0123":
        reader = await source.open(place, await source.resolve(place, "earliest"), epoch=1)
        while events := (await reader.read(1000, 1 << 20, 0.0)).events:
            found += len(events)
    assert found == 16000
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
