"""The change feed processor on a watched table: hosts share its ranges, and handlers get what Cosmos DB's would get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.stores.memory import MemoryStore
from tests.integration.table_scene import TableScene, staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.changefeed import ChangeContext

pytestmark = pytest.mark.process

TIMES: dict[str, Any] = {"beat_s": 0.2, "ttl_s": 2.0, "margin_s": 0.5, "refresh_s": 0.3}


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
    while not is_so():  # noqa: ASYNC110 - what it waits for comes from many sides
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
