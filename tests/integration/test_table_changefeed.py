"""The change feed processor on a watched table: hosts share its ranges, and handlers get what Cosmos DB's would get."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from math import inf, nan
from typing import TYPE_CHECKING, Any, Literal

import pytest

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.stores.memory import MemoryStore
from tests.integration.table_scene import TableScene, staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.changefeed import ChangeContext

pytestmark = pytest.mark.process

TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 2.0, "margin_s": 0.5, "refresh_s": 0.3}


class Host:
    def __init__(self, scene: TableScene, store: MemoryStore, name: str) -> None:
        self.leases: set[str] = set()
        self.changes: list[Any] = []
        self.processor = ChangeFeedProcessor(
            scene.url("all"), store, "mails", instance_name=name, start="beginning", concurrency=2, **TIMES
        )
        self.processor.on_changes(self._handle)
        self.processor.on_lease_acquired(self._acquired)
        self.processor.on_lease_released(self._released)

    async def _handle(self, changes: list[Any], context: ChangeContext) -> None:
        assert context.lease_token in self.leases
        self.changes += changes

    async def _acquired(self, lease_token: str) -> None:
        self.leases.add(lease_token)

    async def _released(self, lease_token: str) -> None:
        self.leases.discard(lease_token)


async def _until(is_so: Callable[[], object]) -> None:
    while not is_so():  # noqa: ASYNC110 - what it waits for comes from many sides, and the scene has a deadline
        await asyncio.sleep(0.02)


@staged
async def test_hosts_share_the_ranges_of_a_table_and_are_told_all_versions_and_deletes(scene: TableScene) -> None:
    await scene.make()
    hand, store = await scene.hand(), MemoryStore()
    await hand.execute(f"INSERT INTO {scene.table} VALUES (0, 0)")
    await scene.watch(4, all_versions=True)
    one, two = (Host(scene, store, name) for name in ("one", "two"))
    async with one.processor, two.processor:
        await _until(lambda: len(one.leases) == len(two.leases) == 2)
        assert one.leases | two.leases == set("0123")
        for key in range(20):
            await hand.execute(f"INSERT INTO {scene.table} VALUES ({key}, 1) ON CONFLICT DO NOTHING".encode())
            await hand.execute(f"UPDATE {scene.table} SET version = 2 WHERE id = {key}".encode())
            await hand.execute(f"DELETE FROM {scene.table} WHERE id = {key}".encode())
        await _until(lambda: len(one.changes) + len(two.changes) >= 60)
        await _until_caught_up(one.processor)
    told: dict[int, list[str]] = {}
    for change in one.changes + two.changes:
        row = change["current"] or change["previous"]
        told.setdefault(row["id"], []).append(change["metadata"]["operationType"])
    assert told == {key: ["create", "replace", "delete"] for key in range(20)}
    assert one.changes
    assert two.changes


async def _until_caught_up(processor: ChangeFeedProcessor) -> None:
    while any(one.remaining != 0 for one in await processor.estimate()):  # noqa: ASYNC110 - it is asked for
        await asyncio.sleep(0.05)


KINDS: list[tuple[str, str, object]] = [
    ("smallint", "7", 7),
    ("bigint", "9223372036854775807", 9223372036854775807),
    ("numeric", "12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
    ("numeric(12, 2)", "1", Decimal("1.00")),
    ("numeric", "5", Decimal(5)),
    ("numeric", "'-Infinity'", Decimal("-Infinity")),
    ("{price}", "19.90", Decimal("19.90")),
    ("{price}[]", "'{1}'", [Decimal(1)]),
    ("{mood}", "'calm'", "calm"),
    ("{pair}", "ROW(1, 1.10)", {"a": 1, "b": Decimal("1.10")}),
    ("varchar(5)", "'a'", "a"),
    ("numeric(4, 1)[]", "'{1, NULL, 2.5}'", [Decimal("1.0"), None, Decimal("2.5")]),
    ("double precision", "5", 5.0),
    ("double precision", "0.1", 0.1),
    ("double precision", "'Infinity'", inf),
    ("double precision", "'NaN'", nan),
    ("double precision[]", "'{1, -Infinity}'", [1.0, -inf]),
    ("real", "0.1", 0.1),
    ("money", "12.5", "$12.50"),
    ("boolean", "true", True),
    ("text", "'é'", "é"),
    ("char(3)", "'a'", "a  "),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("bytea", r"'\x00ff'", r"\x00ff"),
    ("timestamptz", "'2026-11-16 10:00:00.5+02'", "2026-11-16T08:00:00.5+00:00"),
    ("timestamp", "'2026-11-16 10:00'", "2026-11-16T10:00:00"),
    ("timestamptz", "'infinity'", "infinity"),
    ("date", "'2026-11-16'", "2026-11-16"),
    ("time", "'10:00'", "10:00:00"),
    ("interval", "'1 day 2 hours'", "1 day 02:00:00"),
    ("jsonb", """'{"n": 5, "price": 1.10}'""", {"n": 5, "price": Decimal("1.10")}),
    ("integer[]", "'{1, NULL}'", [1, None]),
    ("int4range", "'[1, 5)'", "[1,5)"),
    ("inet", "'10.0.0.1'", "10.0.0.1"),
    ("numeric", "NULL", None),
    ("double precision", "NULL", None),
]
"""A type, a value in SQL, and how it arrives. The table in docs/how-to/postgresql-tables.md says the same."""


def _same(one: object, other: object) -> bool:
    """The digits of a Decimal count, too."""
    return type(one) is type(other) and repr(one) == repr(other)


@staged
async def test_what_a_column_is_says_how_it_arrives_and_exact_numbers_stay_exact(scene: TableScene) -> None:
    hand = await scene.hand()
    own = {name: scene.server.fresh(name) for name in ("price", "mood", "pair")}
    await hand.execute(
        f"CREATE DOMAIN {own['price']} AS numeric; CREATE TYPE {own['mood']} AS ENUM ('calm');"
        f" CREATE TYPE {own['pair']} AS (a integer, b numeric)".encode()
    )
    kinds = [(kind.format(**own), value) for kind, value, _ in KINDS]
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(kinds))
    await scene.make(f"id numeric PRIMARY KEY, {columns}")
    await scene.watch(1, all_versions=True)
    key = Decimal("0.12345678901234567890")
    await hand.execute(f"INSERT INTO {scene.table} VALUES ({key}, {', '.join(v for _, v in kinds)})".encode())
    rows = await _all_of(scene, "latest")
    await hand.execute(f"DELETE FROM {scene.table}".encode())
    created, deleted = await _all_of(scene, "all")
    for row in (*rows, created["current"], deleted["previous"]):
        assert _same(row["id"], key)
        wrong = [(kind, row[f"c{at}"]) for at, (kind, _, is_) in enumerate(KINDS) if not _same(row[f"c{at}"], is_)]
        assert not wrong
    assert _same(deleted["metadata"]["partitionKey"], {"id": key})


@staged
async def test_a_numeric_column_that_is_added_while_a_host_runs_is_exact_at_once(scene: TableScene) -> None:
    await scene.make()
    await scene.watch()
    hand, changes = await scene.hand(), list[Any]()
    processor = ChangeFeedProcessor(
        scene.url(), MemoryStore(), "mails", start="beginning", **TIMES | {"refresh_s": 3600.0}
    )
    processor.on_changes(lambda told, context: changes.extend(told))
    async with processor:
        await hand.execute(f"INSERT INTO {scene.table} VALUES (1, 1)".encode())
        await _until(lambda: changes)
        await hand.execute(f"ALTER TABLE {scene.table} ADD total numeric".encode())
        await hand.execute(f"INSERT INTO {scene.table} VALUES (2, 1, 1.10)".encode())
        await _until(lambda: len(changes) == 2)
    assert changes[0] == {"id": 1, "version": 1}
    assert _same(changes[1]["total"], Decimal("1.10"))


async def _all_of(scene: TableScene, mode: Literal["latest", "all"]) -> list[Any]:
    changes: list[Any] = []
    processor = ChangeFeedProcessor(scene.url(mode), MemoryStore(), "mails", start="beginning", **TIMES)
    processor.on_changes(lambda told, context: changes.extend(told))
    await processor.serve(until="caught_up")
    return changes
