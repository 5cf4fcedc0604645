"""A store whose leases are blobs of their own, in the simulated world: no two of them change in one step.

The service is simulated, and the store on it is the real one of Azure Blob Storage: each of its requests travels by
itself, may get lost or be held up, and takes effect between those of others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from evenflow.errors import StoreUnavailable
from evenflow.stores.azblob import codec as wire
from evenflow.stores.azblob.client import Blob
from evenflow.stores.azblob.names import Names
from evenflow.stores.azblob.store import AzureBlobStore
from evenflow.testing.simulated.network import StoreLine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model import Change, Checkpoint, Cursor, Group, Lease, Ledger, Member, Outcome, PartitionId
    from evenflow.stores.azblob.client import Link
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

ANSWER_S = 1.0
"""So long a client waits for one request."""


class _Entry(NamedTuple):
    blob: Blob
    content: bytes


class Service:
    """One container of blobs, each request in one step."""

    def __init__(self, wall: Callable[[], float], watch: Callable[[Blob | None, Blob], None] | None = None) -> None:
        """`watch` is told of every blob that is written, as it was and as it is."""
        self.wall = wall
        self._watch = watch
        self._blobs: dict[str, _Entry] = {}
        self._etags = 0
        self.last_answer = "nothing"

    async def head(self, name: str) -> Blob | None:
        return self.at(name)

    async def fetch(self, name: str) -> tuple[Blob, bytes] | None:
        return self._blobs.get(name)

    async def list(self, prefix: str) -> Sequence[Blob]:
        return self.under(prefix)

    async def folders(self, prefix: str) -> Sequence[str]:
        rests = [name.removeprefix(prefix).partition("/") for name in self._blobs if name.startswith(prefix)]
        return sorted({f"{prefix}{part}/" for part, slash, _ in rests if slash})

    async def create(self, name: str, metadata: Mapping[str, str], content: bytes = b"") -> str | None:
        return None if name in self._blobs else self._write(name, metadata, content)

    async def replace(self, name: str, metadata: Mapping[str, str], content: bytes, etag: str) -> str | None:
        return self._write(name, metadata, content) if self._is_at(name, etag) else None

    async def note(self, name: str, metadata: Mapping[str, str], etag: str, lane: str = "heartbeats") -> str | None:
        return self._write(name, metadata, self._blobs[name].content) if self._is_at(name, etag) else None

    async def delete(self, name: str, etag: str | None = None) -> None:
        if etag is None or self._is_at(name, etag):
            self._blobs.pop(name, None)

    async def append(self, name: str, lines: bytes) -> int:
        content = (self._blobs[name].content if name in self._blobs else b"") + lines
        self._write(name, {}, content)
        return content.count(b"\n")

    async def cut(self, name: str, lines_kept: int) -> None:
        self._write(name, {}, b"".join(self._blobs[name].content.splitlines(keepends=True)[-lines_kept:]))

    async def aclose(self) -> None:
        """It stays."""

    # --- for whoever looks on
    def at(self, name: str) -> Blob | None:
        found = self._blobs.get(name)
        return found.blob if found is not None else None

    def under(self, prefix: str) -> Sequence[Blob]:
        return [found.blob for name, found in sorted(self._blobs.items()) if name.startswith(prefix)]

    # --- inside
    def _is_at(self, name: str, etag: str) -> bool:
        return name in self._blobs and self._blobs[name].blob.etag == etag

    def _write(self, name: str, metadata: Mapping[str, str], content: bytes) -> str:
        before = self.at(name)
        self._etags += 1
        after = Blob(name, str(self._etags), dict(metadata), float(int(self.wall())))
        self._blobs[name] = _Entry(after, content)
        if self._watch is not None:
            self._watch(before, after)
        return after.etag


class Blobs:
    """The service of one world, and what it shows of the group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = Names(world.group)
        self._service = Service(world.wall, self._written)

    def store_of(self, process: Process) -> BlobStore:
        return BlobStore(self._world, process, self._service)

    @property
    def history(self) -> int:
        found = self._service.at(self._names.group)
        return wire.read(found.metadata[wire.OURS], wire.Facts, found.name).history if found is not None else 0

    def leases(self) -> dict[PartitionId, Lease]:
        found = map(_lease, self._service.under(self._names.leases))
        return {lease.partition: lease for lease in found if lease is not None}

    def record(self, partition: PartitionId) -> Checkpoint | None:
        return _record(self._service.at(self._names.record(partition)))

    def _written(self, before: Blob | None, after: Blob) -> None:
        if after.name.startswith(self._names.leases):
            lease, former = _lease(after), _lease(before)
            if lease is not None and lease != former:  # a renewal is nobody's move
                self._world.lease_written(former, lease)
        elif after.name.startswith(self._names.records):
            record = _record(after)
            if record is not None:
                self._world.record_seen(_record(before), record)


def _lease(blob: Blob | None) -> Lease | None:
    note = wire.lease_note(blob.metadata, blob.name) if blob is not None else None
    return note.lease if note is not None else None


def _record(blob: Blob | None) -> Checkpoint | None:
    note = wire.record_note(blob.metadata, blob.name) if blob is not None else None
    return note.record if note is not None else None


class _Line(StoreLine):
    """The container as one process reaches it."""

    def __init__(self, world: World, process: Process, service: Service) -> None:
        super().__init__(world, process)
        self._service = service
        self.last_answer = "nothing"

    def wall(self) -> float:
        return self._process.clock.wall()

    async def head(self, name: str) -> Blob | None:
        answer: Blob | None = await self._sent("head", name)
        return answer

    async def fetch(self, name: str) -> tuple[Blob, bytes] | None:
        answer: tuple[Blob, bytes] | None = await self._sent("fetch", name)
        return answer

    async def list(self, prefix: str) -> Sequence[Blob]:
        answer: Sequence[Blob] = await self._sent("list", prefix)
        return answer

    async def create(self, name: str, metadata: Mapping[str, str], content: bytes = b"") -> str | None:
        answer: str | None = await self._sent("create", name, metadata, content)
        return answer

    async def replace(self, name: str, metadata: Mapping[str, str], content: bytes, etag: str) -> str | None:
        answer: str | None = await self._sent("replace", name, metadata, content, etag)
        return answer

    async def note(self, name: str, metadata: Mapping[str, str], etag: str, lane: str = "heartbeats") -> str | None:
        answer: str | None = await self._sent("note", name, metadata, etag)
        return answer

    async def delete(self, name: str, etag: str | None = None) -> None:
        await self._sent("delete", name, etag)

    async def append(self, name: str, lines: bytes) -> int:
        answer: int = await self._sent("append", name, lines)
        return answer

    async def aclose(self) -> None:
        """The service stays."""

    async def _sent(self, kind: str, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(kind, getattr(self._service, kind), *arguments)
        except TimeoutError as error:
            raise StoreUnavailable(f"the simulated service has not answered for {ANSWER_S} s") from error


class BlobStore(AzureBlobStore):
    """The real store of one process; the world sees what it is told."""

    def __init__(self, world: World, process: Process, service: Service) -> None:
        self._world, self._process, self._service = world, process, service
        super().__init__("https://simulated.blob.core.windows.net", "simulated", credential="x")

    def _line(self) -> Link:
        return cast("Link", _Line(self._world, self._process, self._service))

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        sent_s = self._world.timeline.now_s
        ledger = await super().heartbeat(group, member, since)
        owned = [held.lease for held in self._room(group).of(ledger.me.owner)] if ledger.me is not None else []
        self._world.heartbeat_answered(self._process, sent_s, owned)
        return ledger

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        self._world.swap_sent(self._process, changes)
        return await super().swap(group, changes)
