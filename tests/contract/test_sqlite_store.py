"""The SQLite store keeps the contract of stores, between processes too."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from evenflow.model import Group, Member
from evenflow.stores.sqlite.store import SQLiteStore
from evenflow.testing.store.contract import StoreContract
from evenflow.testing.store.scene import first, present

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.ports import Store

GROUP = Group("homes.example", "sensors", "race")
RACERS = 2
ROUNDS = 50


class TestSQLiteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "store"

    def make_store(self) -> Store:
        return SQLiteStore(self.folder)

    def make_client(self, store: Store) -> Store:
        return SQLiteStore(self.folder)


@pytest.mark.process
def test_processes_race_for_leases_and_each_has_one_winner(tmp_path: Path) -> None:
    """They make the store, meet before each round, and then all claim the same new partition."""
    with ProcessPoolExecutor(RACERS, multiprocessing.get_context("spawn")) as pool:
        racers = [pool.submit(_race, tmp_path / "store", f"racer {number}") for number in range(RACERS)]
        wins = sorted(win for racer in racers for win in racer.result())
    assert wins == list(range(ROUNDS))


def _race(path: Path, name: str) -> list[int]:
    return asyncio.run(_win(SQLiteStore(path, busy_timeout_s=30), name))


async def _win(store: SQLiteStore, name: str) -> list[int]:
    """The rounds that this process has won."""
    me = Member(id=name, nonce=name, ttl_s=8.0)
    wins = []
    for turn in range(ROUNDS):
        me = present(await store.heartbeat(GROUP, structs.replace(me, version=str(turn)), None))
        while not await _all_are_there(store, turn):
            pass
        (outcome,) = await store.swap(GROUP, [first(str(turn), me.owner)])
        assert outcome.lease is not None
        assert outcome.ok == (outcome.lease.owner == me.owner)
        if outcome.ok:
            wins.append(turn)
    await store.aclose()
    return wins


async def _all_are_there(store: SQLiteStore, turn: int) -> bool:
    ledger = await store.peek(GROUP)
    return ledger is not None and sum(int(member.version) >= turn for member in ledger.members) == RACERS
