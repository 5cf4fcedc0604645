"""Which store a client gets; and what it is to a client of one partition: checkpoints, but no ownership."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.compat import checkpointstore
from evenflow.compat.eventhub.stores import SinglePartitionStore, store_of
from evenflow.model import Checkpoint, Group, Position
from evenflow.stores.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.ports import Store

GROUP = Group("local", "homes", "alerts")


@pytest.mark.parametrize(
    "kind",
    [checkpointstore.aio.EvenflowCheckpointStore, checkpointstore.EvenflowCheckpointStore],
    ids=["aio", "plain"],
)
def test_a_store_for_the_official_client_is_the_store_behind_it(tmp_path: Path, kind: Any) -> None:
    memory = MemoryStore()
    assert store_of(kind(memory)) == (memory, False)
    opened, is_mine = store_of(kind(f"sqlite:{tmp_path}"))
    assert type(opened).__name__ == "SQLiteStore"
    assert is_mine


def at(ordinal: int, epoch: int) -> Checkpoint:
    return Checkpoint(partition="0", epoch=epoch, position=Position(str(ordinal), ordinal), ordinal=ordinal)


async def record(store: MemoryStore) -> tuple[int, int]:
    (found,) = await store.checkpoints(GROUP)
    return found.ordinal, found.epoch


async def commits(store: Store, checkpoint: Checkpoint) -> bool:
    (outcome,) = await store.commit(GROUP, [checkpoint])
    return outcome.ok


@pytest.mark.parametrize("tries", [1, 50])
def test_who_reads_alone_takes_no_epoch(tries: int) -> None:
    """Otherwise a group that comes later would have to try as often before it gets anywhere."""

    async def main() -> None:
        store = MemoryStore()
        solo = SinglePartitionStore(store)
        for epoch in range(1, tries + 1):
            assert (await solo.seal(GROUP, "0", epoch, at(0, epoch))).epoch == epoch
        assert await commits(solo, at(5, tries))
        assert await record(store) == (5, 0)
        assert (await store.seal(GROUP, "0", 1, at(0, 1))).ordinal == 5

    asyncio.run(main())


def test_a_group_beside_it_is_not_fenced() -> None:
    async def main() -> None:
        store = MemoryStore()
        solo = SinglePartitionStore(store)
        await store.seal(GROUP, "0", 3, at(0, 3))
        assert await commits(store, at(4, 3))
        assert (await solo.seal(GROUP, "0", 1, at(0, 1))).ordinal == 4
        assert await commits(store, at(6, 3))
        assert await commits(solo, at(5, 1))
        assert await record(store) == (6, 3)

    asyncio.run(main())


def test_a_group_that_comes_later_fences_it() -> None:
    async def main() -> None:
        store = MemoryStore()
        solo = SinglePartitionStore(store)
        await solo.seal(GROUP, "0", 1, at(0, 1))
        await store.seal(GROUP, "0", 1, at(0, 1))
        assert not await commits(solo, at(5, 1))
        await solo.seal(GROUP, "0", 2, at(0, 2))
        assert await commits(solo, at(5, 2))

    asyncio.run(main())
