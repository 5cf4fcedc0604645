"""Who is woken by what, in the stores of this package. (The contract lets a store wake for nothing; these do not.)"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.stores.memory import MemoryStore
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.stores.sqlite.wakeups import SLOTS, slot_of
from evenflow.testing.store.scene import PATIENCE_S, after, first, granted
from tests.unit.stores.scenes import GROUP, join

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | SQLiteStore:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path)


def test_who_claims_or_takes_over_or_releases_wakes_no_instance_and_a_pass_wakes_the_heir_alone(
    store: MemoryStore | SQLiteStore,
) -> None:
    async def scenario() -> None:
        a, b, c = [await join(store, instance) for instance in "abc"]
        assert len({slot_of(GROUP, member.id) for member in (a, b, c)}) == 3
        calls: list[str] = []
        woken = asyncio.Event()
        for member in (a, b):
            store.watch(GROUP, member.id, _note(calls, member.id))
        store.watch(GROUP, c.id, woken.set)
        lease = granted((await store.swap(GROUP, [first("0", a.owner)]))[0])
        lease = granted((await store.swap(GROUP, [after(lease, a.owner)]))[0])
        lease = granted((await store.swap(GROUP, [after(lease, b.owner, still=(a.owner, a.mark))]))[0])
        lease = granted((await store.swap(GROUP, [after(lease, None)]))[0])
        lease = granted((await store.swap(GROUP, [after(lease, a.owner)]))[0])
        granted((await store.swap(GROUP, [after(lease, c.owner)]))[0])
        async with asyncio.timeout(PATIENCE_S):
            await woken.wait()
        assert calls == []
        await store.aclose()

    asyncio.run(scenario())


def test_two_loops_of_one_thread_share_a_memory_store() -> None:
    """As in the simulated world: each instance has a loop of its own, and is woken on it."""
    store = MemoryStore()
    mine, theirs = asyncio.new_event_loop(), asyncio.new_event_loop()
    woken: list[asyncio.AbstractEventLoop] = []

    async def watch() -> None:
        store.watch(GROUP, "b", lambda: woken.append(asyncio.get_running_loop()))
        await join(store, "b")

    async def hand_over() -> None:
        me, heir = await join(store, "a"), await join(store, "b")
        lease = granted((await store.swap(GROUP, [first("0", me.owner)]))[0])
        await store.swap(GROUP, [after(lease, heir.owner)])

    theirs.run_until_complete(watch())
    mine.run_until_complete(hand_over())
    assert woken == []
    theirs.run_until_complete(_nothing())
    assert woken == [theirs]
    theirs.close()
    mine.run_until_complete(hand_over_again(store))
    assert woken == [theirs], "a loop that is closed is left alone"
    mine.close()


async def hand_over_again(store: MemoryStore) -> None:
    me = await join(store, "c")
    ledger = await store.heartbeat(GROUP, me, None)
    lease = granted((await store.swap(GROUP, [after(ledger.leases[0], me.owner)]))[0])
    await store.swap(GROUP, [after(lease, (await join(store, "b")).owner)])


def test_every_instance_has_a_slot_that_is_not_everybodys() -> None:
    slots = {slot_of(GROUP, f"instance {number}") for number in range(5_000)}
    assert slots == set(range(1, SLOTS))


def _note(calls: list[str], name: str) -> Callable[[], None]:
    return lambda: calls.append(name)


async def _nothing() -> None:
    """One turn of a loop."""
