"""Tables whose columns, names and keys are of all kinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evenflow.errors import Misconfigured
from evenflow.sources.postgresql import admin as owner
from evenflow.sources.postgresql.admin import WatchOptions
from tests.integration.table_scene import (
    TableScene,
    add_trigger,
    latest_in_log,
    scene_of,
    staged,
)
from tests.servers.postgres import shared_or_skip

pytestmark = pytest.mark.process


ALIASES = [
    "mine",
    "log",
    "emptied",
    "place",
    "noted",
    "mark",
    "old_key",
    "new_key",
    "row_now",
    "was",
    "new",
    "old",
    "last",
    "every",
    "most",
    "key",
    "after",
    "op",
]


def test_columns_may_have_the_names_that_the_trigger_uses() -> None:
    async def main() -> None:
        for all_versions in (False, True):
            async with scene_of() as scene:
                await _use_the_names(scene, all_versions=all_versions)

    asyncio.run(main())


async def _use_the_names(scene: TableScene, *, all_versions: bool) -> None:
    columns = ", ".join(f'"{name}" integer' for name in ALIASES)
    await scene.make(f'{columns}, version integer, PRIMARY KEY ("mine", "new", "log", "place")')
    hand = await scene.hand()
    await add_trigger(hand, scene, "again", "INSERT OR UPDATE", "UPDATE {} SET version = version + 1")
    row = ", ".join("7" for _ in ALIASES)
    await hand.execute(f"INSERT INTO {scene.table} VALUES ({row}, 0)".encode())
    await scene.watch(all_versions=all_versions)
    await hand.execute(f'UPDATE {scene.table} SET "mine" = 8'.encode())
    await hand.execute(f"INSERT INTO {scene.table} VALUES ({row}, 0)".encode())
    cursor = await hand.execute(f'SELECT to_json(t.*) FROM {scene.table} t ORDER BY "mine"'.encode())
    latest = await latest_in_log(scene)
    assert [latest[key] for key in sorted(latest)] == [row for (row,) in await cursor.fetchall()]


@staged
async def test_a_name_cannot_end_the_text_of_a_function(scene: TableScene) -> None:
    hand = await scene.hand()
    table = f"{scene.table}$evenflow$evenflow0$; DROP TABLE x; $query$query0$"
    scene.table = f'"{table}"'
    await scene.make('"$evenflow1$" integer PRIMARY KEY, "@schema@\\" text')
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 'one')".encode())
    scene.link.table = scene.table
    await scene.watch()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 'two')".encode())
    assert await scene.log() == [("r", "1"), ("i", "2")]


# --- keys of all kinds
KEYS = {
    "character(6)": "lpad(g::text, 6, 'k')",
    "bit(8)": "g::bit(8)",
    "bytea": "decode(lpad(to_hex(g), 6, '0'), 'hex')",
    "interval": "make_interval(hours => g)",
    "double precision": "g / 3.0::double precision",
    "date": "'2026-01-01'::date + g",
    "numeric(9,2)": "g / 4.0",
    "varchar(9)": "'n' || g",
    "mood": "(enum_range(NULL::mood))[g]",
    "nonempty": "'n' || g",
    "citext": "(CASE g % 2 WHEN 0 THEN 'n' ELSE 'N' END) || lpad(g::text, 3, '0')",
}
SETTINGS = (
    "bytea_output = 'escape'",
    "IntervalStyle = 'iso_8601'",
    "extra_float_digits = 0",
    "DateStyle = 'German'",
    "TimeZone = 'Asia/Tokyo'",
)


def test_keys_of_all_kinds_are_copied_and_have_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "FILL_ROWS", 3)

    async def main() -> None:
        server = shared_or_skip()
        database = server.make_database()
        labels = ", ".join(f"'m{n % 5}{n}'" for n in range(10))
        for statement in (
            "CREATE SCHEMA more",
            "CREATE EXTENSION citext SCHEMA more",
            f"ALTER DATABASE {database} SET search_path = public, more",
            "CREATE DOMAIN nonempty AS text CHECK (value <> '')",
            f"CREATE TYPE mood AS ENUM ({labels})",
        ):
            server.sql(statement, database)
        for kind, value in KEYS.items():
            async with scene_of(server, database) as scene:
                log = await _changed_after_a_copy(scene, kind, value)
            assert sorted(op for *_, op in log) == ["r"] * 10 + ["u"] * 10, kind
            assert len({row[:2] for row in log}) == 10, kind

    asyncio.run(main())


async def _changed_after_a_copy(scene: TableScene, kind: str, value: str) -> list[tuple[Any, ...]]:
    """The log of ten rows that were copied, and then changed by a session with other settings."""
    hand = await scene.hand()
    await hand.execute(f"CREATE TABLE {scene.table} (id {kind}, n integer, PRIMARY KEY (n, id))".encode())
    await hand.execute(f"INSERT INTO {scene.table} SELECT {value}, g % 2 FROM generate_series(1, 10) g".encode())
    await scene.watch(64)
    for setting in SETTINGS:
        await hand.execute(f"SET {setting}".encode())
    await hand.execute(f"UPDATE {scene.table} SET n = n".encode())
    return await scene.log("key, partition, op")


@staged
async def test_rows_that_its_owner_may_not_see_are_not_left_out(scene: TableScene) -> None:
    role, hand = scene.server.fresh("owner"), await scene.hand()
    await scene.make()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1), (2, 1)")
    await hand.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA {scene.schema} AUTHORIZATION {role}")
    await hand.execute(f"GRANT CREATE ON DATABASE postgres TO {role}")
    await hand.execute(f"ALTER TABLE {scene.table} OWNER TO {role}")
    await hand.execute(f"ALTER TABLE {scene.table} FORCE ROW LEVEL SECURITY, ENABLE ROW LEVEL SECURITY")
    await hand.execute(f"CREATE POLICY one ON {scene.table} USING (id = 1)")
    link = owner.opened(scene.url(user=role))
    with pytest.raises(Misconfigured, match="Row-level security hides rows"):
        await owner.watch(link, WatchOptions())
    link.close()
