"""Checkpoints in an Azure Blob store: the very blobs that Azure's processors read and write.

Ours are written on condition that nobody else has written meanwhile. Theirs are not: a checkpoint of theirs drops what
is ours. It counts when its writer was the owner in between; when it comes late, after its partition was taken from it,
the present owner's progress is written again over it.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json, structs

from evenflow.errors import Corrupt, LeaseLost, StoreUnavailable
from evenflow.model import Checkpoint, Outcome, Position, epoch_parts, show_epoch
from evenflow.stores import rules
from evenflow.stores.azblob import codec as wire
from evenflow.stores.azblob.names import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Group, Lease, Owner, PartitionId
    from evenflow.stores.azblob.client import Blob, Link
    from evenflow.stores.azblob.group_cache import Room
    from evenflow.stores.azblob.group_record import Charters
    from evenflow.stores.azblob.leases import Leases

TRIES = 50
LANE = "progress"


class _Kept(NamedTuple):
    """A record as its blob has it."""

    record: Checkpoint
    etag: str
    notes_at: str
    made_in: str = ""


class Progress:
    def __init__(self, link: Link, charters: Charters, leases: Leases) -> None:
        self._link = link
        self._charters = charters
        self._leases = leases
        self._kept: dict[tuple[Group, PartitionId], _Kept] = {}
        """As this client wrote them last."""
        self._turns: dict[tuple[Group, PartitionId], asyncio.Lock] = {}

    def forget(self, group: Group) -> None:
        for known in (self._kept, self._leases.records):
            for key in [key for key in known if key[0] == group]:
                del known[key]

    async def seal(
        self, room: Room, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool
    ) -> Checkpoint:
        async with self._turn(room, partition):
            for _ in range(TRIES):
                blob = await self._link.head(room.names.record(partition))
                kept = await self._read(room, blob) if blob is not None else None
                if room.facts is None or kept is None:
                    await self._charters.refresh(room)  # what makes a record must be of this history
                standing = kept.record if kept is not None else None
                is_void = kept is not None and _is_void(room, kept.record, kept.made_in)
                floor, floor_etag = await self._leases.floor(room, partition)
                if kept is None or is_void:
                    last = await self._last(room, partition, epoch, floor)
                    if blob is None or is_void:
                        standing = last
                    else:
                        standing = self._rewritten(room, partition, epoch, blob, last, floor, default)
                wanted = self._sealed(room, standing, partition, epoch, default, unplanned=unplanned)
                if wanted is None:
                    assert standing is not None
                    if kept is not None and not is_void:
                        return _own(standing)
                    wanted = standing  # a late checkpoint of a processor of another make is written over
                if wanted.epoch < floor.epoch:
                    raise _is_over(partition, epoch, floor.epoch)
                made_in = room.lineage if standing is None else ""
                sealed = structs.replace(
                    floor, foreign=False, sealed=structs.replace(wanted, notes={}), made_in=made_in
                )
                if not await self._leases.set_floor(room, partition, sealed, floor_etag):
                    continue
                if await self._write(room, wanted, blob.etag if blob is not None else "", kept, made_in):
                    if made_in:
                        # It may have come late, and is void then: its start may be the end of the log.
                        await self._charters.refresh(room)
                        self._sealed(room, None, partition, epoch, default, unplanned=unplanned)
                    return _own(wanted)
        raise _too_many(partition)

    def _sealed(
        self,
        room: Room,
        standing: Checkpoint | None,
        partition: PartitionId,
        epoch: int,
        default: Checkpoint,
        *,
        unplanned: bool,
    ) -> Checkpoint | None:
        at = self._link.wall()
        history, floor = room.history, room.epoch_floor
        return rules.seal(standing, partition, epoch, default, at, unplanned=unplanned, history=history, floor=floor)

    async def commit(self, room: Room, checkpoint: Checkpoint) -> Outcome:
        partition = checkpoint.partition
        async with self._turn(room, partition):
            kept = self._kept.get((room.group, partition))
            etag = kept.etag if kept is not None else ""
            for attempt in range(TRIES):
                if attempt or kept is None or kept.record.epoch != checkpoint.epoch:
                    blob = await self._link.head(room.names.record(partition))
                    kept, etag = None, ""
                    if blob is None:
                        await self._miss(room, checkpoint)
                    else:
                        kept, etag = await self._read(room, blob), blob.etag
                        if kept is None and (kept := await self._mine(room, checkpoint)) is None:
                            return Outcome(partition=partition, ok=False, why="epoch")
                    if kept is not None and kept.record.epoch < checkpoint.epoch:
                        await self._charters.refresh(room)  # only in a later history may this be
                known = kept.record if kept is not None and not _is_void(room, kept.record, kept.made_in) else None
                if not room.may_commit(known, checkpoint):
                    return Outcome(partition=partition, ok=False, why="epoch")
                if rules.is_late_commit(known, checkpoint):
                    return Outcome(partition=partition, ok=True)
                wanted = rules.commit(known, checkpoint, self._link.wall())
                if await self._write(room, wanted, etag, kept):
                    return Outcome(partition=partition, ok=True)
        raise _too_many(partition)

    async def keep(self, room: Room, owner: Owner) -> None:
        """Write again what processors of another make have written over, although it is this owner's turn.

        Whoever of them has the partition next would go on from there. Once a heartbeat, while there are such.
        """
        mine = {room.names.record(found.lease.partition): found.lease for found in room.of(owner)}
        if not mine or not room.third_parties.are_present:
            return
        with suppress(StoreUnavailable):  # the next heartbeat looks again
            for blob in await self._link.list(room.names.records):
                lease = mine.get(blob.name)
                if lease is not None and wire.OURS not in blob.metadata:
                    await self._restore(room, lease)

    async def _restore(self, room: Room, lease: Lease) -> None:
        async with self._turn(room, lease.partition):
            known = self._kept.get((room.group, lease.partition))
            blob = await self._link.head(room.names.record(lease.partition))
            if known is None or blob is None or wire.OURS in blob.metadata or known.record.epoch != lease.epoch:
                return
            if await self._mine(room, known.record) is not None:
                await self._write(room, known.record, blob.etag, known)

    async def all(self, room: Room) -> Sequence[Checkpoint]:
        if room.facts is None:
            await self._charters.refresh(room)
        found = []
        for blob in await self._link.list(room.names.records):
            kept = await self._read(room, blob)
            partition = plain(blob.name.removeprefix(room.names.records))
            if kept is not None:
                if not _is_void(room, kept.record, kept.made_in):
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
        last: Checkpoint | None,
        floor: wire.Floor,
        default: Checkpoint,
    ) -> Checkpoint:
        """The record that a checkpoint of a processor of another make stands for, for whoever seals now."""
        mine = self._kept.get((room.group, partition))
        if mine is not None and mine.record.epoch == epoch:
            return mine.record
        theirs = wire.foreign_position(blob.metadata)
        base = last or Checkpoint(partition=partition, epoch=0, position=Position(""), ordinal=0)
        if theirs is None:
            position, step = (last or default).position, 0
        elif last is None or floor.foreign or wire.OURS in blob.metadata:
            position, step = theirs, max(_distance(base.position, theirs) or 1, 1)
        else:
            # All owners since were ours: what came late takes their progress neither back nor over what was sought.
            position, step = last.position, 0
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

    async def _last(self, room: Room, partition: PartitionId, epoch: int, floor: wire.Floor) -> Checkpoint | None:
        """The record as far as it is known from elsewhere than from its blob: by the last seal, or by the lease."""
        found = room.held.get(partition)
        if found is None or found.lease.epoch != epoch:
            found = await self._leases.look_at(room, partition)
        told = [] if floor.sealed is None or _is_void(room, floor.sealed, floor.made_in) else [floor.sealed]
        if found is not None and found.record is not None and not _is_void(room, found.record):
            told.append(found.record)
        return max(told, key=lambda record: (record.epoch, record.ordinal), default=None)

    async def _mine(self, room: Room, checkpoint: Checkpoint) -> _Kept | None:
        """What this client wrote last, if the lease says that it is still the owner's turn; None otherwise."""
        kept = self._kept.get((room.group, checkpoint.partition))
        if kept is None or kept.record.epoch != checkpoint.epoch:
            return None
        found = await self._leases.look_at(room, checkpoint.partition)
        return kept if found is not None and not found.bare and found.lease.epoch == checkpoint.epoch else None

    async def _miss(self, room: Room, checkpoint: Checkpoint) -> None:
        """There is no record. Unless the group was deleted, the store has lost writes if this client made one.

        Those of the history in which it made the record: a commit that restores it has an epoch of a later one.
        """
        await self._charters.refresh(room)
        kept = self._kept.pop((room.group, checkpoint.partition), None)
        if kept is not None and room.exists and kept.record.epoch >= room.epoch_floor:
            await self._charters.lose(room, epoch_parts(kept.record.epoch)[0])

    # --- blobs
    async def _read(self, room: Room, blob: Blob) -> _Kept | None:
        """None when whoever wrote it last was of another make."""
        note = wire.record_note(blob.metadata, blob.name)
        if note is None:
            return None
        record = note.record
        if note.notes_at:
            found = await self._link.fetch(room.names.noted(record.partition, note.notes_at))
            if found is None:
                latest = await self._link.head(blob.name)
                if latest is not None and latest.etag != blob.etag:
                    return await self._read(room, latest)
                raise Corrupt(
                    f"The notes of checkpoint {blob.name!r} are gone: somebody has deleted them. Without the value"
                    f" {wire.OURS!r} in its metadata the checkpoint counts without notes: remove that, or restore"
                    f" {room.names.noted(record.partition, note.notes_at)!r}."
                )
            record = structs.replace(record, notes=json.decode(found[1]))
        return _Kept(record, blob.etag, note.notes_at, note.made_in)

    async def _write(self, room: Room, record: Checkpoint, etag: str, before: _Kept | None, made_in: str = "") -> bool:
        """False when somebody else has written meanwhile."""
        partition, notes_at = record.partition, ""
        metadata = wire.record_metadata(record, made_in=made_in)
        if sum(map(len, metadata.values())) > wire.METADATA_BYTES_MAX:
            notes_at = secrets.token_hex(8)
            await self._link.create(room.names.noted(partition, notes_at), {}, json.encode(record.notes))
            metadata = wire.record_metadata(record, notes_at, made_in)
        name = room.names.record(partition)
        written = await (self._link.note(name, metadata, etag, LANE) if etag else self._link.create(name, metadata))
        stale = before.notes_at if before is not None and written is not None else "" if written else notes_at
        if written is not None:
            kept = self._kept[room.group, partition] = _Kept(_own(record), written, notes_at, made_in)
            self._leases.records[room.group, partition] = kept.record
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


def _is_void(room: Room, record: Checkpoint, made_in: str = "") -> bool:
    """It came late: to a group that had been deleted, or by a seal when all of the group's blobs had been lost."""
    if room.facts is None:
        return False
    return record.epoch < room.facts.epoch_floor or made_in not in ("", room.facts.lineage)


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
