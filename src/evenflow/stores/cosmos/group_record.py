"""The document of a group itself: its history, its counters, its state.

It outlives the group, so that counting goes on.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from evenflow.errors import StoreUnavailable
from evenflow.model import Cursor, GroupState
from evenflow.stores import rules
from evenflow.stores.cosmos import codec as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evenflow.model import PartitionId
    from evenflow.stores.cosmos.client import Papers
    from evenflow.stores.cosmos.group_cache import Room

TRIES = 50
"""Somebody else may change the same document at the same time, again and again; but not for ever."""
STEP = 16
"""A floor is raised by so much at once, so that few moves have to wait for it."""
KIND = "write group"

Amendment: TypeAlias = "Callable[[wire.Charter], wire.Charter]"


class Charters:
    def __init__(self, papers: Papers) -> None:
        self._papers = papers

    async def refresh(self, room: Room) -> None:
        """Read it again."""
        room.see(room.names.group, await self._papers.read(room.names.group, "read group"))

    async def amend(self, room: Room, change: Amendment) -> None:
        """Change it in one step, whatever others change in it at the same time."""
        for _ in range(TRIES):
            if room.charter is None:
                # Whoever needs a group to be there has looked. It went at this very moment, and a heartbeat makes it
                # again.
                raise StoreUnavailable(f"The group {room.group} has just been deleted, or lost with its container.")
            after = change(room.charter)
            if after == room.charter:
                return
            wanted = wire.document_of(room.names.group, after)
            document = await self._papers.replace(wanted, room.charter_etag, KIND)
            if document is not None:
                room.see(room.names.group, document)
                return
            await self.refresh(room)
        raise StoreUnavailable(f"The group {room.group} is being changed by too many at once. Try again.")

    async def found(self, room: Room, since: Cursor | None = None) -> None:
        """Make the group, or make it again."""
        for _ in range(TRIES):
            if room.exists:
                return
            born = room.numbers.next()
            if room.charter is not None:
                await self.amend(room, _made_again(born, since))
                return
            epochs = (held.lease.epoch for held in room.held.values() if held.lease is not None)
            charter = wire.Charter(room.group, secrets.token_hex(8), born=born, floor=max(0, 0, *epochs))
            document = await self._papers.create(wire.document_of(room.names.group, charter), KIND)
            if document is not None:
                room.see(room.names.group, document)
            else:
                await self.refresh(room)
        raise StoreUnavailable(f"The group {room.group} is not there whenever it was made.")

    async def witness(self, room: Room, since: Cursor | None) -> None:
        """Somebody has seen what the store does not know any more, or was there before it lost writes."""
        if since is None or room.charter is None:
            return
        if (since.lineage, since.history) != (room.charter.lineage, room.charter.history):
            await self.refresh(room)
            await self.found(room, since)
            await self._raise(room, lambda now: rules.history_after(since, _cursor(now, since.revision)), since)

    async def lose(self, room: Room, history: int) -> None:
        """Writes of this history were lost: it rises, once for all who find out."""
        await self._raise(room, lambda now: max(now.history, history + 1))

    async def raise_floors(self, room: Room, epochs: Mapping[PartitionId, int], foreign: set[PartitionId]) -> None:
        """Before these epochs are given: whoever drops them from a lease must not let one of them be given again."""

        def raised(now: wire.Charter) -> wire.Charter:
            apart = foreign | now.floors.keys()
            floors = dict(now.floors)
            for partition in epochs.keys() & apart:
                if now.floor_of(partition) < epochs[partition]:
                    floors[partition] = epochs[partition] + STEP
            rest = max((epoch for partition, epoch in epochs.items() if partition not in apart), default=0)
            return structs.replace(now, floors=floors, floor=now.floor if rest <= now.floor else rest + STEP)

        await self.amend(room, raised)

    async def _raise(self, room: Room, history: Callable[[wire.Charter], int], since: Cursor | None = None) -> None:
        def risen(now: wire.Charter) -> wire.Charter:
            return structs.replace(now, history=history(now), began=rules.first_history(now.began, since, now.history))

        await self.amend(room, risen)


def _made_again(born: int, since: Cursor | None) -> Amendment:
    def made(now: wire.Charter) -> wire.Charter:
        began = rules.first_history(None, since, now.history)
        return structs.replace(now, deleted=False, born=born, state=GroupState(), began=began)

    return made


def _cursor(now: wire.Charter, revision: int) -> Cursor:
    return Cursor(now.lineage, now.history, revision)
