"""What hosts of a change feed processor ask of their lease store, once they have settled and nothing moves.

The hosts run in this process, with their own defaults, over a container without changes: what is counted are leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

import uvloop

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.stores.cosmos.group_cache import ahead_s
from evenflow.stores.cosmos.store import CosmosLeasesStore, from_url
from evenflow.stores.memory import MemoryStore
from evenflow.testing.cosmos import cosmos
from evenflow.testing.fakes import FakeFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import Change, Cursor, Group, Ledger, Member, Outcome

RANGES, HOSTS = 100, 4
RENEWALS = RANGES * 60.0 / (ahead_s(RANGES) / 2)
"""A minute, of a lease container: each lease is written anew when half of the time is over by which its timestamp was
ahead. That is too seldom to be seen here; tests/unit/stores/cosmos/test_cost.py counts them all."""
SECONDS = 30.0
SETTLING_S, CALM_S = 60.0, 5.0


class CountingStore(MemoryStore):
    """A store that needs one request for what it is asked, as most do."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        self.asked["heartbeat"] += 1
        return await super().heartbeat(group, member, since)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        self.asked["swap"] += 1
        return await super().swap(group, changes)

    def requests(self) -> Counter[str]:
        return Counter(self.asked)


def counted() -> dict[str, float]:
    """Requests a minute: to a store that needs one for a heartbeat, and to a lease container of Cosmos DB."""
    logging.disable(logging.CRITICAL)
    try:
        return uvloop.run(_both())
    finally:
        logging.disable(logging.NOTSET)


async def _both() -> dict[str, float]:
    store = CountingStore()
    with cosmos(ranges=RANGES) as server:
        server.account.create_database("shop")
        for name, key in (("orders", "/customer"), ("leases", "/id")):
            server.account.create_container("shop", {"id": name, "partitionKey": {"paths": [key]}})
        where = f"127.0.0.1:{server.port}/shop"
        stores = [from_url(f"cosmos-leases://{where}/leases") for _ in range(HOSTS)]
        try:
            plain, official = await asyncio.gather(
                _counted(FakeFeed(RANGES), [store] * HOSTS, store.requests),
                _counted(f"cosmos://{where}/orders", stores, lambda: _sum(stores)),
            )
        finally:
            for one in stores:
                await one.aclose()
    return {"a store with one request a heartbeat": plain, "Cosmos DB's lease container": official + RENEWALS}


def _sum(stores: Sequence[CosmosLeasesStore]) -> Counter[str]:
    return sum((store.requests() for store in stores), Counter())


async def _counted(monitored: Any, stores: Sequence[Any], requests: Callable[[], Counter[str]]) -> float:
    hosts = [ChangeFeedProcessor(monitored, store, "bench", instance_name=f"h{n}") for n, store in enumerate(stores)]
    async with AsyncExitStack() as running:
        for host in hosts:
            host.on_changes(lambda changes, context: None)
            await running.enter_async_context(host)
        async with asyncio.timeout(SETTLING_S):
            while {len(host.owned) for host in hosts} != {RANGES // HOSTS}:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.1)
        await asyncio.sleep(CALM_S)
        before, started_s = requests(), perf_counter()
        await asyncio.sleep(SECONDS)
        return (requests() - before).total() * 60.0 / (perf_counter() - started_s)
