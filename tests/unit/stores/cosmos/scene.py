"""A lease container on the local endpoint, a store on it, and the official client beside it, in .NET's part."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from azure.cosmos.aio import CosmosClient

from evenflow.model import Change, Checkpoint, Convention, Group, Lease, Member, Position, next_epoch
from evenflow.stores.cosmos.store import CosmosLeasesStore, from_url
from tests.servers.cosmos_leases import DATABASE, lease_server, make_container, store_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from evenflow.model import Cursor, Ledger, Outcome, Owner

GROUP = Group("acct.documents.azure.com", "shop/orders", "feed")
PREFIX = "feedacct.documents.azure.com_AAAAAA==_AAAAAIAAAAE="
EXPIRY_S = 2.0
SPANS = {"0": ("", "3F"), "1": ("3F", "FF")}


class Place:
    """One container, with clients of both makes."""

    def __init__(self, container: Any, url: str) -> None:
        self.container = container
        self.url = url
        self.store = self.client()

    def client(self, more: str = "", spans: Mapping[str, tuple[str, str]] = SPANS) -> CosmosLeasesStore:
        store = from_url(f"{self.url}&peer_expiry_s={EXPIRY_S}{more}")
        store.conform(GROUP, Convention(prefix=PREFIX, mode="Incremental Feed", spans=spans))
        return store

    # --- ours
    async def join(self, instance: str = "me", since: Cursor | None = None) -> Member:
        ledger = await self.store.heartbeat(GROUP, Member(id=instance, nonce=instance, ttl_s=8.0), since)
        assert ledger.me is not None
        return ledger.me

    async def heartbeat(self, member: Member, since: Cursor | None = None) -> Ledger:
        return await self.store.heartbeat(GROUP, member, since)

    async def leases(self) -> dict[str, Lease]:
        ledger = await self.store.peek(GROUP)
        return {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}

    async def swap(self, lease: Lease, owner: Owner | None, **more: Any) -> Outcome:
        (outcome,) = await self.store.swap(GROUP, [changed(lease, owner, **more)])
        return outcome

    async def claim(self, owner: Owner, partition: str = "0") -> Lease:
        lease = (await self.leases()).get(partition) or Lease(partition=partition)
        outcome = await self.swap(lease, owner)
        assert outcome.ok, outcome
        assert outcome.lease is not None
        return outcome.lease

    async def seal(self, lease: Lease, default: Position | None = None) -> Checkpoint:
        record = Checkpoint(
            partition=lease.partition, epoch=lease.epoch, position=default or Position("0", 0), ordinal=0
        )
        return await self.store.seal(GROUP, lease.partition, lease.epoch, record)

    async def commit(self, lease: Lease, lsn: int, ordinal: int, **notes: Any) -> Outcome:
        position = Position(str(lsn), lsn)
        record = Checkpoint(
            partition=lease.partition, epoch=lease.epoch, position=position, ordinal=ordinal, notes=notes
        )
        (outcome,) = await self.store.commit(GROUP, [record])
        return outcome

    # --- theirs
    async def document(self, token: str = "0") -> dict[str, Any]:
        return dict(await self.container.read_item(f"{PREFIX}..{token}", f"{PREFIX}..{token}"))

    async def their_lease(self, token: str = "0", **fields: Any) -> dict[str, Any]:
        """A lease as .NET makes it, or writes it: with the fields that it knows."""
        wanted = {
            "id": f"{PREFIX}..{token}",
            "version": 0,
            "LeaseToken": token,
            "Owner": "dotnet",
            "ContinuationToken": None,
            "properties": {},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0Z"),
            "Mode": "Incremental Feed",
            **fields,
        }
        return dict(await self.container.upsert_item(wanted))

    async def ids(self) -> list[str]:
        return sorted([one["id"] async for one in self.container.read_all_items()])


def changed(lease: Lease, owner: Owner | None, **more: Any) -> Change:
    seen = {"partition": lease.partition, "revision": lease.revision, "history": lease.history}
    epoch = next_epoch(lease.epoch, lease.history)
    return Change(**{**seen, "owner": owner, "epoch": epoch, "ttl_s": 8.0, **more})


def scene(test: Callable[[Place], Awaitable[None]]) -> Callable[[], None]:
    """Make an async test of a place into a plain one."""

    def played() -> None:
        async def play() -> None:
            async with place() as found:
                await test(found)

        asyncio.run(play())

    played.__name__, played.__doc__ = test.__name__, test.__doc__
    return played


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    server = lease_server("evenflow")
    name = make_container(server)
    async with CosmosClient(server.url, server.key) as client:
        container = client.get_database_client(DATABASE).get_container_client(name)
        found = Place(container, store_url(server, name))
        try:
            yield found
        finally:
            await found.store.aclose()
