"""Leases in an Azure Blob store: compare and set by ETag, renewals by each heartbeat, floors under their epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from evenflow.errors import StoreUnavailable
from evenflow.model import Outcome, Owner, restore_epoch
from evenflow.stores import rules
from evenflow.stores.azblob import codec as wire
from evenflow.stores.azblob.group_cache import Held, Room, Row
from evenflow.stores.azblob.group_record import TRIES, Charters
from evenflow.stores.ledgers import wait_for_all
from evenflow.stores.third_party import DisplacedOwner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.model import Change, Checkpoint, Group, Lease, Move, PartitionId
    from evenflow.stores.azblob.client import Blob, Link
    from evenflow.stores.azblob.members import Rows

LOOK_AGAIN = "look again"
LOOKS = 5
"""As often a heartbeat looks again when what it needs has changed under its hands."""


class Leases:
    def __init__(self, link: Link, charters: Charters, rows: Rows) -> None:
        self._link = link
        self._charters = charters
        self._rows = rows
        self.records: dict[tuple[Group, PartitionId], Checkpoint] = {}
        """As this client committed them last."""

    async def renew(self, room: Room, mine: Iterable[Held], mark: int) -> None:
        """Each on condition that nobody has changed it. Who is refused finds out by the listing that follows."""
        await wait_for_all(self._renew_one(room, found, mark) for found in mine)

    async def _renew_one(self, room: Room, found: Held, mark: int) -> Held | None:
        now = found._replace(mark=mark, robbed=room.robbed(found), record=self._record(room, found))
        metadata = wire.lease_metadata(now.lease, mark, now.robbed, now.record)
        etag = await self._link.note(room.names.lease(found.lease.partition), metadata, found.etag)
        return now._replace(etag=etag) if etag is not None else None

    def _record(self, room: Room, found: Held) -> Checkpoint | None:
        """What a lease tells of its partition's progress: what this client has committed under it, or what it told."""
        mine = self.records.get((room.group, found.lease.partition))
        return mine if mine is not None and mine.epoch == found.lease.epoch else found.record

    async def renew_rest(self, room: Room, owner: Owner, mark: int) -> None:
        """What the listing shows as mine is shown only if this heartbeat has renewed it: a taker may be on its way."""
        for _ in range(LOOKS):
            rest = [found for found in room.of(owner) if found.mark != mark]
            if not rest:
                return
            for found, renewed in zip(
                rest, await wait_for_all(self._renew_one(room, found, mark) for found in rest), strict=True
            ):
                await self._put(room, found.lease.partition, renewed)
        raise StoreUnavailable(f"Leases of {owner.id!r} are being changed by too many at once. Try again.")

    async def _put(self, room: Room, partition: PartitionId, found: Held | None) -> Held | None:
        """What is known now; None: look."""
        if found is None:
            blob = await self._link.head(room.names.lease(partition))
            if blob is None:
                room.see(partition, None)
                return None
            if wire.lease_note(blob.metadata, blob.name) is None:
                floor = (await self.floor(room, partition))[0].epoch
                room.floors[partition] = max(floor, room.floors.get(partition, 0))
            found = room.lease_of(blob)[1]
        room.see(partition, found)
        room.saw(found.lease.revision)
        return found

    async def look_at(self, room: Room, partition: PartitionId) -> Held | None:
        """As it is now."""
        return await self._put(room, partition, None)

    async def rows(self, room: Room, changes: Sequence[Change]) -> dict[str, Row | None]:
        named = {owner for change in changes for owner in (change.owner, change.still and change.still[0]) if owner}
        names = sorted({owner.id for owner in named if owner.incarnation})
        found = await wait_for_all(self._rows.row(room, name) for name in names)
        return dict(zip(names, found, strict=True))

    async def swap(self, room: Room, change: Change, rows: Mapping[str, Row | None]) -> tuple[Outcome, Move | None]:
        """One change, and what there is to tell people of it."""
        found, is_fresh, is_raised, raised = room.held.get(change.partition), False, False, ""
        for _ in range(TRIES):
            if (refused := self._refusal(room, change, found, rows)) and is_fresh:
                return _refused(change.partition, refused, found), None
            if not refused and not is_raised:
                refused, raised = await self._raise_floor(room, change, found, raised)
                if refused and refused != LOOK_AGAIN:
                    return _refused(change.partition, refused, room.held.get(change.partition)), None
                is_raised = not refused
            if not refused:
                after = rules.lease_after(change, room.number(), self._link.wall())
                if await self._write(room, after, found, self._robbed(room, change, found)):
                    return await self._swapped(room, change, found.lease if found else None, after)
            found, is_fresh = await self._put(room, change.partition, None), True
            # Since the floor was raised somebody may have had this epoch, and one of another make has dropped it.
            is_raised = is_raised and found is not None and not found.bare
        raise _too_many("lease", change.partition)

    def _refusal(self, room: Room, change: Change, found: Held | None, rows: Mapping[str, Row | None]) -> str:
        lease = found.lease if found is not None else None
        return rules.why_refused(
            change, lease, room.history, lambda owner: room.mark_of(owner, found, rows.get(owner.id)), room.epoch_floor
        )

    def _robbed(self, room: Room, change: Change, found: Held | None) -> DisplacedOwner | None:
        """Who may still be handling it after this change: also whom somebody before has robbed."""
        if found is None:
            return None
        loser = found.lease.owner
        if loser is not None and loser.incarnation == 0 and change.still is None:
            return DisplacedOwner(loser.id, change.epoch)
        return room.robbed(found)

    async def _write(self, room: Room, after: Lease, found: Held | None, robbed: DisplacedOwner | None) -> bool:
        """False when the lease is not as it was found."""
        record = self._record(room, found) if found is not None else None
        name, metadata = room.names.lease(after.partition), wire.lease_metadata(after, 0, robbed, record)
        etag = await (self._link.note(name, metadata, found.etag) if found else self._link.create(name, metadata))
        if etag is not None:
            room.see(after.partition, Held(after, etag, 0, bare=False, robbed=robbed, record=record))
            return True
        there = await self._put(room, after.partition, None)
        return there is not None and there.lease == after  # it took effect, and only the answer was lost

    async def _swapped(
        self, room: Room, change: Change, before: Lease | None, after: Lease
    ) -> tuple[Outcome, Move | None]:
        if rules.instance_to_wake(before, change) is not None and change.owner is not None and _is_ours(change.owner):
            row = await self._rows.row(room, change.owner.id)
            if row is None or row.leaving or row.member.owner != change.owner or room.has_departed(row.member.nonce):
                # It looked for leases that name it before this one did, and has left: it would wait for nobody.
                return await self._take_back(room, after), None
        found = room.held.get(after.partition)
        shown = room.shown(found) if found is not None and found.lease == after else after
        return Outcome(partition=after.partition, ok=True, lease=shown), rules.move_between(before, after)

    async def _take_back(self, room: Room, lease: Lease) -> Outcome:
        free = structs.replace(
            lease,
            owner=None,
            epoch=lease.epoch + 1,
            revision=room.number(),
            ttl_s=0.0,
            changed_at=self._link.wall(),
        )
        for _ in range(TRIES):
            floor, etag = await self.floor(room, lease.partition)
            raised = structs.replace(floor, epoch=max(floor.epoch, free.epoch))
            if await self.set_floor(room, lease.partition, raised, etag):
                break
        found = room.held[lease.partition]
        await self._write(room, free, found, room.robbed(found))
        return _refused(lease.partition, "owner", room.held.get(lease.partition))

    # --- floors
    async def floor(self, room: Room, partition: PartitionId) -> tuple[wire.Floor, str]:
        """And its ETag, "" when there is none yet."""
        blob = await self._link.head(room.names.floor(partition))
        if blob is None:
            return wire.Floor(), ""
        return wire.read(blob.metadata.get(wire.OURS, ""), wire.Floor, blob.name), blob.etag

    async def set_floor(self, room: Room, partition: PartitionId, floor: wire.Floor, etag: str) -> str | None:
        """Its new ETag; None when somebody else has changed it meanwhile."""
        name, metadata = room.names.floor(partition), {wire.OURS: wire.text_of(floor)}
        return await (self._link.note(name, metadata, etag) if etag else self._link.create(name, metadata))

    async def _raise_floor(self, room: Room, change: Change, found: Held | None, mine: str) -> tuple[str, str]:
        """Before the swap, so that its epoch is never given again. What refuses the change; "": nothing does.

        And the ETag of a floor that this very swap has raised to its epoch, "" if somebody else has, too: as long as
        it stands (`mine`), nobody else has had the epoch.
        """
        partition = change.partition
        is_foreign = found is not None and (found.bare or not _is_ours(found.lease.owner))
        for _ in range(TRIES):
            floor, etag = await self.floor(room, partition)
            if etag and etag == mine:
                return "", mine
            if not etag and await self._had_a_floor(room, change, found):
                if (await self.floor(room, partition))[1]:
                    continue  # another instance has just made it
                return await self._lose(room, change), ""
            if found is None and _has_had_a_lease(floor, change):
                if await self._put(room, partition, None) is not None:
                    return LOOK_AGAIN, ""  # somebody else has just made it
                return await self._lose(room, change), ""
            if floor.epoch > change.epoch or (found is not None and found.bare and floor.epoch == change.epoch):
                if found is not None:
                    room.floors[partition] = max(floor.epoch, room.floors.get(partition, 0))
                    lease = structs.replace(found.lease, epoch=floor.epoch)
                    room.see(partition, found._replace(lease=lease))
                return "revision", ""
            raised = structs.replace(floor, epoch=change.epoch, foreign=is_foreign or floor.foreign)
            if written := await self.set_floor(room, partition, raised, etag):
                room.floors[partition] = change.epoch
                return "", written if floor.epoch < change.epoch else ""
        raise _too_many("epoch", partition)

    async def _had_a_floor(self, room: Room, change: Change, found: Held | None) -> bool:
        """There is none, and there are epochs of this history that were given above one. A record that an instance has
        restored has an epoch that was given to no lease."""
        blob = await self._link.head(room.names.record(change.partition))
        note = wire.record_note(blob.metadata, blob.name) if blob is not None else None
        epoch = max(
            note.record.epoch if note is not None else 0,
            found.lease.epoch if found is not None and not found.bare else 0,
        )
        return epoch > restore_epoch(change.history)

    async def _lose(self, room: Room, change: Change) -> str:
        """Why the change is refused: the store has lost writes, unless somebody has deleted the group meanwhile."""
        await self._charters.refresh(room)
        if change.epoch <= room.epoch_floor:
            return "epoch"
        await self._charters.lose(room, change.history)
        return "history"

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
            unknown, await wait_for_all(self.floor(room, name) for name in unknown), strict=True
        ):
            room.floors[partition] = max(floor.epoch, room.floors.get(partition, 0))


def _has_had_a_lease(floor: wire.Floor, change: Change) -> bool:
    """In this history, in which nobody has deleted the group. Who makes a lease may end between floor and lease, and
    what was sealed in an older history says nothing of this one."""
    if floor.epoch <= restore_epoch(change.history):
        return False
    is_sealed = floor.sealed is not None and floor.sealed.epoch > restore_epoch(change.history)
    return is_sealed or floor.epoch > change.epoch


def _is_ours(owner: Owner | None) -> bool:
    return owner is None or owner.incarnation > 0


def _refused(partition: PartitionId, why: str, found: Held | None) -> Outcome:
    return Outcome(partition=partition, ok=False, why=why, lease=found.lease if found is not None else None)


def _too_many(what: str, partition: PartitionId) -> StoreUnavailable:
    return StoreUnavailable(f"The {what} of partition {partition!r} is being changed by too many at once. Try again.")
