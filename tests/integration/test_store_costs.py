"""What a settled group costs by the reference pages of the stores: 32 partitions, 4 instances, on real servers.

The instances heartbeat one after the other, so that the count depends on no machine's speed. A conflict between two
that heartbeat at the same moment costs one more look and put: see `tests/unit/stores/objects/test_store.py`. That an
instance of a settled group asks for nothing but its heartbeats is in `tests/unit/runtime/test_coordinator.py`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from evenflow.model import Group, Member
from evenflow.testing.store.scene import at, first, present
from evenflow.urls import open_store
from tests.docs.test_costs import INSTANCES, SHARE
from tests.servers import azurite, moto, postgres
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from evenflow.model import Cursor
    from evenflow.ports import Store

pytestmark = pytest.mark.process

GROUP = Group("homes.example", "sensors", "alerts")
ROUNDS = 2
"""In each of which every instance heartbeats once."""
MORE = "&timeout_s=30"
"""A driver repeats a request that is not answered in time, and the second one would be counted."""


class Place(NamedTuple):
    """A server behind a proxy that counts requests."""

    proxy: Proxy
    url: str
    writes: Callable[[], int] = lambda: 0
    """How many the server has done, where it can tell."""

    @property
    def counts(self) -> tuple[int, int]:
        return self.proxy.count.round_trips, self.writes()


@contextmanager
def azblob(folder: Path) -> Iterator[Place]:
    server = azurite.Azurite(folder / "log", tells=True).start()
    try:
        with Proxy(server.port) as proxy:
            yield Place(proxy, server.url(port=proxy.port, more=MORE), server.puts)
    finally:
        server.stop()


@contextmanager
def s3(_: Path) -> Iterator[Place]:
    server = moto.shared()
    with Proxy(server.port) as proxy:
        yield Place(proxy, server.url(server.fresh(), port=proxy.port, more=f"&poll_s=0{MORE}"), server.puts)


@contextmanager
def redis(folder: Path) -> Iterator[Place]:
    server = RedisServer(folder / "redis").start()
    try:
        with Proxy(server.port) as proxy:
            yield Place(proxy, f"redis://127.0.0.1:{proxy.port}?timeout_s=30")
    finally:
        server.stop()


@contextmanager
def postgresql(_: Path) -> Iterator[Place]:
    server = postgres.shared_or_skip()
    with Proxy(server.port) as proxy:
        yield Place(proxy, f"{server.url(server.make_database(), port=proxy.port)}?listen=off")


class Instance:
    """A client of the store with a member that follows the group, as a processor does."""

    def __init__(self, store: Store, number: int) -> None:
        self.store = store
        self.partitions = [str(partition) for partition in range(number * SHARE, (number + 1) * SHARE)]
        self._me = Member(id=f"i{number}", nonce=str(number), ttl_s=60.0)
        self._since: Cursor | None = None

    async def heartbeat(self) -> None:
        ledger = await self.store.heartbeat(GROUP, self._me, self._since)
        self._me, self._since = present(ledger), ledger.cursor

    async def claim_its_share(self) -> None:
        await self.heartbeat()
        changes = [first(partition, self._me.owner, ttl_s=60.0) for partition in self.partitions]
        assert all(outcome.ok for outcome in await self.store.swap(GROUP, changes))

    async def seal(self) -> None:
        defaults = [at(0, partition=partition) for partition in self.partitions]
        await asyncio.gather(*(self.store.seal(GROUP, one.partition, 1, one) for one in defaults))

    async def commit(self, ordinal: int) -> None:
        records = [at(ordinal, partition=partition) for partition in self.partitions]
        assert all(outcome.ok for outcome in await self.store.commit(GROUP, records))


@pytest.mark.parametrize(
    ("open_place", "requests", "writes", "commit"),
    [
        pytest.param(azblob, SHARE + 2, SHARE + 1, SHARE, id="azblob: a row, a renewal a partition, a listing"),
        pytest.param(s3, 2, 1, SHARE, id="s3: a get and a put"),
        pytest.param(redis, 1, 0, 1, id="redis: a script"),
        pytest.param(postgresql, 1, 0, 1, id="postgresql: a function"),
    ],
)
def test_a_heartbeat_and_a_commit_of_a_settled_group_cost_so_many_requests(
    tmp_path: Path, open_place: Any, requests: int, writes: int, commit: int
) -> None:
    async def play(place: Place) -> None:
        async with AsyncExitStack() as ends:
            instances = [Instance(open_store(place.url), number) for number in range(INSTANCES)]
            for instance in instances:
                ends.push_async_callback(instance.store.aclose)
                await instance.claim_its_share()
            await heartbeat_in_turn(instances)
            before = place.counts
            await heartbeat_in_turn(instances)
            asked, written = (now - then for now, then in zip(place.counts, before, strict=True))
            assert (asked, written) == (requests * ROUNDS * INSTANCES, writes * ROUNDS * INSTANCES)
            await instances[0].seal()
            await instances[0].commit(1)
            before = place.counts
            await instances[0].commit(2)
            assert place.counts[0] - before[0] == commit, "of all partitions of one instance"

    with open_place(tmp_path) as place:
        asyncio.run(play(place))


async def heartbeat_in_turn(instances: list[Instance]) -> None:
    for _ in range(ROUNDS):
        for instance in instances:
            await instance.heartbeat()
