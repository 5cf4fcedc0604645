"""All kinds of checkpoint stores for azure-eventhub under one face: ours on each store, the official one on Azurite.

Whatever is plain code runs on threads, so that races are real there too.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from azure.eventhub.aio import CheckpointStore as AsyncCheckpointStore
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore as AsyncBlobCheckpointStore

from evenflow.compat.checkpointstore import EvenflowCheckpointStore
from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore as AsyncEvenflowCheckpointStore
from tests.servers import azurite, moto, postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    import pytest
    from azure.eventhub import CheckpointStore

Entry: TypeAlias = dict[str, Any]

NAMES = {
    "fully_qualified_namespace": "homes.servicebus.windows.net",
    "eventhub_name": "homes",
    "consumer_group": "$Default",
}
OURS = ("memory", "sqlite", "postgresql", "redis", "s3", "azblob")
STORES = (*OURS, "official")
"""The last one is the reference: what holds for ours has to hold for it."""
KINDS = [(kind, face) for kind in STORES for face in ("sync", "async")]

_numbers = count(1)


class Face:
    """Any of them, to be awaited."""

    def __init__(self, store: CheckpointStore | AsyncCheckpointStore) -> None:
        self.store = store

    async def ownership(self, **names: str) -> dict[str, Entry]:
        found = await self._ask("list_ownership", **{**NAMES, **names})
        return {entry["partition_id"]: _plain(entry) for entry in found}

    async def claim(self, *entries: Entry) -> list[Entry]:
        return [_plain(granted) for granted in await self._ask("claim_ownership", list(entries))]

    async def update(self, partition: str, offset: object, sequence: int | None, **names: str) -> None:
        where = {**NAMES, **names, "partition_id": partition}
        await self._ask("update_checkpoint", {**where, "offset": offset, "sequence_number": sequence})

    async def checkpoints(self, **names: str) -> dict[str, Entry]:
        found = await self._ask("list_checkpoints", **{**NAMES, **names})
        return {entry["partition_id"]: entry for entry in found}

    async def _ask(self, method: str, *args: Any, **names: str) -> Any:
        call = getattr(self.store, method)
        if isinstance(self.store, AsyncCheckpointStore):
            return await call(*args, **names)
        return await asyncio.to_thread(call, *args, **names)


class Shop:
    """Makes clients of one place, each as if in a process of its own, and closes them."""

    def __init__(self, kind: str, face: str, place: str) -> None:
        self.kind, self.face, self.place = kind, face, place
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Shop:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._closing.aclose()

    def client(self, **settings: Any) -> Face:
        if self.face == "async":
            opened = self._make_async(**settings)
            self._closing.push_async_callback(opened.close)
            return Face(opened)
        made = self._make_sync(**settings)
        self._closing.callback(made.close)
        return Face(made)

    def _make_async(self, **settings: Any) -> AsyncEvenflowCheckpointStore | AsyncBlobCheckpointStore:
        if self.kind == "official":
            return AsyncBlobCheckpointStore.from_connection_string(azurite.shared().connection_string, self.place)
        return AsyncEvenflowCheckpointStore(self.place, **settings)

    def _make_sync(self, **settings: Any) -> Any:
        if self.kind == "official":
            return BlobCheckpointStore.from_connection_string(azurite.shared().connection_string, self.place)
        return EvenflowCheckpointStore(self.place, **settings)


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty one."""
    if kind == "official":
        return azurite.shared_or_skip().make_container()
    if kind == "postgresql":
        server = postgres.shared_or_skip()
        return f"{server.url()}?schema={server.fresh()}"
    if kind == "s3":
        s3 = moto.shared()
        return s3.url(s3.fresh())
    if kind == "azblob":
        return azurite.shared_or_skip().url()
    if kind == "redis":
        found: str = request.getfixturevalue("redis_url")
        return found
    return f"sqlite:{tmp_path / 'store'}" if kind == "sqlite" else f"memory:checkpointstore-{next(_numbers)}"


def _plain(found: Entry) -> Entry:
    """Blobs have their etag in quotes, but not where they are listed; and Azurite lists an empty text as none."""
    return {**found, "owner_id": found["owner_id"] or "", "etag": found["etag"].strip('"')}


def entry(partition: str, owner: str, **rest: Any) -> Entry:
    return {**NAMES, "partition_id": partition, "owner_id": owner, **rest}


def play(shop: Shop, scene: Callable[[Shop], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with shop:
            await scene(shop)

    asyncio.run(run())
