"""The change feed processor on feeds that are kept by a server: the same handlers, the same documents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow.changefeed import ChangeContext, ChangeFeedProcessor
from evenflow.stores.memory import MemoryStore
from tests.integration.table_scene import TableScene, staged

if TYPE_CHECKING:
    from evenflow.changefeed import LeaseEstimate

PATIENCE_S = 20.0


class Changes(list[Any]):
    async def __call__(self, changes: list[Any], context: ChangeContext) -> None:
        self.extend(changes)


def processor(scene: TableScene, handler: Any, store: MemoryStore, mode: Any = "latest") -> ChangeFeedProcessor:
    made = ChangeFeedProcessor(scene.url("all").replace("&mode=all", ""), store, "mails", start="beginning", mode=mode)
    made.on_changes(handler)
    return made


def total(found: list[LeaseEstimate]) -> int:
    return sum(one.remaining or 0 for one in found)


@staged
async def test_rows_of_a_watched_table_are_documents(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(2, all_versions=True)
    hand = await scene.hand()
    await hand.execute(f"INSERT INTO {scene.table} SELECT g, 1 FROM generate_series(1, 10) g".encode())
    await hand.execute(f"UPDATE {scene.table} SET version = 2 WHERE id = 3".encode())
    store, seen = MemoryStore(), Changes()
    mails = processor(scene, seen, store)
    before = await mails.estimate()
    assert total(before) == 11
    assert all(one.since is not None for one in before)
    async with asyncio.timeout(PATIENCE_S):
        await mails.serve(until="caught_up")
    assert {row["id"]: row["version"] for row in seen} == {number: 1 + (number == 3) for number in range(1, 11)}
    assert total(await mails.estimate()) == 0


@staged
async def test_all_versions_of_a_watched_table_come_in_the_words_of_cosmos(scene: TableScene) -> None:
    await scene.make()
    await scene.watch(1, all_versions=True)
    hand = await scene.hand()
    for statement in ("INSERT INTO {} VALUES (7, 1)", "UPDATE {} SET version = 2", "DELETE FROM {}"):
        await hand.execute(statement.format(scene.table).encode())
    tokens: list[tuple[str, tuple[str, str] | None]] = []
    seen = Changes()

    async def handle(changes: list[Any], context: ChangeContext) -> None:
        tokens.append((context.lease_token, context.feed_range))
        await seen(changes, context)

    async with asyncio.timeout(PATIENCE_S):
        await processor(scene, handle, MemoryStore(), "all").serve(until="caught_up")
    assert [change["metadata"]["operationType"] for change in seen] == ["create", "replace", "delete"]
    assert (seen[1]["previous"], seen[1]["current"]) == ({"id": 7, "version": 1}, {"id": 7, "version": 2})
    assert set(tokens) == {("0", None)}
