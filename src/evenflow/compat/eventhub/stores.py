"""Opens the store for a `checkpoint_store` argument.

A store of evenflow decides on ownership and checkpoints in one step. An official CheckpointStore cannot: its
`update_checkpoint` overwrites any checkpoint. So only those are accepted whose storage evenflow can use itself.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evenflow.compat.checkpointstore.checkpoints import seal_unowned
from evenflow.compat.eventhub.source import ThreadedCredential
from evenflow.errors import Misconfigured
from evenflow.ports import Operable, Store
from evenflow.stores.memory import MemoryStore
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Change, Checkpoint, Cursor, Group, Ledger, Member, Outcome, PartitionId

BLOB_STORE = "BlobCheckpointStore"


def store_of(given: Any, peers_expire_s: float = 180.0) -> tuple[Store, bool]:
    """The store, and whether it was opened here, so that the caller must close it. `peers_expire_s` is the silence
    after which official clients that share it consider an owner dead."""
    if given is None:
        return MemoryStore(), True
    given = _unwrapped(given)
    if isinstance(given, str):
        return open_store(given), True
    if isinstance(given, Store):
        return given, False
    if type(given).__name__ == BLOB_STORE:
        return _blob_store(given, peers_expire_s), True
    raise Misconfigured(
        f"checkpoint_store: {type(given).__name__} is not supported, because it overwrites checkpoints without a check,"
        " so that an old owner could move them back. Pass a store of evenflow or its URL ('sqlite:PATH',"
        " 'postgresql://...', 'redis://...'), or a BlobCheckpointStore, whose container evenflow can use itself."
    )


def _unwrapped(given: Any) -> Any:
    """The store inside an EvenflowCheckpointStore."""
    from evenflow.compat import checkpointstore

    plain = given._async_store if isinstance(given, checkpointstore.EvenflowCheckpointStore) else given
    return plain._given if isinstance(plain, checkpointstore.aio.EvenflowCheckpointStore) else plain


def _blob_store(official: Any, peers_expire_s: float) -> Store:
    """The same container, in the layout that all processors of Azure share: official clients can stay in the group."""
    from evenflow.stores.azblob.store import AzureBlobStore

    container = official._container_client
    return AzureBlobStore(
        f"{container.scheme}://{container.primary_hostname}",
        container.container_name,
        credential=_credential(container),
        peer_expiry_s=peers_expire_s,
    )


def _credential(container: Any) -> Any:
    """A key, a SAS or a token credential, in a form that AzureBlobStore accepts."""
    found = container.credential
    if found is None:
        return container._query_str.lstrip("?")
    if hasattr(found, "account_key"):
        return {"account_name": found.account_name, "account_key": found.account_key}
    if hasattr(found, "get_token") and not inspect.iscoroutinefunction(found.get_token):
        return ThreadedCredential(found)
    return found


class SinglePartitionStore:
    """The store of a receiver of one given partition: its leases are in memory, its checkpoints are the group's.

    It writes checkpoints under the epoch of the stored record and claims none. So it does not fence a group that reads
    the same partition; an instance that claims the partition later fences it. A checkpoint never goes back.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases = MemoryStore()
        self._found: dict[PartitionId, int] = {}

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        return await self._leases.heartbeat(group, member, since)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        return await self._leases.swap(group, changes)

    async def seal(
        self, group: Group, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        found = await self._epoch(group, partition)
        record = await seal_unowned(self._store, group, replace(default, partition=partition, epoch=found))
        self._found[partition] = record.epoch
        return replace(record, epoch=epoch)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        return await self._store.commit(group, [replace(one, epoch=self._found[one.partition]) for one in checkpoints])

    async def aclose(self) -> None:
        """Does nothing: the caller that opened the store closes it."""

    async def _epoch(self, group: Group, partition: PartitionId) -> int:
        if not isinstance(self._store, Operable):
            return 0
        return max((one.epoch for one in await self._store.checkpoints(group) if one.partition == partition), default=0)
