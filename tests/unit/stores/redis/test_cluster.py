"""A Redis store in a cluster of two real nodes: groups live on either, and may move from one to the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import redis.crc

from evenflow.errors import Misconfigured, StoreUnavailable
from evenflow.model import Group, Member
from evenflow.stores.redis.store import RedisStore
from evenflow.testing.store.scene import PATIENCE_S, after, at, first, granted, present
from tests.servers.processes import wait_until
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HALF = 8192
KEEPS_ALL = ("--appendonly", "yes", "--appendfsync", "always")
SLOTS = 16384


def slot_of(group: Group) -> int:
    return redis.crc.key_slot(f"evenflow:{{{group}}}:group".encode())


LOW, HIGH = (
    next(group for number in range(100) if (slot_of(group := Group("n", "hub", str(number))) < HALF) == low)
    for low in (True, False)
)
"""Two groups whose keys are on different nodes."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    one, two = RedisServer(tmp_path / "one", *options), RedisServer(tmp_path / "two", *options)
    try:
        one.start().ask("CLUSTER", "ADDSLOTS", *range(HALF))
        two.start().ask("CLUSTER", "ADDSLOTS", *range(HALF, SLOTS))
        one.ask("CLUSTER", "MEET", "127.0.0.1", two.port)
        for node in (one, two):
            wait_until(node.knows_every_slot, "the nodes to know each other")
        yield one, two
    finally:
        for node in (one, two):
            node.stop()


def test_groups_on_different_nodes_are_served_and_listed(nodes: tuple[RedisServer, RedisServer]) -> None:
    async def play() -> None:
        stores = [RedisStore(f"{node.url}?cluster=yes") for node in nodes]
        for group in (LOW, HIGH):
            woken = asyncio.Event()
            end = stores[1].watch(group, "b", woken.set)
            members = [
                present(await store.heartbeat(group, Member(id=id, nonce="1", ttl_s=8.0), None))
                for store, id in zip(stores, "ab", strict=True)
            ]
            async with asyncio.timeout(PATIENCE_S):
                await woken.wait()
                woken.clear()
                lease = granted((await stores[0].swap(group, [first("0", members[0].owner)]))[0])
                lease = granted((await stores[0].swap(group, [after(lease, members[1].owner)]))[0])
                await woken.wait()
            await stores[1].seal(group, "0", lease.epoch, at(0))
            assert (await stores[1].commit(group, [at(3, epoch=lease.epoch)]))[0].ok
            end()
        for store in stores:
            assert set(await store.groups()) == {LOW, HIGH}
            await store.aclose()

    asyncio.run(play())


def test_a_group_whose_slot_moves_is_followed(nodes: tuple[RedisServer, RedisServer]) -> None:
    async def play() -> None:
        one, two = nodes
        store = RedisStore(f"{two.url}?cluster=yes")
        ledger = await store.heartbeat(LOW, Member(id="a", nonce="1", ttl_s=8.0), None)
        me = present(ledger)
        await asyncio.to_thread(_move, slot_of(LOW), one, two)
        later = await store.heartbeat(LOW, me, ledger.cursor)
        assert (later.whole, later.cursor.history) == (False, 0), "nothing was lost on the way"
        (outcome,) = await store.swap(LOW, [first("0", me.owner)])
        assert outcome.ok, "everybody has spoken to the new node"
        await store.aclose()

    asyncio.run(play())


def _move(slot: int, here: RedisServer, there: RedisServer) -> None:
    to, of = (node.ask("CLUSTER", "MYID").decode() for node in (there, here))
    there.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", of)
    here.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
    for key in here.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        here.ask("MIGRATE", "127.0.0.1", there.port, key, 0, 5000)
    for node in (there, here):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", to)


def test_a_node_that_is_restarted_is_found_again(tmp_path: Path) -> None:
    node = RedisServer(tmp_path / "node", "--cluster-enabled", "yes", *KEEPS_ALL).start()

    async def play() -> None:
        store = RedisStore(f"{node.url}?cluster=yes&timeout_s=1")
        ledger = await store.heartbeat(LOW, Member(id="a", nonce="1", ttl_s=8.0), None)
        for _ in range(3):
            node.kill()
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await store.heartbeat(LOW, present(ledger), ledger.cursor)
            node.start()
            wait_until(node.knows_every_slot, "the node to be ready")
            later = await store.heartbeat(LOW, present(ledger), ledger.cursor)
            assert (later.whole, later.cursor.history) == (False, 0)
        await store.aclose()

    try:
        node.take_all_slots()
        asyncio.run(play())
    finally:
        node.stop()


def test_a_cluster_that_refuses_credentials_is_distinguished_from_one_that_is_unreachable(tmp_path: Path) -> None:
    node = RedisServer(tmp_path / "node", "--cluster-enabled", "yes").start()

    async def play() -> None:
        for url in (f"redis://:wrong@127.0.0.1:{node.port}?cluster=yes", f"{node.url}?cluster=yes"):
            store = RedisStore(url)
            with pytest.raises(Misconfigured, match="credentials"):
                await store.heartbeat(LOW, Member(id="a", nonce="1", ttl_s=8.0), None)
            await store.aclose()

    try:
        node.take_all_slots()
        node.ask("CONFIG", "SET", "requirepass", "open sesame")
        asyncio.run(play())
    finally:
        node.kill()
