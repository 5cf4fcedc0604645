"""Members' rows in a lease container: one document each, written by every heartbeat.

A row renews all that its member owns, though it is another document than the leases are. So whoever takes something
from a silent member first pokes its row, on condition that its mark is still the one that stood still. A member that
finds its row otherwise than it wrote it makes sure of each of its leases before it goes by them: it and the taker
then write the same document, and one of them is refused.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from evenflow.errors import StoreUnavailable, Superseded
from evenflow.model import Cursor, Owner, next_epoch
from evenflow.stores import rules
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos.group_record import TRIES, Charters
from evenflow.stores.ledgers import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Member
    from evenflow.stores.cosmos.client import Papers
    from evenflow.stores.cosmos.group_cache import Room, Row

KIND = "write member"
DEPARTED_KEPT = 4
"""Under one id: every heartbeat writes them."""


class Entry(NamedTuple):
    """What came of writing a row."""

    incarnation: int
    mark_before: int
    has_gone_back: bool
    """It was found as it had been before its last write: the service has lost writes."""
    is_smooth: bool
    """Nobody else has written it since this client did: nothing was taken from its member."""


class Rows:
    def __init__(self, papers: Papers, charters: Charters) -> None:
        self._papers = papers
        self._charters = charters

    async def enter(self, room: Room, member: Member, mark: int) -> Entry | None:
        """Write the row, unless somebody who leaves has none. None for a late heartbeat: the member has left."""
        row, is_fresh, has_gone_back = room.rows.get(member.id), False, False
        is_smooth = row is not None and row.etag == room.written_rows.get(member.id)
        for _ in range(TRIES):
            if row is not None and member.nonce in row.note.departed:
                return None
            there = row if row is not None and not row.note.left else None
            try:
                incarnation = self._admitted(room, there, member)
            except Superseded:
                if is_fresh:
                    raise
                row, is_fresh, is_smooth = await self.read(room, member.id), True, False
                continue
            before = row.note.mark if row is not None else 0
            is_mine = there is not None and there.member.owner == Owner(member.id, incarnation)
            if member.leaving and not is_mine:
                return Entry(incarnation, before, has_gone_back, is_smooth=False)
            if member.incarnation == 0 and not is_mine:
                member = structs.replace(member, incarnation=await self._count(room, 0))
                continue
            await self._count(room, incarnation)
            if await self._write(room, member, row, incarnation, mark):
                return Entry(incarnation, before, has_gone_back, is_smooth and is_mine)
            known, row, is_fresh, is_smooth = row, await self.read(room, member.id), True, False
            has_gone_back |= _is_older(row, known)
        raise StoreUnavailable(f"The row of {member.id!r} is being changed by too many at once. Try again.")

    def _admitted(self, room: Room, row: Row | None, member: Member) -> int:
        newest = room.charter.newest if room.charter is not None else 0
        return rules.admit_incarnation(
            row.member if row is not None else None, member, newest=newest, history=room.history
        )

    async def _count(self, room: Room, incarnation: int) -> int:
        """No two starts get the same number: it is written down before it is used. 0 asks for a new one."""

        def counted(now: wire.Charter) -> wire.Charter:
            newest = max(now.newest, incarnation) if incarnation else next_epoch(now.newest, now.history)
            return structs.replace(now, newest=newest)

        await self._charters.amend(room, counted)
        return room.charter.newest if room.charter is not None else 0

    async def _write(self, room: Room, member: Member, row: Row | None, incarnation: int, mark: int) -> bool:
        """False when somebody else has written it meanwhile."""
        at = time.time()  # noqa: TID251
        me = structs.replace(member, incarnation=incarnation, mark=mark, heartbeat_at=at, leaving=False)
        is_news = row is None or row.note.left or structs.replace(row.member, mark=mark, heartbeat_at=at) != me
        news = mark if is_news or row is None else row.note.news
        told = structs.replace(me, mark=0, heartbeat_at=0.0)  # once is enough
        departed = row.note.departed if row is not None else ()
        note = wire.RowNote(mark, at, news, told, leaving=member.leaving, departed=departed)
        return await self._put(room, note, row, is_mine=True)

    async def _put(self, room: Room, note: wire.RowNote, row: Row | None, *, is_mine: bool = False) -> bool:
        name = room.names.member(note.member.id)
        document = wire.document_of(name, note)
        written = await (
            self._papers.replace(document, row.etag, KIND) if row is not None else self._papers.create(document, KIND)
        )
        if written is None:
            return False
        room.see(name, written)
        if is_mine:
            room.written_rows[note.member.id] = room.rows[note.member.id].etag
        return True

    async def read(self, room: Room, instance: str) -> Row | None:
        """As it is now."""
        name = room.names.member(instance)
        room.see(name, await self._papers.read(name, "read member"))
        return room.rows.get(instance)

    async def poke(self, room: Room, owner: Owner, mark: int) -> bool:
        """Before something is taken from a silent member; False when its mark is not the one that stood still."""
        row = room.row_of(owner.id)
        for _ in range(TRIES):
            if row is None or row.member.incarnation != owner.incarnation or row.note.mark != mark:
                return False
            if await self._put(room, structs.replace(row.note, poked=secrets.token_hex(4)), row):
                return True
            await self.read(room, owner.id)
            row = room.row_of(owner.id)
        raise StoreUnavailable(f"The row of {owner.id!r} is being changed by too many at once. Try again.")

    async def stay_or_leave(self, room: Room, member: Member, owner: Owner) -> Member | None:
        row = room.row_of(member.id)
        if row is None or row.member.owner != owner:
            return None
        if not member.leaving or room.is_named(owner):
            return row.member
        departed = (*row.note.departed, member.nonce)[-DEPARTED_KEPT:]
        await self._part(room, [row._replace(note=structs.replace(row.note, departed=departed))])
        return None

    async def _part(self, room: Room, rows: Sequence[Row]) -> None:
        """They have left. What they were stays for a while, so that everybody hears of it."""
        news = room.numbers.next()
        await wait_for_all(self._put(room, structs.replace(row.note, left=True, news=news), row) for row in rows)

    async def tidy(self, room: Room, member: Member, since: Cursor | None) -> None:
        """Rows of the long silent, wishes that somebody retire who is gone, the hub that the group belongs to.

        Silence is told by the service's clock alone: that of a member may be wrong by hours.
        """
        limit_s = room.newest_s - rules.FORGOTTEN_AFTER_S
        old = [row for row in room.rows.values() if since is not None and _written_s(row) < limit_s]
        silent = [row for row in old if not row.note.left and not room.is_named(row.member.owner)]
        if silent:
            await self._part(room, silent)
        for row in old:
            if row.note.left:
                await self._papers.delete(row.document, KIND, row.etag)
                room.see(str(row.document["id"]), None)
        present = {str(row.member.owner) for row in room.rows.values() if not row.note.left}

        def tidied(now: wire.Charter) -> wire.Charter:
            source = now.state.source or member.source
            return structs.replace(now, state=rules.prune_retired(structs.replace(now.state, source=source), present))

        await self._charters.amend(room, tidied)


def _written_s(row: Row) -> float:
    return float(row.document.get("_ts") or 0)


def _is_older(found: Row | None, known: Row | None) -> bool:
    """The very row that was written, as it was before that."""
    if found is None or known is None:
        return False
    is_same = (found.member.owner, found.member.nonce) == (known.member.owner, known.member.nonce)
    return is_same and found.note.mark < known.note.mark
