"""From what is given as `checkpoint_store` to a store of this project.

A store decides on ownership *and* progress in one step, and an official CheckpointStore cannot: its `update_checkpoint`
overwrites whatever is there. So only those are taken whose place this project can use itself.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evenflow.compat.checkpointstore.progress import seal_unowned
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
    """The store, and whether it was opened here and is to be closed here. `peers_expire_s` is when official clients
    that share it take an owner for dead."""
    if given is None:
        return MemoryStore(), True
    given = _behind(given)
    if isinstance(given, str):
        return open_store(given), True
    if isinstance(given, Store):
        return given, False
    if type(given).__name__ == BLOB_STORE:
        return _blob_store(given, peers_expire_s), True
    raise Misconfigured(
        f"checkpoint_store: a {type(given).__name__} cannot be used: its checkpoints are not compared before they are"
        " written, so that an old owner could move them back. Give a store of evenflow, or its URL: 'sqlite:PATH',"
        " 'postgresql://...', 'redis://...'; or a BlobCheckpointStore, whose container evenflow can use itself."
    )


def _behind(given: Any) -> Any:
    """The store that an EvenflowCheckpointStore was made for the official client of."""
    from evenflow.compat import checkpointstore

    plain = given._behind if isinstance(given, checkpointstore.EvenflowCheckpointStore) else given
    return plain._given if isinstance(plain, checkpointstore.aio.EvenflowCheckpointStore) else plain


def _blob_store(official: Any, peers_expire_s: float) -> Store:
    """The same container, in the layout that all of Azure's processors share: those that still run take part."""
    from evenflow.stores.azblob.store import AzureBlobStore

    container = official._container_client
    return AzureBlobStore(
        f"{container.scheme}://{container.primary_hostname}",
        container.container_name,
        credential=_credential(container),
        peer_expiry_s=peers_expire_s,
    )


def _credential(container: Any) -> Any:
    """A key, a SAS, or whatever gives tokens, in a form that AzureBlobStore takes."""
    found = container.credential
    if found is None:
        return container._query_str.lstrip("?")
    if hasattr(found, "account_key"):
        return {"account_name": found.account_name, "account_key": found.account_key}
    if hasattr(found, "get_token") and not inspect.iscoroutinefunction(found.get_token):
        return ThreadedCredential(found)
    return found


class Solo:
    """A store for one who reads a partition without sharing it out: leases are its own, checkpoints those of the group.

    It writes them under the epoch that it finds, and takes none: a group that reads the same partition is not fenced,
    and one that takes it later is, by its own seal, the only one who writes. A checkpoint never goes back.
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
        """Whoever opened the store closes it."""

    async def _epoch(self, group: Group, partition: PartitionId) -> int:
        if not isinstance(self._store, Operable):
            return 0
        return max((one.epoch for one in await self._store.checkpoints(group) if one.partition == partition), default=0)
