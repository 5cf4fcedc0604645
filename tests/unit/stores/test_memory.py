"""The memory store as the base of the simulated world: it can lose its last writes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from evenflow.errors import Superseded
from evenflow.model import Cursor, next_epoch
from evenflow.stores.memory import MemoryStore
from evenflow.testing.store.scene import after, at, first, granted
from tests.unit.stores.scenes import GROUP, join, known


def test_a_restored_store_is_what_it_was_in_a_later_history() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        me = await join(store)
        lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
        await store.seal(GROUP, "0", 1, at(3))
        before = await store.heartbeat(GROUP, me, None)
        snapshot = store.snapshot()

        late = await join(store, "late")
        await store.swap(GROUP, [after(lease, late.owner), first("1", late.owner)])
        await store.commit(GROUP, [at(9)])
        for _ in range(2):
            store.restore(snapshot)
        ledger = await store.heartbeat(GROUP, me, before.cursor)

        assert ledger.cursor.history == 2
        assert ledger.cursor.lineage != before.cursor.lineage
        assert (ledger.whole, ledger.leases, [member.id for member in ledger.members]) == (True, (lease,), ["a"])
        assert (await store.seal(GROUP, "0", 1, at(0))).ordinal == 3
        assert len(await store.moves(GROUP)) == 1

    asyncio.run(scenario())


def test_a_heartbeat_that_is_refused_changes_nothing() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        me = await join(store)
        again = await store.heartbeat(GROUP, structs.replace(me, nonce="again", incarnation=0), None)
        with pytest.raises(Superseded):
            await store.heartbeat(GROUP, me, Cursor("another", 0, 1))
        assert (await store.heartbeat(GROUP, known(again), again.cursor)).cursor.history == 0

    asyncio.run(scenario())


def test_a_loss_that_was_not_noticed_is_detected_by_earlier_members() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        me = await join(store)
        snapshot = store.snapshot()
        since = (await store.heartbeat(GROUP, me, None)).cursor
        store.restore(snapshot, noticed=False)
        new = await join(store, "b")
        assert (await store.heartbeat(GROUP, new, None)).cursor.history == 0
        assert (await store.heartbeat(GROUP, me, since)).cursor.history == 1
        store.empty()
        assert await store.groups() == []
        ledger = await store.heartbeat(GROUP, new, None)
        assert (ledger.cursor.history, ledger.leases) == (0, ())

    asyncio.run(scenario())


def test_a_snapshot_is_not_changed_by_what_comes_after_it() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        empty = store.snapshot()
        me = await join(store)
        await store.swap(GROUP, [first("0", me.owner)])
        await store.seal(GROUP, "0", 1, at(3))
        full = store.snapshot()
        store.restore(empty)
        assert list(await store.groups()) == []
        store.restore(full)
        await store.delete(GROUP)
        store.restore(full)
        assert [record.ordinal for record in await store.checkpoints(GROUP)] == [3]

    asyncio.run(scenario())


def test_after_a_loss_incarnations_go_on_above_and_the_old_one_goes_on_too() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        me = await join(store)
        since = (await store.heartbeat(GROUP, me, None)).cursor
        empty = MemoryStore().snapshot()
        store.restore(empty)
        new = await join(store, "b")
        assert new.incarnation == next_epoch(0, 1)
        back = await store.heartbeat(GROUP, me, since)
        assert known(back).incarnation == me.incarnation
        assert (back.whole, back.cursor.history) == (True, 1)

    asyncio.run(scenario())


def test_the_wall_clock_is_a_parameter() -> None:
    async def scenario() -> None:
        store = MemoryStore(wall=lambda: 12.5)
        me = await join(store)
        assert granted((await store.swap(GROUP, [first("0", me.owner)]))[0]).changed_at == 12.5
        assert (await store.seal(GROUP, "0", 1, at(0))).changed_at == 12.5

    asyncio.run(scenario())
