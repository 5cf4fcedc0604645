"""Members' rows in an Azure Blob store: one blob each, written by every heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from evenflow.errors import StoreUnavailable, Superseded
from evenflow.model import Cursor, GroupState, Owner, next_epoch
from evenflow.stores import rules
from evenflow.stores.azblob import codec as wire
from evenflow.stores.azblob.group_cache import Room, Row, needs_content, row_of
from evenflow.stores.azblob.group_record import TRIES, Charters
from evenflow.stores.ledgers import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Member
    from evenflow.stores.azblob.client import Link


class Entry(NamedTuple):
    """What came of writing a row."""

    incarnation: int
    mark_before: int
    has_gone_back: bool
    """It was found as it had been before its last write: the service has lost writes."""


class Rows:
    def __init__(self, link: Link, charters: Charters) -> None:
        self._link = link
        self._charters = charters

    async def enter(self, room: Room, member: Member, mark: int) -> Entry:
        """Write the row, unless somebody who leaves has none."""
        row, is_fresh, has_gone_back = room.rows.get(member.id), False, False
        for _ in range(TRIES):
            try:
                incarnation = self._admitted(room, row, member)
            except Superseded:
                if is_fresh:
                    raise
                row, is_fresh = await self.row(room, member.id), True
                continue
            before = row.member.mark if row is not None else 0
            is_mine = row is not None and row.member.owner == Owner(member.id, incarnation)
            if member.leaving and not is_mine:
                return Entry(incarnation, before, has_gone_back)
            if member.incarnation == 0 and not is_mine:
                member = structs.replace(member, incarnation=await self._count(room, 0))
                continue
            await self._count(room, incarnation)
            written = await self._write(room, member, row, incarnation, mark)
            if written is not None:
                room.rows[member.id] = written
                return Entry(incarnation, before, has_gone_back)
            known, row, is_fresh = row, await self.row(room, member.id), True
            has_gone_back |= _is_older(row, known)
        raise StoreUnavailable(f"The row of {member.id!r} is being changed by too many at once. Try again.")

    def _admitted(self, room: Room, row: Row | None, member: Member) -> int:
        newest = room.facts.newest if room.facts is not None else 0
        return rules.admit_incarnation(
            row.member if row is not None else None, member, newest=newest, history=room.history
        )

    async def _count(self, room: Room, incarnation: int) -> int:
        """No two starts get the same number: it is written down before it is used. 0 asks for a new one."""

        def counted(facts: wire.Facts, state: GroupState) -> tuple[wire.Facts, GroupState]:
            newest = max(facts.newest, incarnation) if incarnation else next_epoch(facts.newest, facts.history)
            return structs.replace(facts, newest=newest), state

        await self._charters.amend(room, counted)
        return room.facts.newest if room.facts is not None else 0

    async def _write(self, room: Room, member: Member, row: Row | None, incarnation: int, mark: int) -> Row | None:
        """The row as it is now; None when somebody else has written it meanwhile."""
        at = self._link.wall()
        me = structs.replace(member, incarnation=incarnation, mark=mark, heartbeat_at=at, leaving=False)
        is_news = row is None or structs.replace(row.member, mark=mark, heartbeat_at=at) != me
        news = mark if is_news or row is None else row.news
        name = room.names.member(member.id)
        note = wire.RowNote(mark, at, news, me, member.leaving)
        text = wire.text_of(note)
        is_large = len(text) > wire.METADATA_BYTES_MAX
        metadata = {wire.OURS: wire.text_of(structs.replace(note, member=None)) if is_large else text}
        content = text.encode() if is_large else b""
        if row is None:
            etag = await self._link.create(name, metadata, content)
        elif is_large == row.in_content and not (is_large and is_news):
            etag = await self._link.note(name, metadata, row.etag)
        else:
            etag = await self._link.replace(name, metadata, content, row.etag)
        return Row(me, etag, news, member.leaving, is_large) if etag is not None else None

    async def row(self, room: Room, instance: str) -> Row | None:
        blob = await self._link.head(room.names.member(instance))
        if blob is None:
            return None
        facts = await self.facts(blob.name) if needs_content(blob) else None
        return None if facts is None and needs_content(blob) else row_of(blob, facts)

    async def facts(self, name: str) -> Member | None:
        """Those that did not fit into metadata."""
        found = await self._link.fetch(name)
        return wire.read(found[1], wire.RowNote, name).member if found is not None else None

    async def stay_or_leave(self, room: Room, member: Member, owner: Owner) -> Member | None:
        row = room.rows.get(member.id)
        if row is None or row.member.owner != owner:
            return None
        if not member.leaving or room.is_named(owner):
            return row.member
        await self._remove(room, [row], departed=member.nonce)
        return None

    async def withdraw(self, room: Room, member: Member) -> None:
        """The row that a late heartbeat has written. Nobody has taken it for a member."""
        row = await self.row(room, member.id)
        if row is not None and row.member.nonce == member.nonce:
            await self._link.delete(room.names.member(member.id), row.etag)

    async def _remove(self, room: Room, rows: Sequence[Row], departed: str = "") -> None:
        """That somebody went is written down first: others go by it."""
        at = room.number()

        def gone(facts: wire.Facts, state: GroupState) -> tuple[wire.Facts, GroupState]:
            nonces = rules.remember_departed(facts.departed, departed) if departed else facts.departed
            return structs.replace(facts, roster=max(facts.roster, at), departed=nonces), state

        await self._charters.amend(room, gone)
        await wait_for_all(self._link.delete(room.names.member(row.member.id), row.etag) for row in rows)
        for row in rows:
            room.rows.pop(row.member.id, None)

    async def tidy(self, room: Room, member: Member, since: Cursor | None) -> None:
        """Rows of the long silent, wishes that somebody retire who is gone, the hub that the group belongs to.

        Silence is told by the service's clock alone: that of a member may be wrong by hours.
        """
        limit_at = max((row.modified_at for row in room.rows.values()), default=0.0) - rules.FORGOTTEN_AFTER_S
        silent = [
            row
            for row in room.rows.values()
            if since is not None and 0 < row.modified_at < limit_at and not room.is_named(row.member.owner)
        ]
        if silent:
            await self._remove(room, silent)
        present = {str(row.member.owner) for row in room.rows.values()}

        def tidied(facts: wire.Facts, state: GroupState) -> tuple[wire.Facts, GroupState]:
            source = state.source or member.source
            return facts, rules.prune_retired(structs.replace(state, source=source), present)

        await self._charters.amend(room, tidied)


def _is_older(found: Row | None, known: Row | None) -> bool:
    """The very row that was written, as it was before that."""
    if found is None or known is None:
        return False
    is_same = (found.member.owner, found.member.nonce) == (known.member.owner, known.member.nonce)
    return is_same and found.member.mark < known.member.mark
