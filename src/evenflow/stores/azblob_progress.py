"""Checkpoints in an Azure Blob store: the very blobs that Azure's processors read and write.

Ours are written on condition that nobody else has written meanwhile. Theirs are not: a checkpoint of theirs drops what
is ours. It counts when its writer was the owner in between; when it comes late, after its partition was taken from it,
the present owner's progress is written again over it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json, structs

from evenflow.errors import Corrupt, LeaseLost, StoreUnavailable
from evenflow.model import Checkpoint, Outcome, Position, epoch_parts, show_epoch
from evenflow.stores import azblob_wire as wire
from evenflow.stores import rules
from evenflow.stores.azblob_names import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Group, PartitionId
    from evenflow.stores.azblob_charter import Charters
    from evenflow.stores.azblob_leases import Leases
    from evenflow.stores.azblob_link import Blob, Link
    from evenflow.stores.azblob_room import Room

TRIES = 50
LANE = "progress"


class _Kept(NamedTuple):
    """A record as its blob has it."""

    record: Checkpoint
    etag: str
    notes_at: str


class Progress:
    def __init__(self, link: Link, charters: Charters, leases: Leases) -> None:
        self._link = link
        self._charters = charters
        self._leases = leases
        self._kept: dict[tuple[Group, PartitionId], _Kept] = {}
        """As this client wrote them last."""
        self._turns: dict[tuple[Group, PartitionId], asyncio.Lock] = {}

    def forget(self, group: Group) -> None:
        for key in [key for key in self._kept if key[0] == group]:
            del self._kept[key]

    async def seal(
        self, room: Room, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool
    ) -> Checkpoint:
        async with self._turn(room, partition):
            for _ in range(TRIES):
                blob = await self._link.head(room.names.record(partition))
                kept = await self._read(room, partition, blob) if blob is not None else None
                standing = kept.record if kept is not None else None
                floor, floor_etag = await self._leases.floor(room, partition)
                if blob is not None and kept is None:
                    standing = self._rewritten(room, partition, epoch, blob, floor, default)
                at = time.time()  # noqa: TID251
                wanted = rules.sealed(standing, partition, epoch, default, at, unplanned=unplanned)
                if wanted is None:
                    assert standing is not None
                    if kept is not None:
                        return _own(standing)
                    wanted = standing  # a late checkpoint of a processor of another make is written over
                if wanted.epoch < floor.epoch:
                    raise _is_over(partition, epoch, floor.epoch)
                sealed = structs.replace(floor, sealed=structs.replace(wanted, notes={}))
                if not await self._leases.set_floor(room, partition, sealed, floor_etag):
                    continue
                if await self._write(room, wanted, blob.etag if blob is not None else "", kept):
                    return _own(wanted)
        raise _too_many(partition)

    async def commit(self, room: Room, checkpoint: Checkpoint) -> Outcome:
        partition = checkpoint.partition
        async with self._turn(room, partition):
            kept = self._kept.get((room.group, partition))
            etag = kept.etag if kept is not None else ""
            for attempt in range(TRIES):
                if attempt or kept is None or kept.record.epoch != checkpoint.epoch:
                    blob = await self._link.head(room.names.record(partition))
                    if blob is None:
                        await self._miss(room, checkpoint)
                        return Outcome(partition=partition, ok=False, why="epoch")
                    kept, etag = await self._read(room, partition, blob), blob.etag
                    if kept is None and (kept := await self._mine(room, checkpoint)) is None:
                        return Outcome(partition=partition, ok=False, why="epoch")
                if kept is None or not rules.may_commit(kept.record, checkpoint):
                    return Outcome(partition=partition, ok=False, why="epoch")
                if rules.overtaken(kept.record, checkpoint):
                    return Outcome(partition=partition, ok=True)
                wanted = rules.committed(kept.record, checkpoint, time.time())  # noqa: TID251
                if await self._write(room, wanted, etag, kept):
                    return Outcome(partition=partition, ok=True)
        raise _too_many(partition)

    async def all(self, room: Room) -> Sequence[Checkpoint]:
        found = []
        for blob in await self._link.list(room.names.records):
            partition = plain(blob.name.removeprefix(room.names.records))
            kept = await self._read(room, partition, blob)
            if kept is not None:
                found.append(kept.record)
            elif (position := wire.foreign_position(blob.metadata)) is not None:
                found.append(
                    Checkpoint(partition=partition, epoch=0, position=position, ordinal=0, changed_at=blob.modified_at)
                )
        return found

    # --- what others have left
    def _rewritten(
        self,
        room: Room,
        partition: PartitionId,
        epoch: int,
        blob: Blob,
        floor: wire.Floor,
        default: Checkpoint,
    ) -> Checkpoint:
        """The record that a checkpoint of a processor of another make stands for, for whoever seals now."""
        mine = self._kept.get((room.group, partition))
        if mine is not None and mine.record.epoch == epoch:
            return mine.record
        theirs, last = wire.foreign_position(blob.metadata), floor.sealed
        base = last or Checkpoint(partition=partition, epoch=0, position=Position(""), ordinal=0)
        if theirs is None:
            position, step = (last or default).position, 0
        elif last is None or floor.foreign or _distance(last.position, theirs) is None:
            position, step = theirs, max(_distance(base.position, theirs) or 1, 1)
        else:
            # The owner before was ours: nothing that came in between takes its progress back.
            step = max(_distance(last.position, theirs) or 0, 0)
            position = theirs if step else last.position
        behind = _distance(position, default.position)
        return structs.replace(
            base,
            partition=partition,
            # Memory of before a loss counts only against a checkpoint that is behind it.
            epoch=base.epoch if behind is not None and behind > 0 else max(base.epoch, epoch - 1),
            position=position,
            ordinal=base.ordinal + step,
            changed_at=blob.modified_at,
        )

    async def _mine(self, room: Room, checkpoint: Checkpoint) -> _Kept | None:
        """What this client wrote last, if the lease says that it is still the owner's turn; None otherwise."""
        kept = self._kept.get((room.group, checkpoint.partition))
        if kept is None or kept.record.epoch != checkpoint.epoch:
            return None
        found = await self._leases.look_at(room, checkpoint.partition)
        return kept if found is not None and not found.bare and found.lease.epoch == checkpoint.epoch else None

    async def _miss(self, room: Room, checkpoint: Checkpoint) -> None:
        """A record that this client wrote is gone. Unless the group was deleted, the store has lost writes."""
        if self._kept.pop((room.group, checkpoint.partition), None) is not None:
            await self._charters.refresh(room)
            if room.exists:
                await self._charters.lose(room, epoch_parts(checkpoint.epoch)[0])

    # --- blobs
    async def _read(self, room: Room, partition: PartitionId, blob: Blob) -> _Kept | None:
        """None when whoever wrote it last was of another make."""
        note = wire.record_note(blob.metadata, blob.name)
        if note is None:
            return None
        record = note.record
        if note.notes_at:
            found = await self._link.fetch(room.names.noted(partition, note.notes_at))
            if found is None:
                latest = await self._link.head(blob.name)
                if latest is not None and latest.etag != blob.etag:
                    return await self._read(room, partition, latest)
                raise Corrupt(f"The notes of checkpoint {blob.name!r} are gone: somebody has deleted them.")
            record = structs.replace(record, notes=json.decode(found[1]))
        return _Kept(record, blob.etag, note.notes_at)

    async def _write(self, room: Room, record: Checkpoint, etag: str, before: _Kept | None) -> bool:
        """False when somebody else has written meanwhile."""
        partition, notes_at = record.partition, ""
        metadata = wire.record_metadata(record)
        if sum(map(len, metadata.values())) > wire.METADATA_BYTES_MAX:
            notes_at = secrets.token_hex(8)
            await self._link.create(room.names.noted(partition, notes_at), {}, json.encode(record.notes))
            metadata = wire.record_metadata(record, notes_at)
        name = room.names.record(partition)
        written = await (self._link.note(name, metadata, etag, LANE) if etag else self._link.create(name, metadata))
        stale = before.notes_at if before is not None and written is not None else "" if written else notes_at
        if written is not None:
            self._kept[room.group, partition] = _Kept(_own(record), written, notes_at)
        if stale:
            await self._link.delete(room.names.noted(partition, stale))
        return written is not None

    def _turn(self, room: Room, partition: PartitionId) -> asyncio.Lock:
        """What one client does to one record it does in turn."""
        return self._turns.setdefault((room.group, partition), asyncio.Lock())


def _distance(first: Position, second: Position) -> int | None:
    """How many events further the second is, where both can be ordered."""
    if first.sequence is None or second.sequence is None:
        return None
    return second.sequence - first.sequence


def _own(record: Checkpoint) -> Checkpoint:
    """Notes are the one part of a record that can be changed in place."""
    notes: Mapping[str, object] = json.decode(json.encode(record.notes))
    return structs.replace(record, notes=dict(notes))


def _is_over(partition: PartitionId, epoch: int, floor: int) -> LeaseLost:
    return LeaseLost(
        f"Partition {partition!r} has been given away under epoch {show_epoch(floor)}, so that {show_epoch(epoch)} is"
        " over: somebody else owns it."
    )


def _too_many(partition: PartitionId) -> StoreUnavailable:
    return StoreUnavailable(f"The checkpoint of {partition!r} is being changed by too many at once. Try again.")
