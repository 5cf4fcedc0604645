"""What people ask of a lease container: which groups there are, what was done and why, and to steer or to forget.

Moves and actions are documents of their own, in the order of their ids; the oldest are removed now and then.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from evenflow.model import Action, Group, GroupState, Move
from evenflow.stores import rules
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos.names import GROUP
from evenflow.stores.ledgers import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.model import Steering
    from evenflow.stores.cosmos.client import Papers
    from evenflow.stores.cosmos.group_cache import Room
    from evenflow.stores.cosmos.group_record import Charters

CUT_EVERY = 64
"""So many lines this client adds before it looks whether there are too many."""

Line = TypeVar("Line", Move, Action)


class People:
    def __init__(self, papers: Papers, charters: Charters) -> None:
        self._papers = papers
        self._charters = charters
        self._steering = asyncio.Lock()
        self._added: dict[str, int] = {}

    async def groups(self) -> Sequence[tuple[Group, str]]:
        """Those that ours have run in, each with its prefix; of others nobody can tell where the name ends in it. The
        latest are the last."""
        found = await self._papers.query("query groups", "SELECT * FROM c WHERE ENDSWITH(c.id, @end)", end=GROUP)
        charters = [(wire.read(one.get(wire.OURS), wire.Charter, one["id"]), one["id"]) for one in found]
        charters.sort(key=lambda pair: pair[0].born)
        return [(charter.group, name.removesuffix(GROUP)) for charter, name in charters if not charter.deleted]

    async def steer(self, room: Room, steering: Steering, action: Action) -> GroupState:
        kept = rules.stamp_action(action, time.time())  # noqa: TID251

        def steered(now: wire.Charter) -> wire.Charter:
            if now.deleted:
                raise rules.no_such_group(room.group)
            return structs.replace(now, state=rules.steer(now.state, steering, rules.request_of(kept)))

        async with self._steering:  # whoever steers through this client takes turns
            if room.charter is None:
                raise rules.no_such_group(room.group)
            await self._charters.amend(room, steered)
            state = room.state
        await self._keep(room.names.actions, [kept], rules.ACTIONS_KEPT)
        return state

    async def record(self, room: Room, action: Action) -> None:
        kept = rules.stamp_action(action, time.time())  # noqa: TID251
        await self._keep(room.names.actions, [kept], rules.ACTIONS_KEPT)

    async def actions(self, room: Room, limit: int) -> Sequence[Action]:
        return await self._lines(room.names.actions, Action, limit)

    async def keep_moves(self, room: Room, moves: Sequence[Move]) -> None:
        await self._keep(room.names.moves, moves, rules.MOVES_KEPT)

    async def moves(self, room: Room, limit: int) -> Sequence[Move]:
        return await self._lines(room.names.moves, Move, limit)

    async def delete(self, room: Room) -> None:
        """What counts on stays. So do actions; and what others need to begin anew goes, too."""
        room.take_in(await self._papers.changed(room.names.heartbeats, 0), room.seen, whole=True)
        epochs = list(_epochs(room))
        if room.charter is None and epochs:
            await self._charters.found(room)  # only others have run in it, or nobody with a lease

        def deleted(now: wire.Charter) -> wire.Charter:
            floor = rules.floor_after(now.epoch_floor, [now.floor, *now.floors.values(), *epochs], now.history)
            return structs.replace(now, deleted=True, state=GroupState(), epoch_floor=floor)

        if room.charter is not None:
            await self._charters.amend(room, deleted)
        for prefix in (room.names.heartbeats, room.names.moves):
            found = await self._papers.changed(prefix, 0)
            gone = [one for one in found if one["id"] != room.names.group]
            await wait_for_all(self._papers.delete(one, "delete") for one in gone)

    # --- documents of lines
    async def _keep(self, prefix: str, lines: Sequence[Line], most: int) -> None:
        """One document for all that happened at once, with an id that says when."""
        name = f"{prefix}{time.time_ns():020}-{secrets.token_hex(4)}"  # noqa: TID251
        await self._papers.create({"id": name, wire.OURS: wire.text_of(list(lines))}, "write history")
        self._added[prefix] = self._added.get(prefix, 0) + len(lines)
        if self._added[prefix] >= CUT_EVERY:
            self._added[prefix] = 0
            await self._cut(prefix, most)

    async def _cut(self, prefix: str, most: int) -> None:
        kept = 0
        old: list[dict[str, Any]] = []
        for document, lines in await self._found(prefix, Any):
            if kept >= most:
                old.append(document)
            kept += len(lines)
        await wait_for_all(self._papers.delete(one, "delete") for one in old)

    async def _lines(self, prefix: str, kind: type[Line], limit: int) -> Sequence[Line]:
        """The newest first."""
        found = [line for _, lines in await self._found(prefix, kind) for line in reversed(lines)]
        return found[: max(0, limit)]

    async def _found(self, prefix: str, kind: Any) -> list[tuple[dict[str, Any], list[Any]]]:
        """The newest document first."""
        found = await self._papers.query("read history", "SELECT * FROM c WHERE STARTSWITH(c.id, @p)", p=prefix)
        ordered = sorted(found, key=lambda one: str(one["id"]), reverse=True)
        return [(one, wire.read(one.get(wire.OURS), list[kind], str(one["id"]))) for one in ordered]


def _epochs(room: Room) -> Iterator[int]:
    """All that leases and checkpoints have now."""
    for held in room.held.values():
        if held.lease is not None:
            yield held.lease.epoch
        if held.note is not None and held.note.record is not None:
            yield held.note.record.epoch
