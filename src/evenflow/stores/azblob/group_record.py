"""The blob of a group itself: its history, its counters, its state. It outlives the group, so that counting goes on."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from evenflow.errors import StoreUnavailable
from evenflow.model import Cursor, GroupState
from evenflow.stores import rules
from evenflow.stores.azblob import codec as wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.stores.azblob.client import Link
    from evenflow.stores.azblob.group_cache import Room

TRIES = 50
"""Somebody else may change the same blob at the same time, again and again; but not for ever."""

Amendment: TypeAlias = "Callable[[wire.Facts, GroupState], tuple[wire.Facts, GroupState]]"


class Charters:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def refresh(self, room: Room) -> None:
        """Read the group's blob again."""
        found = await self._link.fetch(room.names.group)
        if found is None:
            room.facts, room.state, room.charter_etag = None, GroupState(), ""
            return
        blob, content = found
        room.facts = wire.read(blob.metadata.get(wire.OURS, ""), wire.Facts, blob.name)
        room.state = wire.read(content, wire.Charter, blob.name).state
        room.charter_etag = blob.etag
        room.saw(room.facts.born, room.facts.roster)

    async def amend(self, room: Room, change: Amendment) -> None:
        """Change the group's blob in one step, whatever others change in it at the same time."""
        for _ in range(TRIES):
            if room.facts is None:
                # Whoever needs a group to be there has looked. It went at this very moment, and a heartbeat makes it
                # again.
                raise StoreUnavailable(f"The group {room.group} has just been deleted, or lost with its container.")
            facts, state = change(room.facts, room.state)
            if (facts, state) == (room.facts, room.state):
                return
            metadata = {wire.OURS: wire.text_of(facts)}
            content = wire.text_of(wire.Charter(room.group, state)).encode()
            etag = await self._link.replace(room.names.group, metadata, content, room.charter_etag)
            if etag is not None:
                room.facts, room.state, room.charter_etag = facts, state, etag
                return
            await self.refresh(room)
        raise StoreUnavailable(f"The group {room.group} is being changed by too many at once. Try again.")

    async def found(self, room: Room, since: Cursor | None) -> None:
        """Make the group, or make it again."""
        for _ in range(TRIES):
            if room.exists:
                return
            born = room.number()
            if room.facts is not None:
                await self.amend(room, _made_again(born, since))
                return
            facts = wire.Facts(lineage=secrets.token_hex(8), born=born)
            metadata = {wire.OURS: wire.text_of(facts)}
            await self._link.create(room.names.group, metadata, wire.text_of(wire.Charter(room.group)).encode())
            await self.refresh(room)
        raise StoreUnavailable(
            f"The group {room.group} is not there whenever it was made; the service's last answer:"
            f" {self._link.last_answer}."
        )

    async def witness(self, room: Room, since: Cursor | None) -> None:
        """Somebody has seen what the store does not know any more, or was there before it lost writes."""
        if since is None or room.facts is None:
            return
        if (since.lineage, since.history) != (room.facts.lineage, room.facts.history):
            await self.refresh(room)
            await self.found(room, since)
            await self._raise(room, lambda facts: rules.history_after(since, _now(facts, since.revision)), since)

    async def lose(self, room: Room, history: int) -> None:
        """Writes of this history were lost: it rises, once for all who find out."""
        await self._raise(room, lambda facts: max(facts.history, history + 1))

    async def _raise(self, room: Room, history: Callable[[wire.Facts], int], since: Cursor | None = None) -> None:
        def risen(facts: wire.Facts, state: GroupState) -> tuple[wire.Facts, GroupState]:
            began = rules.first_history(facts.began, since, facts.history)
            return structs.replace(facts, history=history(facts), began=began), state

        await self.amend(room, risen)


def _made_again(born: int, since: Cursor | None) -> Amendment:
    def made(facts: wire.Facts, _: GroupState) -> tuple[wire.Facts, GroupState]:
        began = rules.first_history(None, since, facts.history)
        return structs.replace(facts, deleted=False, born=born, began=began), GroupState()

    return made


def _now(facts: wire.Facts, revision: int) -> Cursor:
    return Cursor(facts.lineage, facts.history, revision)
