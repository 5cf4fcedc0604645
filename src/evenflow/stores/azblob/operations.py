"""What people ask of an Azure Blob store: which groups there are, what was done and why, and to steer or to forget.

Moves and actions are lines of blobs that only grow, and are cut now and then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from msgspec import json, structs

from evenflow.model import Action, Group, GroupState, Move
from evenflow.stores import rules
from evenflow.stores.azblob import codec as wire
from evenflow.stores.azblob.names import plain
from evenflow.stores.ledgers import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from evenflow.model import Steering
    from evenflow.stores.azblob.client import Blob, Link
    from evenflow.stores.azblob.group_cache import Room
    from evenflow.stores.azblob.group_record import Charters

PIECES_MAX = 2 * rules.MOVES_KEPT
"""So many pieces a blob of lines has before it is cut. The service allows 50,000."""

Line = TypeVar("Line", Move, Action)


class People:
    def __init__(self, link: Link, charters: Charters) -> None:
        self._link = link
        self._charters = charters
        self._steering = asyncio.Lock()

    async def groups(self) -> Sequence[Group]:
        """Three steps down from the top of the container; what is there that looks like no group is passed over."""
        roots = [""]
        for _ in range(3):
            roots = [folder for root in roots for folder in await self._link.folders(root)]
        found = [await self._group(root.rstrip("/")) for root in roots]
        return sorted((group for group in found if group is not None), key=str)

    async def _group(self, root: str) -> Group | None:
        namespace, hub, name = (plain(part) for part in root.split("/"))
        group = Group(namespace, hub, name)
        found = await self._link.fetch(f"{root}/ownership.evenflow/group")
        if found is not None:
            blob, content = found
            charter = wire.read(content, wire.Charter, blob.name)
            if not wire.read(blob.metadata.get(wire.OURS, ""), wire.Facts, blob.name).deleted:
                return charter.group
            group = charter.group
        folders = await self._link.folders(f"{root}/")
        return group if {f"{root}/ownership/", f"{root}/checkpoint/"} & set(folders) else None

    async def delete(self, room: Room) -> None:
        """All but what is done to it, and what must go on counting when the group is made again."""
        blobs = await self._link.list(f"{room.names.root}/")
        epochs = list(_epochs(room, blobs))
        if room.facts is None and epochs:
            await self._charters.found(room, None)  # only records were there
        if room.facts is not None:
            at = room.number()

            def deleted(facts: wire.Facts, _: GroupState) -> tuple[wire.Facts, GroupState]:
                floor = rules.floor_after(facts.epoch_floor, epochs, facts.history)
                return structs.replace(facts, deleted=True, born=at, roster=at, epoch_floor=floor), GroupState()

            await self._charters.amend(room, deleted)
            blobs = await self._link.list(f"{room.names.root}/")
        kept = {room.names.group, room.names.actions}
        await wait_for_all(self._link.delete(blob.name) for blob in blobs if blob.name not in kept)

    async def steer(self, room: Room, steering: Steering, action: Action) -> GroupState:
        kept = rules.stamp_action(action, self._link.wall())

        def steered(facts: wire.Facts, state: GroupState) -> tuple[wire.Facts, GroupState]:
            if facts.deleted:
                raise rules.no_such_group(room.group)
            return facts, rules.steer(state, steering, rules.request_of(kept))

        async with self._steering:  # whoever steers through this client takes turns
            await self._charters.refresh(room)
            if room.facts is None:
                raise rules.no_such_group(room.group)
            await self._charters.amend(room, steered)
            state = room.state
        await self._keep(room.names.actions, [kept], rules.ACTIONS_KEPT)
        return state

    async def record(self, room: Room, action: Action) -> None:
        kept = rules.stamp_action(action, self._link.wall())
        await self._keep(room.names.actions, [kept], rules.ACTIONS_KEPT)

    async def actions(self, room: Room, limit: int) -> Sequence[Action]:
        return await self._lines(room.names.actions, Action, min(limit, rules.ACTIONS_KEPT))

    async def keep_moves(self, room: Room, moves: Sequence[Move]) -> None:
        await self._keep(room.names.moves, moves, rules.MOVES_KEPT)

    async def moves(self, room: Room, limit: int) -> Sequence[Move]:
        return await self._lines(room.names.moves, Move, min(limit, rules.MOVES_KEPT))

    # --- blobs of lines
    async def _keep(self, name: str, records: Sequence[Line], most: int) -> None:
        lines = b"".join(json.encode(record) + b"\n" for record in records)
        if await self._link.append(name, lines) > PIECES_MAX:
            await self._link.cut(name, most)

    async def _lines(self, name: str, kind: type[Line], limit: int) -> Sequence[Line]:
        """The newest first."""
        found = await self._link.fetch(name)
        lines = found[1].splitlines()[-limit:] if found is not None and limit > 0 else []
        return [wire.read(line, kind, name) for line in reversed(lines)]


def _epochs(room: Room, blobs: Iterable[Blob]) -> Iterator[int]:
    """All that were given in a group. A lease has none that its floor has not."""
    for blob in blobs:
        if blob.name.startswith(room.names.floors):
            yield wire.read(blob.metadata.get(wire.OURS, ""), wire.Floor, blob.name).epoch
        elif blob.name.startswith(room.names.records):
            note = wire.record_note(blob.metadata, blob.name)
            if note is not None:
                yield note.record.epoch
