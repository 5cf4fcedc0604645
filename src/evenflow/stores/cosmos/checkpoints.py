"""Checkpoints in a lease container: in the very documents that processors of another make read and write.

Nobody but the owner writes a continuation, whatever its make, and everybody on condition that nobody has written since.
So one that another make has left counts as it is; it becomes ours with the swap that makes one of ours the owner.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import structs

from evenflow.errors import LeaseLost, StoreUnavailable
from evenflow.model import Checkpoint, Outcome, epoch_parts
from evenflow.stores import rules
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos import layouts
from evenflow.stores.cosmos.group_record import TRIES, Charters
from evenflow.stores.cosmos.ranges import go_on_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import PartitionId
    from evenflow.stores.cosmos.group_cache import Held, Room
    from evenflow.stores.cosmos.swaps import Leases

LANE, KIND = "progress", "write checkpoint"


class Progress:
    def __init__(self, charters: Charters, leases: Leases) -> None:
        self._charters = charters
        self._leases = leases

    async def seal(
        self, room: Room, partition: PartitionId, epoch: int, default: Checkpoint, *, unplanned: bool
    ) -> Checkpoint:
        async with room.turn(partition):
            held, is_fresh = room.held.get(partition), False
            for _ in range(TRIES):
                if not is_fresh and (held is None or not _is_sealed_below(held, epoch)):
                    held, is_fresh = await self._leases.look_at(room, partition), True
                if (error := room.damaged.get(partition)) is not None:
                    raise LeaseLost(str(error)) from error
                if held is not None and held.document is not None and held.note is None:
                    raise _is_theirs(partition, held)
                is_made = held is None or held.document is None
                if is_made or room.charter is None:
                    await self._charters.refresh(room)  # what makes a record must be of this history
                record = room.record_of(held)
                if record is None and (covering := room.places.covers.get(partition)):
                    place = go_on_after(covering, room.spans[partition], default.position)
                    default = structs.replace(default, position=place)
                wanted = _sealed(room, record, partition, epoch, default, unplanned=unplanned)
                if wanted is None:
                    assert record is not None
                    return wire.own(record)
                if await self._write(room, held, wanted, room.lineage if is_made else ""):
                    if is_made:
                        # It may have come late, and is void then: its start may be the end of the log.
                        await self._charters.refresh(room)
                        _sealed(room, None, partition, epoch, default, unplanned=unplanned)
                    return wire.own(wanted)
                held, is_fresh = await self._leases.look_at(room, partition), True
        raise _too_many(partition)

    async def commit(self, room: Room, checkpoint: Checkpoint) -> Outcome:
        partition = checkpoint.partition
        refused = Outcome(partition=partition, ok=False, why="epoch")
        async with room.turn(partition):
            held, is_fresh = room.held.get(partition), False
            for _ in range(TRIES):
                if partition in room.damaged:
                    return refused
                record = room.record_of(held)
                if not room.may_commit(record, checkpoint):
                    if is_fresh:
                        return refused
                    held, is_fresh = await self._look(room, held, checkpoint), True
                    continue
                if rules.is_late_commit(record, checkpoint):
                    return Outcome(partition=partition, ok=True)
                if await self._write(room, held, rules.commit(record, checkpoint, time.time())):  # noqa: TID251
                    return Outcome(partition=partition, ok=True)
                held, is_fresh = await self._look(room, held, checkpoint), True
        raise _too_many(partition)

    def all(self, room: Room) -> Sequence[Checkpoint]:
        """Also those that processors of another make have left."""
        found = []
        for partition, held in room.held.items():
            if held.note is not None:
                if (record := room.record_of(held)) is not None:
                    found.append(wire.own(record))
            elif held.document is not None:
                position = layouts.position_in(held.document)
                if position is not None:
                    at = held.document.written_at
                    found.append(Checkpoint(partition=partition, epoch=0, position=position, ordinal=0, changed_at=at))
        return found

    async def _look(self, room: Room, known: Held | None, checkpoint: Checkpoint) -> Held | None:
        """As it is now; and at the group, where the commit may restore what is missing or older.

        Where a record that this client knew is gone, and nobody has deleted the group, the store has lost writes.
        """
        held = await self._leases.look_at(room, checkpoint.partition)
        record = held.note.record if held is not None and held.note is not None else None
        if record is None or record.epoch < checkpoint.epoch:
            await self._charters.refresh(room)
        if held is None and known is not None and room.exists and not room.third_parties.are_present:
            epoch = _newest_epoch(known)
            if epoch >= room.epoch_floor:
                # Of the history in which it was known: a commit that restores has an epoch of a later one.
                await self._charters.lose(room, epoch_parts(epoch)[0])
        return held

    async def _write(self, room: Room, held: Held | None, record: Checkpoint, made_in: str = "") -> bool:
        """False when somebody else has written meanwhile."""
        at = time.time()  # noqa: TID251
        note = held.note if held is not None else None
        lease = held.lease if held is not None and note is not None else None
        timestamp = room.timestamp(lease, at=at)
        if note is None:
            note = wire.LeaseNote(partition=record.partition, timestamp=timestamp)
        robbed = room.robbed(held) if held is not None else None
        wanted = structs.replace(note, timestamp=timestamp, record=wire.own(record), robbed=robbed, made_in=made_in)
        return await self._leases.write(room, held, wanted, LANE, KIND) is not None


def _sealed(
    room: Room,
    record: Checkpoint | None,
    partition: PartitionId,
    epoch: int,
    default: Checkpoint,
    *,
    unplanned: bool,
) -> Checkpoint | None:
    at, history, floor = time.time(), room.history, room.epoch_floor  # noqa: TID251
    return rules.seal(record, partition, epoch, default, at, unplanned=unplanned, history=history, floor=floor)


def _is_sealed_below(held: Held, epoch: int) -> bool:
    """What is known of it says that the seal will write, so that the write finds out whether it is so."""
    record = held.note.record if held.note is not None else None
    return held.note is not None and (record is None or record.epoch < epoch)


def _newest_epoch(held: Held) -> int:
    record = held.note.record if held.note is not None else None
    return max(held.lease.epoch if held.lease is not None else 0, record.epoch if record is not None else 0)


def _is_theirs(partition: PartitionId, held: Held) -> LeaseLost:
    owner = held.lease.owner.id if held.lease is not None and held.lease.owner is not None else "nobody"
    return LeaseLost(
        f"Partition {partition!r} belongs to {owner!r} now, and was last written by a processor of another make, or by"
        " hand."
    )


def _too_many(partition: PartitionId) -> StoreUnavailable:
    return StoreUnavailable(f"The checkpoint of {partition!r} is being changed by too many at once. Try again.")
