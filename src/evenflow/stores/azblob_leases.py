"""Leases in an Azure Blob store: compare and set by ETag, renewals by every beat, and floors under their epochs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import structs

from evenflow.errors import StoreUnavailable
from evenflow.model import Outcome, Owner, epoch_parts
from evenflow.stores import azblob_wire as wire
from evenflow.stores import rules
from evenflow.stores.azblob_charter import TRIES, Charters
from evenflow.stores.azblob_link import Link, together
from evenflow.stores.azblob_room import Held, Room, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.model import Change, Lease, Move, PartitionId
    from evenflow.stores.azblob_link import Blob
    from evenflow.stores.azblob_rows import Rows

LOOK_AGAIN = "look again"
LOOKS = 5
"""As often a beat looks again when what it needs has changed under its hands."""


class Leases:
    def __init__(self, link: Link, charters: Charters, rows: Rows) -> None:
        self._link = link
        self._charters = charters
        self._rows = rows

    async def renew(self, room: Room, mine: Iterable[Held], mark: int) -> None:
        """Each on condition that nobody has changed it. Who is refused finds out by the listing that follows."""
        await together(self._renew_one(room, found, mark) for found in mine)

    async def _renew_one(self, room: Room, found: Held, mark: int) -> Held | None:
        metadata = wire.lease_metadata(found.lease, mark)
        etag = await self._link.note(room.names.lease(found.lease.partition), metadata, found.etag)
        return found._replace(etag=etag, mark=mark) if etag is not None else None

    async def renew_rest(self, room: Room, owner: Owner, mark: int) -> None:
        """What the listing shows as mine is shown only if this beat has renewed it: a taker may be on its way."""
        for _ in range(LOOKS):
            rest = [found for found in room.of(owner) if found.mark != mark]
            if not rest:
                return
            for found, renewed in zip(
                rest, await together(self._renew_one(room, found, mark) for found in rest), strict=True
            ):
                await self._put(room, found.lease.partition, renewed)
        raise StoreUnavailable(f"Leases of {owner.id!r} are being changed by too many at once. Try again.")

    async def _put(self, room: Room, partition: PartitionId, found: Held | None) -> Held | None:
        """What is known now; None: look."""
        if found is None:
            blob = await self._link.head(room.names.lease(partition))
            if blob is None:
                room.held.pop(partition, None)
                return None
            if wire.lease_note(blob.metadata, blob.name) is None:
                floor = (await self.floor(room, partition))[0].epoch
                room.floors[partition] = max(floor, room.floors.get(partition, 0))
            found = room.lease_of(blob)[1]
        room.held[partition] = found
        room.saw(found.lease.revision)
        return found

    async def look_at(self, room: Room, partition: PartitionId) -> Held | None:
        """As it is now."""
        return await self._put(room, partition, None)

    async def rows(self, room: Room, changes: Sequence[Change]) -> dict[str, Row | None]:
        named = {owner for change in changes for owner in (change.owner, change.still and change.still[0]) if owner}
        names = sorted({owner.id for owner in named if owner.incarnation})
        found = await together(self._rows.row(room, name) for name in names)
        return dict(zip(names, found, strict=True))

    async def swap(self, room: Room, change: Change, rows: Mapping[str, Row | None]) -> tuple[Outcome, Move | None]:
        """One change, and what there is to tell people of it."""
        found, is_fresh, is_raised = room.held.get(change.partition), False, False
        for _ in range(TRIES):
            if (refused := self._refusal(room, change, found, rows)) and is_fresh:
                return _refused(change.partition, refused, found), None
            if not refused and not is_raised:
                refused = await self._raise_floor(room, change, found)
                if refused and refused != LOOK_AGAIN:
                    return _refused(change.partition, refused, room.held.get(change.partition)), None
                is_raised = not refused
            if not refused:
                after = rules.changed(change, room.number(), time.time())  # noqa: TID251
                if await self._write(room, after, found):
                    return await self._swapped(room, change, found.lease if found else None, after)
            found, is_fresh = await self._put(room, change.partition, None), True
        raise _too_many("lease", change.partition)

    def _refusal(self, room: Room, change: Change, found: Held | None, rows: Mapping[str, Row | None]) -> str:
        lease = found.lease if found is not None else None
        return rules.refusal(change, lease, room.history, lambda owner: room.mark_of(owner, found, rows.get(owner.id)))

    async def _write(self, room: Room, after: Lease, found: Held | None) -> bool:
        """False when the lease is not as it was found."""
        name, metadata = room.names.lease(after.partition), wire.lease_metadata(after)
        etag = await (self._link.note(name, metadata, found.etag) if found else self._link.create(name, metadata))
        if etag is not None:
            room.held[after.partition] = Held(after, etag, 0, bare=False)
            return True
        there = await self._put(room, after.partition, None)
        return there is not None and there.lease == after  # it took effect, and only the answer was lost

    async def _swapped(
        self, room: Room, change: Change, before: Lease | None, after: Lease
    ) -> tuple[Outcome, Move | None]:
        loser = before.owner if before is not None else None
        if loser is not None and loser.incarnation == 0 and change.still is None and _is_ours(change.owner):
            room.strangers.rob(after.partition, loser.id, after.epoch)
            shown = structs.replace(after, settled=False)
            return Outcome(partition=after.partition, ok=True, lease=shown), rules.move(before, after)
        if rules.handed_to(before, change) is not None and change.owner is not None and _is_ours(change.owner):
            row = await self._rows.row(room, change.owner.id)
            if row is None or row.leaving or row.member.owner != change.owner:
                # It looked for leases that name it before this one did, and has left: it would wait for nobody.
                return await self._take_back(room, after), None
        return Outcome(partition=after.partition, ok=True, lease=after), rules.move(before, after)

    async def _take_back(self, room: Room, lease: Lease) -> Outcome:
        free = structs.replace(
            lease,
            owner=None,
            epoch=lease.epoch + 1,
            revision=room.number(),
            ttl_s=0.0,
            changed_at=time.time(),  # noqa: TID251
        )
        for _ in range(TRIES):
            floor, etag = await self.floor(room, lease.partition)
            raised = structs.replace(floor, epoch=max(floor.epoch, free.epoch))
            if await self.set_floor(room, lease.partition, raised, etag):
                break
        await self._write(room, free, room.held[lease.partition])
        return _refused(lease.partition, "owner", room.held.get(lease.partition))

    # --- floors
    async def floor(self, room: Room, partition: PartitionId) -> tuple[wire.Floor, str]:
        """And its ETag, "" when there is none yet."""
        blob = await self._link.head(room.names.floor(partition))
        if blob is None:
            return wire.Floor(), ""
        return wire.read(blob.metadata.get(wire.OURS, ""), wire.Floor, blob.name), blob.etag

    async def set_floor(self, room: Room, partition: PartitionId, floor: wire.Floor, etag: str) -> bool:
        name, metadata = room.names.floor(partition), {wire.OURS: wire.text_of(floor)}
        written = await (self._link.note(name, metadata, etag) if etag else self._link.create(name, metadata))
        return written is not None

    async def _raise_floor(self, room: Room, change: Change, found: Held | None) -> str:
        """Before the swap, so that its epoch is never given again. What refuses the change; "": nothing does."""
        partition = change.partition
        is_foreign = found is not None and (found.bare or not _is_ours(found.lease.owner))
        for _ in range(TRIES):
            floor, etag = await self.floor(room, partition)
            if found is None and _has_had_a_lease(floor, change):
                if await self._put(room, partition, None) is not None:
                    return LOOK_AGAIN  # somebody else has just made it
                await self._charters.lose(room, change.history)
                return "history"
            if floor.epoch > change.epoch or (found is not None and found.bare and floor.epoch == change.epoch):
                if found is not None:
                    room.floors[partition] = max(floor.epoch, room.floors.get(partition, 0))
                    lease = structs.replace(found.lease, epoch=floor.epoch)
                    room.held[partition] = found._replace(lease=lease)
                return "revision"
            raised = structs.replace(floor, epoch=change.epoch, foreign=is_foreign)
            if await self.set_floor(room, partition, raised, etag):
                room.floors[partition] = change.epoch
                return ""
        raise _too_many("epoch", partition)

    async def learn_floors(self, room: Room, blobs: Iterable[Blob]) -> None:
        """A lease that lost what is ours has its epoch from elsewhere. That is read when it is first seen so."""
        unknown = []
        for blob in blobs:
            if wire.lease_note(blob.metadata, blob.name) is None:
                partition, found = room.lease_of(blob)
                before = room.held.get(partition)
                if before is None or not before.bare or before.lease.revision != found.lease.revision:
                    unknown.append(partition)
        for partition, (floor, _) in zip(
            unknown, await together(self.floor(room, name) for name in unknown), strict=True
        ):
            room.floors[partition] = max(floor.epoch, room.floors.get(partition, 0))


def _has_had_a_lease(floor: wire.Floor, change: Change) -> bool:
    """In this history, in which nobody has deleted the group. Who makes a lease may end between floor and lease."""
    if epoch_parts(floor.epoch)[0] < change.history:
        return False
    return floor.sealed is not None or floor.epoch > change.epoch


def _is_ours(owner: Owner | None) -> bool:
    return owner is None or owner.incarnation > 0


def _refused(partition: PartitionId, why: str, found: Held | None) -> Outcome:
    return Outcome(partition=partition, ok=False, why=why, lease=found.lease if found is not None else None)


def _too_many(what: str, partition: PartitionId) -> StoreUnavailable:
    return StoreUnavailable(f"The {what} of partition {partition!r} is being changed by too many at once. Try again.")
