"""Leases in a lease container: compare and set by ETag, and renewals where others look at timestamps.

The document of a lease is its checkpoint, too. Whoever is of another make changes both under its own rules, and may
drop what is ours: so epochs have a floor in the group's document, which is raised before one is given.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import structs

from evenflow.errors import StoreUnavailable
from evenflow.model import Checkpoint, Lease, Outcome
from evenflow.stores import rules
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos import layouts
from evenflow.stores.cosmos.group_record import TRIES, Charters
from evenflow.stores.cosmos.ranges import replaced
from evenflow.stores.ledgers import wait_for_all
from evenflow.stores.third_party import DisplacedOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Change, Move, Owner, PartitionId
    from evenflow.stores.cosmos.client import Papers
    from evenflow.stores.cosmos.group_cache import Held, Room
    from evenflow.stores.cosmos.members import Rows

KIND = "write lease"


class Leases:
    def __init__(self, papers: Papers, charters: Charters, rows: Rows) -> None:
        self._papers = papers
        self._charters = charters
        self._rows = rows

    # --- documents
    async def write(
        self, room: Room, held: Held | None, note: wire.LeaseNote, lane: str = "heartbeats", kind: str = KIND
    ) -> Held | None:
        """As it is now; None when it was not as it was held, or is gone."""
        before = held.document if held is not None else None
        model = before or room.blank(note.partition)
        name = model.id if model is not None else room.names.lease(note.partition)
        document = wire.lease_document(name, note, model, span=room.spans.get(note.partition), mode=room.mode)
        if before is None:
            written = await self._papers.create(document, kind, lane)
        else:
            written = await self._papers.replace(document, before.etag, kind, lane)
        if written is None:
            return None
        room.see(name, written)
        return room.held.get(note.partition)

    async def look_at(self, room: Room, partition: PartitionId) -> Held | None:
        """As it is now."""
        held = room.held.get(partition)
        past = room.names.past_lease(partition)
        known = held.document if held is not None else None
        model = known or room.blank(partition)
        names = [] if known is not None else [past]
        names.append(model.id if model is not None else room.names.lease(partition))
        for name in names:
            room.see(name, await self._papers.read(name))
        if room.held.get(partition) is None:
            # Somebody may have buried it meanwhile: a copy is there before the document goes.
            room.see(past, await self._papers.read(past))
        return room.held.get(partition)

    # --- renewals
    async def make_sure(self, room: Room, owner: Owner) -> None:
        """That what is known as this owner's is, and cannot be taken any more by whoever saw it before."""
        await wait_for_all(self._touch(room, held) for held in room.of(owner))

    async def renew(self, room: Room, owner: Owner) -> None:
        """Timestamps, for others. Who is refused finds out by the next look."""
        at = time.time()  # noqa: TID251
        due = [held for held in room.of(owner) if room.is_due(held, at=at)]
        await wait_for_all(self._touch(room, held) for held in due)

    async def _touch(self, room: Room, held: Held) -> None:
        assert held.lease is not None
        partition, owner = held.lease.partition, held.lease.owner
        async with room.turn(partition):
            for _ in range(TRIES):
                now = room.held.get(partition)
                if now is None or now.note is None or now.lease is None or now.lease.owner != owner:
                    return
                timestamp = room.timestamp(now.lease, at=time.time())  # noqa: TID251
                note = structs.replace(
                    now.note, timestamp=timestamp, touched=now.note.touched + 1, robbed=room.robbed(now)
                )
                if await self.write(room, now, note, kind="renew lease") is not None:
                    return
                await self.look_at(room, partition)
        raise _too_many(partition)

    # --- swaps
    async def swap(self, room: Room, changes: Sequence[Change]) -> tuple[list[Outcome], list[Move]]:
        """All of them, each on its own, and what there is to tell people of them. The room was just looked at."""
        seen = dict(room.held)
        above = await self._prepare(room, changes)
        turns: dict[PartitionId, list[int]] = {}
        for number, change in enumerate(changes):
            turns.setdefault(change.partition, []).append(number)
        done: dict[int, tuple[Outcome, Move | None]] = {}

        async def in_turn(partition: PartitionId, numbers: Sequence[int]) -> None:
            for nth, number in enumerate(numbers):
                held = seen.get(partition) if not nth else room.held.get(partition)
                is_ready = not nth and number in above
                done[number] = await self._swap(room, changes[number], held, is_ready=is_ready)

        await wait_for_all(in_turn(partition, numbers) for partition, numbers in turns.items())
        moves = [move for number in sorted(done) if (move := done[number][1]) is not None]
        return [done[number][0] for number in range(len(changes))], moves

    async def _prepare(self, room: Room, changes: Sequence[Change]) -> set[int]:
        """What all changes of one call need, asked for once: floors above their epochs, and pokes of the silent.

        The numbers of those changes that it was done for.
        """
        wanted = {
            number: change
            for number, change in enumerate(changes)
            if not self._refusal(room, change, room.held.get(change.partition))
        }
        foreign = {change.partition for change in wanted.values() if _is_foreign(room.held.get(change.partition))}
        if foreign:
            # After the leases were looked at: an epoch that somebody had in between shows in the floor.
            await self._charters.refresh(room)
        wanted = {
            number: change
            for number, change in wanted.items()
            if change.partition not in foreign or _is_above(room, change)
        }
        if not wanted or room.charter is None:
            return set()
        epochs: dict[PartitionId, int] = {}
        for change in wanted.values():
            epochs[change.partition] = max(change.epoch, epochs.get(change.partition, 0))
        await self._charters.raise_floors(room, epochs, foreign)
        silent = {still for change in wanted.values() if (still := _silent(change)) is not None}
        poked = {owner for owner, mark in silent if await self._rows.poke(room, owner, mark)}
        return {
            number
            for number, change in wanted.items()
            if not _is_rowless(change) and ((still := _silent(change)) is None or still[0] in poked)
        }

    async def _swap(
        self, room: Room, change: Change, held: Held | None, *, is_ready: bool
    ) -> tuple[Outcome, Move | None]:
        """`held` was looked at before it was prepared. Whoever looks again prepares again: a silent owner that has
        come back has made sure of its leases in between, and will not do so a second time."""
        async with room.turn(change.partition):
            for _ in range(TRIES):
                if refused := self._refusal(room, change, held):
                    return _refused(room, change.partition, refused), None
                if not is_ready and (refused := await self._make_ready(room, change, held)):
                    return _refused(room, change.partition, refused), None
                before = held.lease if held is not None else None
                after = rules.lease_after(change, room.numbers.next(), time.time())  # noqa: TID251
                if (now := await self.write(room, held, self._note(room, after, held, change))) is not None:
                    return await self._swapped(room, change, before, now)
                held, is_ready = await self.look_at(room, change.partition), False
        raise _too_many(change.partition)

    async def _make_ready(self, room: Room, change: Change, held: Held | None) -> str:
        """What `_prepare` does, for one. What refuses the change; "": nothing does."""
        if _is_foreign(held):
            await self._charters.refresh(room)
            if not _is_above(room, change):
                return "revision"
        await self._charters.raise_floors(
            room, {change.partition: change.epoch}, {change.partition} if _is_foreign(held) else set()
        )
        if _is_rowless(change):
            assert change.still is not None
            # After the lease was looked at: an owner that comes back makes its row first, and then sure of its leases.
            await self._rows.read(room, change.still[0].id)
            return "mark" if room.mark_of(change.still[0], held) is not None else ""
        still = _silent(change)
        return "mark" if still is not None and not await self._rows.poke(room, *still) else ""

    def _refusal(self, room: Room, change: Change, held: Held | None) -> str:
        if change.partition in room.damaged:
            return "revision"
        lease = held.lease if held is not None else None
        return rules.why_refused(change, lease, room.history, lambda owner: room.mark_of(owner, held), room.epoch_floor)

    def _note(self, room: Room, after: Lease, held: Held | None, change: Change) -> wire.LeaseNote:
        at = time.time()  # noqa: TID251
        return wire.LeaseNote(
            partition=after.partition,
            timestamp=room.timestamp(after, at=at),
            lease=after,
            record=_standing(room, held, after),
            robbed=self._robbed(room, change, held),
        )

    def _robbed(self, room: Room, change: Change, held: Held | None) -> DisplacedOwner | None:
        """Who may still be handling it after this change: also whom somebody before has robbed."""
        if held is None or held.lease is None:
            return None
        loser = held.lease.owner
        if loser is not None and loser.incarnation == 0 and change.still is None:
            return DisplacedOwner(loser.id, change.epoch)
        return room.robbed(held)

    async def _swapped(
        self, room: Room, change: Change, before: Lease | None, now: Held
    ) -> tuple[Outcome, Move | None]:
        assert now.lease is not None
        after = now.lease
        if rules.instance_to_wake(before, change) is not None and change.owner is not None and change.owner.incarnation:
            await self._rows.read(room, change.owner.id)
            if room.mark_of(change.owner, now) is None:
                # It looked for leases that name it before this one did, and has left: it would wait for nobody.
                return await self._take_back(room, now), None
        if after.ended and after.owner is None:
            await self.bury(room, now)
        return Outcome(partition=after.partition, ok=True, lease=room.shown(now)), rules.move_between(before, after)

    async def _take_back(self, room: Room, held: Held) -> Outcome:
        assert held.lease is not None
        lease, partition = held.lease, held.lease.partition
        await self._charters.raise_floors(room, {partition: lease.epoch + 1}, set())
        free = structs.replace(
            lease,
            owner=None,
            epoch=lease.epoch + 1,
            revision=room.numbers.next(),
            ttl_s=0.0,
            changed_at=time.time(),  # noqa: TID251
        )
        assert held.note is not None
        timestamp = room.timestamp(free, at=free.changed_at)
        if await self.write(room, held, structs.replace(held.note, lease=free, timestamp=timestamp)) is None:
            await self.look_at(room, partition)
        return _refused(room, partition, "owner")

    # --- documents that move, and go
    async def bury(self, room: Room, held: Held) -> None:
        """Where a partition has ended, its document must not stand where others look for free leases."""
        document, note = held.document, held.note
        if document is None or note is None or document.id.startswith(room.names.past):
            return
        name = room.names.past_lease(note.partition)
        copy = wire.lease_document(name, note, None, span=document.span, mode=document.mode)
        written = await self._papers.create(copy, KIND)
        if written is not None:
            room.see(name, written)
        if await self._papers.delete(document.document, KIND, document.etag):
            room.see(document.id, None)

    async def tidy(self, room: Room) -> None:
        """What was left half done, and documents of ranges that go on in others of ours."""
        if room.has_ranges:
            going_on = {name for name, held in room.held.items() if held.note is not None and held.note.record}
            for one in replaced(room.places, going_on, room.spans):
                if await self._papers.delete(one.document, KIND, one.etag):
                    room.see(one.id, None)
            for ended in room.left_alone():
                part = layouts.part_for_java(room.names.leases, ended)
                if (written := await self._papers.create(part, KIND)) is not None:
                    room.see(part["id"], written)
        for held in list(room.held.values()):
            lease = held.lease
            if lease is not None and lease.ended and lease.owner is None:
                await self.bury(room, held)


def _silent(change: Change) -> tuple[Owner, int] | None:
    """The row to poke before this change, with the mark that it must have."""
    if change.still is None or change.still[1] is None or change.still[0].incarnation == 0:
        return None
    return change.still[0], change.still[1]


def _is_rowless(change: Change) -> bool:
    """It is taken from one of ours that has no row: there is nothing to poke."""
    return change.still is not None and change.still[1] is None and change.still[0].incarnation > 0


def _is_above(room: Room, change: Change) -> bool:
    """Their own turn is an epoch, too: see `Room._foreign`."""
    return room.charter is not None and change.epoch > room.charter.floor_of(change.partition) + 1


def _is_foreign(held: Held | None) -> bool:
    return held is not None and held.is_bare


def _standing(room: Room, held: Held | None, after: Lease) -> Checkpoint | None:
    """The checkpoint that a lease has: ours, or what a continuation stands for that somebody else has written."""
    if held is None or held.document is None:
        return None
    if held.note is not None:
        return room.record_of(held)
    theirs = layouts.position_in(held.document)
    if theirs is None:
        return None
    epoch, last = after.epoch - 1, held.hint.record if held.hint is not None else None
    if last is not None and layouts.continuation_of(last.position, None) == layouts.continuation_of(theirs, None):
        return structs.replace(last, epoch=epoch)  # nothing was handled since, and ours says more
    step = (theirs.sequence or 0) - (last.position.sequence or 0) if last is not None else 0
    return Checkpoint(
        partition=after.partition,
        epoch=epoch,
        position=theirs,
        ordinal=last.ordinal + max(step, 1) if last is not None else 0,
        changed_at=held.document.written_at,
    )


def _refused(room: Room, partition: PartitionId, why: str) -> Outcome:
    held = room.held.get(partition)
    return Outcome(partition=partition, ok=False, why=why, lease=held.lease if held is not None else None)


def _too_many(partition: PartitionId) -> StoreUnavailable:
    return StoreUnavailable(f"The lease of partition {partition!r} is being changed by too many at once. Try again.")
