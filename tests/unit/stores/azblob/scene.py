"""A store in Azurite, and Azure's own checkpoint store on the same container: what one writes the other reads."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from evenflow.model import Change, Checkpoint, Group, Lease, Member, Position, next_epoch
from evenflow.stores.azblob.store import AzureBlobStore, from_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from evenflow.model import Cursor, Ledger, Owner
    from tests.servers.azurite import Azurite

GROUP = Group("homes.servicebus.windows.net", "Sensors", "$Default")
ROOT = "homes.servicebus.windows.net/sensors/$default"
NAMES = {"fully_qualified_namespace": GROUP.namespace, "eventhub_name": GROUP.hub, "consumer_group": GROUP.name}
EXPIRY_S = 6.0


class Place:
    """One container, with clients of both makes."""

    def __init__(self, azurite: Azurite, container: str, store: AzureBlobStore, official: BlobCheckpointStore) -> None:
        self.azurite = azurite
        self.name = container
        self.store = store
        self.official = official

    def client(self, **options: Any) -> AzureBlobStore:
        more = "".join(f"&{name}={value}" for name, value in {"peer_expiry_s": EXPIRY_S, **options}.items())
        return from_url(self.azurite.url(self.name, more=more))

    # --- ours
    async def join(self, instance: str = "me", since: Cursor | None = None) -> Member:
        ledger = await self.store.heartbeat(GROUP, Member(id=instance, nonce=instance, ttl_s=8.0), since)
        assert ledger.me is not None
        return ledger.me

    async def claim(self, owner: Owner | None, *partitions: str) -> list[Lease]:
        """Make leases, or change those that there are."""
        ledger = await self.store.peek(GROUP)
        assert ledger is not None
        known = {lease.partition: lease for lease in ledger.leases}
        changes = [
            Change(
                partition=name,
                revision=known[name].revision if name in known else 0,
                history=ledger.cursor.history,
                owner=owner,
                epoch=next_epoch(known[name].epoch if name in known else 0, ledger.cursor.history),
                ttl_s=8.0,
            )
            for name in partitions
        ]
        outcomes = await self.store.swap(GROUP, changes)
        assert [outcome.why for outcome in outcomes] == [""] * len(partitions)
        return [outcome.lease for outcome in outcomes if outcome.lease is not None]

    async def lease(self, partition: str, store: AzureBlobStore | None = None) -> Lease:
        ledger = await (store or self.store).peek(GROUP)
        assert ledger is not None
        return {lease.partition: lease for lease in ledger.leases}[partition]

    # --- theirs
    async def listed(self) -> dict[str, dict[str, Any]]:
        return {found["partition_id"]: found for found in await self.official.list_ownership(**NAMES)}

    async def take(self, owner_id: str, *partitions: str) -> Sequence[str]:
        """As a processor of Azure's make claims, steals or renews; which of these it got."""
        known = await self.listed()
        wanted = [{**NAMES, "partition_id": name, **known.get(name, {}), "owner_id": owner_id} for name in partitions]
        return [found["partition_id"] for found in await self.official.claim_ownership(wanted)]

    async def checkpoint(self, partition: str, sequence: int) -> None:
        await self.official.update_checkpoint(
            {**NAMES, "partition_id": partition, "offset": str(sequence * 100), "sequence_number": sequence}
        )

    # --- blobs
    def metadata(self, name: str) -> dict[str, str]:
        with self.azurite.container(self.name) as container:
            return dict(container.get_blob_client(f"{ROOT}/{name}").get_blob_properties().metadata)

    def names(self) -> set[str]:
        with self.azurite.container(self.name) as container:
            return set(container.list_blob_names())

    def write(self, name: str, metadata: dict[str, str]) -> None:
        with self.azurite.container(self.name) as container:
            container.get_blob_client(name).upload_blob(b"", metadata=metadata)

    def delete(self, *names: str) -> None:
        with self.azurite.container(self.name) as container:
            for name in names:
                container.delete_blob(name)


@asynccontextmanager
async def place(azurite: Azurite) -> AsyncIterator[Place]:
    container = azurite.make_container()
    store = from_url(azurite.url(container, more=f"&peer_expiry_s={EXPIRY_S}"))
    official = BlobCheckpointStore.from_connection_string(azurite.connection_string, container)
    here = Place(azurite, container, store, official)
    try:
        async with official:
            yield here
    finally:
        await here.store.aclose()


def scene(test: Callable[[Place], Awaitable[None]]) -> Callable[[Azurite], None]:
    """Make an async test of a place into a plain one, with an empty container."""

    async def play(azurite: Azurite) -> None:
        async with place(azurite) as here:
            await test(here)

    def played(azurite: Azurite) -> None:
        asyncio.run(play(azurite))

    played.__name__, played.__qualname__, played.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return played


def at(sequence: int, *, epoch: int, ordinal: int | None = None, partition: str = "0") -> Checkpoint:
    """The checkpoint after this event, of Event Hubs: its offset is another number than its sequence."""
    position = Position(str(sequence * 100), sequence)
    return Checkpoint(
        partition=partition, epoch=epoch, position=position, ordinal=sequence + 1 if ordinal is None else ordinal
    )


def strangers(ledger: Ledger) -> dict[str, Member]:
    return {member.id: member for member in ledger.members if member.foreign}
