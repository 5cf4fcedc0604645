"""Hosts of Java's own change feed processor and ours on one lease container, on a local Cosmos DB: each takes over from
the other at its continuation, and they share the work.

Java is real here: azure-cosmos for Java, unmodified, in a process of its own (tests/java/ChangeFeedHost.java).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from itertools import chain, pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import pytest

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.stores.cosmos import layouts
from evenflow.testing.cosmos import cosmos
from tests.servers.java import JavaHost, skip_without_java

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from evenflow.changefeed import ChangeContext
    from evenflow.embedded.container import Container
    from evenflow.testing.cosmos import Cosmos

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NAME = "feed"
RANGES = 4
EXPIRY_S = 5.0
HEARTBEAT_S, TTL_S = 0.5, 4.0
PATIENCE_S = 120.0
BATCH = 60
SETTLING = 10
"""So many batches a robbed host may have until it knows."""


class Written(NamedTuple):
    range: str
    lsn: int


class Scene:
    def __init__(self, server: Cosmos, way: str) -> None:
        self.server = server
        self.way = way
        self.written = 0
        self.ours: dict[str, list[str]] = {}
        self.javas: list[JavaHost] = []
        server.account.create_database("shop")
        for name, key in (("orders", "/customer"), ("leases", "/id")):
            server.account.create_container("shop", {"id": name, "partitionKey": {"paths": [key]}})

    # --- documents
    @property
    def orders(self) -> Container:
        return self.server.container("shop", "orders")

    def write(self, count: int = BATCH) -> set[str]:
        numbers = range(self.written, self.written + count)
        self.written += count
        documents = [{"id": f"o{number}", "customer": f"c{number}"} for number in numbers]
        self.orders.upsert_many(documents)
        return {document["id"] for document in documents}

    def places(self) -> dict[str, Written]:
        """Where each document is; none of them is ever changed."""
        found: dict[str, Written] = {}
        for one in self.orders.ranges():
            page = self.orders.feed(one.id, None, max_items=10_000)
            found |= {str((change.document or {})["id"]): Written(one.id, change.lsn) for change in page.changes}
        return found

    # --- hosts
    def java(self, name: str) -> JavaHost:
        host = JavaHost(self.server, name, NAME, self.way, EXPIRY_S)
        self.javas.append(host)
        return host

    @asynccontextmanager
    async def python(self, name: str, **options: str) -> AsyncIterator[list[str]]:
        """What it handled. `options` are of the store."""
        handled = self.ours.setdefault(name, [])
        port, more = self.server.port, urlencode({"peer_expiry_s": EXPIRY_S, **options})
        processor = ChangeFeedProcessor(
            monitored=f"cosmos://127.0.0.1:{port}/shop/orders",
            leases=f"cosmos-leases://127.0.0.1:{port}/shop/leases?{more}",
            processor_name=NAME,
            instance_name=name,
            # Who finds nothing to go on from begins here: so what it ought to have gone on from is missing.
            start="now",
            mode="all" if self.way == "all" else "latest",
            poll_interval_s=0.1,
            heartbeat_s=HEARTBEAT_S,
            ttl_s=TTL_S,
        )

        @processor.on_changes
        async def handle(changes: list[dict[str, Any]], context: ChangeContext) -> None:
            handled.extend(change.get("current", change)["id"] for change in changes)

        async with processor:
            yield handled

    def handled(self) -> set[str]:
        return set(chain.from_iterable([*self.ours.values(), *(host.handled for host in self.javas)]))

    async def until_handled(self, wanted: set[str]) -> None:
        await until(lambda: wanted <= self.handled(), "everything handled", lambda: sorted(wanted - self.handled())[:9])

    # --- leases
    def leases(self) -> list[dict[str, Any]]:
        """Not those of ranges that have ended."""
        found = self.server.container("shop", "leases").query("SELECT * FROM c WHERE CONTAINS(c.id, '..')")
        return [dict(one) for one in found]

    def shares(self) -> dict[str, int]:
        return dict(Counter(str(lease["Owner"]) for lease in self.leases()))

    async def until_shares(self, **wanted: int) -> None:
        await until(lambda: self.shares() == wanted, f"shares {wanted}", self.shares)

    def has_begun(self) -> bool:
        """Whether all leases have a continuation."""
        return all(lease["ContinuationToken"] for lease in self.leases())

    def range_of(self, document: dict[str, Any]) -> str:
        lease = layouts.read(document)
        if not lease.is_by_range:
            return lease.token
        return next(one.id for one in self.orders.ranges() if (one.min, one.max) == lease.span)

    def checkpointed(self) -> set[str]:
        """The documents that nobody has to handle any more, by the continuations of all leases."""
        after: dict[str, int] = {}
        for lease in self.leases():
            position = layouts.position_of(lease["ContinuationToken"] or "")
            after[self.range_of(lease)] = position.sequence or 0 if position is not None else 0
        return {id for id, (range_id, lsn) in self.places().items() if lsn <= after[range_id]}


async def until(is_so: Callable[[], bool], what: str, instead: Callable[[], object]) -> None:
    ends_s = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < ends_s, f"not in {PATIENCE_S} s: {what}; instead {instead()}"
        await asyncio.sleep(0.05)


@pytest.fixture(params=["changes", "latest", "all"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    skip_without_java()
    with cosmos(ranges=RANGES) as server:
        made = Scene(server, request.param)
        try:
            yield made
        finally:
            for host in made.javas:
                host.kill()


def test_each_takes_over_from_the_other_where_it_was(scene: Scene) -> None:
    async def play() -> None:
        if scene.way != "all":
            await ours_first()
        before = set(scene.places())
        java = scene.java("java-1")
        await until(lambda: java.is_ready, "Java to be ready", lambda: java.lines)
        await scene.until_shares(**{"java-1": RANGES})
        if scene.way == "all":
            await until(scene.has_begun, "Java to begin, which it does at what is newest then", scene.leases)
        await scene.until_handled(scene.write())
        assert not before & set(java.handled)
        scene.write()
        java.stop()
        await goes_on("python-1")
        await back_to_java()

    async def ours_first() -> None:
        """Where nobody had leases before, ours have to be told that Java will come."""
        options = {"changes": {"prefix": f"{NAME}127.0.0.1_shop_orders"}, "latest": {"layout": "java"}}
        async with scene.python("python-0", **options[scene.way]):
            await scene.until_shares(**{"python-0": RANGES})
            await until(scene.has_begun, "ours to begin", scene.leases)
            await scene.until_handled(scene.write())

    async def goes_on(name: str) -> None:
        """Ours, after Java: with all that is not checkpointed, and with nothing else."""
        done = scene.checkpointed()
        assert done, "something was checkpointed"
        async with scene.python(name) as handled:
            await scene.until_shares(**{name: RANGES})
            await scene.until_handled(scene.write() | set(scene.places()))
            again = done & set(handled)
            assert not again, "gone on at its continuation"

    async def back_to_java() -> None:
        done = scene.checkpointed()
        assert done == set(scene.places()), "ours have checkpointed all that they handled"
        java = scene.java("java-2")
        await scene.until_shares(**{"java-2": RANGES})
        await scene.until_handled(scene.write())
        assert not done & set(java.handled), "gone on at our continuation"
        if scene.way == "latest":
            scene.write()
            java.kill()
            await goes_on("python-2")

    asyncio.run(play())


@pytest.mark.parametrize("scene", ["latest"], indirect=True)
def test_they_share_the_ranges_and_get_over_splits(scene: Scene) -> None:
    async def play() -> None:
        java = scene.java("java")
        await scene.until_shares(java=RANGES)
        await scene.until_handled(scene.write())
        async with scene.python("python") as handled:
            await scene.until_shares(java=RANGES // 2, python=RANGES // 2)
            await scene.until_handled(scene.write())
            await until_each_does_its_own(java, handled)
            mine = next(lease for lease in scene.leases() if lease["Owner"] == "python")
            theirs = next(lease for lease in scene.leases() if lease["Owner"] == "java")
            for lease in (mine, theirs):
                scene.orders.split(scene.range_of(lease))
            await scene.until_handled(scene.write())
            await scene.until_shares(java=RANGES // 2 + 1, python=RANGES // 2 + 1)
            await until_each_does_its_own(java, handled)
            await get_over_a_merge()
        # Java goes on with the leases that ours have made for the children of theirs.
        await until(lambda: set(scene.shares()) == {"java"}, "Java to have them all", scene.shares)
        await scene.until_handled(scene.write() | set(scene.places()))

    async def get_over_a_merge() -> None:
        """Of a range of ours with one of Java's, which goes on with its part alone: the rest is left to it."""
        has = {scene.range_of(lease): lease["Owner"] for lease in scene.leases()}
        ids = [one.id for one in sorted(scene.orders.ranges(), key=lambda one: one.min)]
        scene.orders.merge(*next((low, high) for low, high in pairwise(ids) if has[low] != has[high]))
        await scene.until_handled(scene.write())

    async def until_each_does_its_own(java: JavaHost, handled: list[str]) -> None:
        """Who was robbed just now may not know yet. Then each document is handled once, by whoever has its range."""
        for _ in range(SETTLING):
            wanted = scene.write()
            await scene.until_handled(wanted)
            counts = Counter(id for id in [*java.handled, *handled] if id in wanted)
            has = {scene.range_of(lease): lease["Owner"] for lease in scene.leases()}
            places = scene.places()
            of_java = {id for id in wanted if has[places[id].range] == "java"}
            if set(counts.values()) == {1} and of_java == wanted & set(java.handled):
                return
        raise AssertionError(f"some are handled by two, or by another than the owner: {counts}")

    asyncio.run(play())
