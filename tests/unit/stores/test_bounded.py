"""What accumulates in a store is bounded: members that are gone, and the moves of long ago."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.stores.memory import MemoryStore
from evenflow.stores.rules import FORGOTTEN_AFTER_S, MOVES_KEPT
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.scene import after, first, granted
from tests.unit.stores.scenes import GROUP, join, known

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> MemoryStore | SQLiteStore:
    return MemoryStore(wall=clock) if request.param == "memory" else SQLiteStore(tmp_path, wall=clock)


def test_who_is_silent_for_an_hour_is_forgotten(store: MemoryStore | SQLiteStore, clock: Clock) -> None:
    async def scenario() -> None:
        await join(store, "silent")
        me = await join(store, "b")
        since = (await store.heartbeat(GROUP, me, None)).cursor
        clock.now += FORGOTTEN_AFTER_S - 1
        ledger = await store.heartbeat(GROUP, me, since)
        assert [member.id for member in ledger.members] == ["silent"]
        clock.now += 2
        ledger = await store.heartbeat(GROUP, me, ledger.cursor)
        assert (ledger.roster, [member.id for member in ledger.members]) == (True, ["b"])
        ledger = await store.heartbeat(GROUP, me, ledger.cursor)
        assert (ledger.roster, ledger.members) == (False, ())
        await store.aclose()

    asyncio.run(scenario())


def test_who_was_forgotten_comes_back_as_it_was(store: MemoryStore | SQLiteStore, clock: Clock) -> None:
    async def scenario() -> None:
        away, me = await join(store, "away"), await join(store, "b")
        since = (await store.heartbeat(GROUP, me, None)).cursor
        clock.now += FORGOTTEN_AFTER_S + 1
        assert "away" not in {member.id for member in (await store.heartbeat(GROUP, me, since)).members}
        back = known(await store.heartbeat(GROUP, away, since))
        assert structs.replace(back, mark=away.mark, heartbeat_at=away.heartbeat_at) == away
        assert back.mark != away.mark
        await store.aclose()

    asyncio.run(scenario())


def test_who_is_named_by_a_lease_is_never_forgotten(store: MemoryStore | SQLiteStore, clock: Clock) -> None:
    async def scenario() -> None:
        owner, me = await join(store, "owner"), await join(store, "b")
        (outcome,) = await store.swap(GROUP, [first("0", owner.owner)])
        since = (await store.heartbeat(GROUP, me, None)).cursor
        clock.now += 2 * FORGOTTEN_AFTER_S
        ledger = await store.heartbeat(GROUP, me, since)
        assert [member.id for member in ledger.members] == ["owner"]
        await store.swap(GROUP, [after(granted(outcome), me.owner)])
        ledger = await store.heartbeat(GROUP, me, ledger.cursor)
        assert [member.id for member in ledger.members] == ["b"]
        await store.aclose()

    asyncio.run(scenario())


def test_only_the_last_moves_are_kept(store: MemoryStore | SQLiteStore) -> None:
    async def scenario() -> None:
        me = await join(store)
        changes = [first(str(number), me.owner) for number in range(MOVES_KEPT + 50)]
        await store.swap(GROUP, changes[:-1])
        await store.swap(GROUP, changes[-1:])
        moves = await store.moves(GROUP, limit=10 * MOVES_KEPT)
        assert [int(move.partition) for move in moves] == list(range(MOVES_KEPT + 49, 49, -1))
        await store.aclose()

    asyncio.run(scenario())


def test_one_groups_moves_do_not_push_out_anothers(store: MemoryStore | SQLiteStore) -> None:
    async def scenario() -> None:
        me = await join(store)
        await store.swap(GROUP, [first("0", me.owner)])
        other = structs.replace(GROUP, name="other")
        busy = known(await store.heartbeat(other, structs.replace(me, incarnation=0, nonce="n"), None))
        await store.swap(other, [first(str(number), busy.owner) for number in range(MOVES_KEPT + 1)])
        assert [move.partition for move in await store.moves(GROUP)] == ["0"]
        await store.aclose()

    asyncio.run(scenario())
