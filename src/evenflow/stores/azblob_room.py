"""What one client knows of one group: the last listing of its blobs, and what it has told of it.

A listing is turned into leases and members here, those of processors of another make among them, and a ledger is what
differs from the ledger before. Nothing is sent here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from evenflow.model import Cursor, GroupState, Lease, Ledger, Member, Owner
from evenflow.stores import azblob_wire as wire
from evenflow.stores import rules
from evenflow.stores.azblob_names import HASHED, Names, plain
from evenflow.stores.azblob_strangers import Strangers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from evenflow.model import Group, PartitionId
    from evenflow.stores.azblob_link import Blob

LEDGERS_REMEMBERED = 2


class Held(NamedTuple):
    """A lease as its blob has it."""

    lease: Lease
    etag: str
    mark: int
    """Of the owner's beat that renewed it last."""
    bare: bool
    """Without what is ours: whoever wrote it last was of another make."""
    modified_at: float = 0.0
    """By the service's clock."""


class Row(NamedTuple):
    """A member as its blob has it."""

    member: Member
    etag: str
    news: int
    leaving: bool
    in_content: bool
    """The facts are the blob's content, which a beat need not send again."""


class Told(NamedTuple):
    """What a ledger said."""

    leases: Mapping[PartitionId, Lease]
    members: Mapping[str, Member]
    born: int


class Room:
    def __init__(self, group: Group, peer_expiry_s: float) -> None:
        self.group = group
        self.names = Names(group)
        self.facts: wire.Facts | None = None
        self.state = GroupState()
        self.charter_etag = ""
        """Of the group's blob as `facts` and `state` have it."""
        self.held: dict[PartitionId, Held] = {}
        self.rows: dict[str, Row] = {}
        self.strangers = Strangers(peer_expiry_s)
        self.floors: dict[PartitionId, int] = {}
        """The lowest epochs that leases without ours may have, as far as was read; a swap reads them again."""
        self.is_listed = False
        self._highest = 0
        self._told: OrderedDict[int, Told] = OrderedDict()

    # --- numbers
    def number(self) -> int:
        """Higher than every number seen here, and, as far as clocks agree, than every one that others have given."""
        self._highest = max(self._highest + 1, int(time.time() * 1000))  # noqa: TID251
        return self._highest

    def saw(self, *numbers: int) -> None:
        self._highest = max(self._highest, *numbers)

    @property
    def highest(self) -> int:
        return self._highest

    def highest_but(self, instance: str) -> int:
        """Of what is listed, without the row of this member."""
        numbers = [found.lease.revision for found in self.held.values()]
        numbers += [row.member.mark for row in self.rows.values() if row.member.id != instance]
        facts = self.facts or wire.Facts(lineage="")
        return max(facts.born, facts.roster, *numbers)

    @property
    def exists(self) -> bool:
        return self.facts is not None and not self.facts.deleted

    @property
    def history(self) -> int:
        return self.facts.history if self.facts is not None else 0

    # --- a listing
    def take_in(self, blobs: Iterable[Blob], contents: Mapping[str, Member]) -> None:
        """All of it, in one step. `contents` are the rows whose facts did not fit into metadata."""
        held: dict[PartitionId, Held] = {}
        rows: dict[str, Row] = {}
        for blob in blobs:
            if blob.name.startswith(self.names.leases):
                partition, found = self.lease_of(blob)
                held[partition] = found
            elif blob.name.startswith(self.names.members):
                row = row_of(blob, contents.get(blob.name))
                rows[row.member.id] = row
        self.held, self.rows, self.is_listed = held, rows, True
        numbers = [found.lease.revision for found in held.values()]
        numbers += [row.member.mark for row in rows.values()]
        self.saw(0, *numbers)
        self.strangers.look(held)

    def lease_of(self, blob: Blob) -> tuple[PartitionId, Held]:
        note = wire.lease_note(blob.metadata, blob.name)
        if note is not None:
            return note.lease.partition, Held(note.lease, blob.etag, note.mark, bare=False)
        partition = self._partition_of(blob.name)
        before = self.held.get(partition)
        owner_id = blob.metadata.get("ownerid") or ""
        owner = Owner(owner_id, 0) if owner_id else None
        if before is not None and before.lease.owner == owner and before.lease.history == self.history:
            lease = before.lease
            if before.bare and lease.epoch < self.floors.get(partition, 0):
                lease = structs.replace(lease, epoch=self.floors[partition])
            return partition, Held(lease, blob.etag, 0, bare=True, modified_at=blob.modified_at)
        known = before.lease if before is not None else Lease(partition=partition)
        lease = Lease(
            partition=partition,
            owner=owner,
            epoch=max(known.epoch, self.floors.get(partition, 0)),
            revision=max(self.number(), known.revision + 1),
            history=self.history,
            ttl_s=self.strangers.expiry_s if owner is not None else 0.0,
            late=known.late,
            ended=known.ended,
            reason=f"claimed: by {owner_id}, a processor of another make" if owner is not None else "released",
            changed_at=blob.modified_at,
        )
        return partition, Held(lease, blob.etag, 0, bare=True, modified_at=blob.modified_at)

    def _partition_of(self, name: str) -> PartitionId:
        segment = name.removeprefix(self.names.leases)
        if HASHED in segment:
            for partition in self.held:
                if self.names.lease(partition) == name:
                    return partition
        return plain(segment)

    # --- who is who
    def mark_of(self, owner: Owner, found: Held | None, row: Row | None) -> int | None:
        """Of this incarnation's beats, by its row or by what it renewed; None when it has no row."""
        is_its_own = found is not None and found.lease.owner == owner
        if owner.incarnation == 0:
            seen = (found.lease.partition, found.etag) if found is not None and is_its_own else None
            return self.strangers.mark_of(owner.id, seen)
        if row is None or row.leaving or row.member.incarnation != owner.incarnation:
            return None
        return max(row.member.mark, found.mark if found is not None and is_its_own else 0)

    def is_named(self, owner: Owner) -> bool:
        return any(found.lease.owner == owner for found in self.held.values())

    def of(self, owner: Owner) -> list[Held]:
        return [found for found in self.held.values() if found.lease.owner == owner]

    def members(self) -> dict[str, Member]:
        """With marks as renewed leases have them: they are written before the row."""
        renewed: dict[Owner, int] = {}
        for found in self.held.values():
            if found.mark and found.lease.owner is not None:
                renewed[found.lease.owner] = max(found.mark, renewed.get(found.lease.owner, 0))
        members = self.strangers.members()
        for row in self.rows.values():
            mark = max(row.member.mark, renewed.get(row.member.owner, 0))
            members[row.member.id] = row.member if mark == row.member.mark else structs.replace(row.member, mark=mark)
        return members

    def leases(self) -> dict[PartitionId, Lease]:
        return {
            partition: structs.replace(found.lease, settled=False)
            if self.strangers.is_at(partition, found.lease.epoch)
            else found.lease
            for partition, found in self.held.items()
        }

    # --- ledgers
    def cursor(self) -> Cursor:
        """How far what is listed goes."""
        facts = self.facts or wire.Facts(lineage="")
        numbers = [found.lease.revision for found in self.held.values()]
        numbers += [member.mark for member in self.members().values() if not member.foreign]
        return Cursor(facts.lineage, facts.history, max(facts.born, facts.roster, 0, *numbers))

    def has_lost(self, since: Cursor | None) -> bool:
        """A lease that this client has told of is gone, although nobody has deleted the group."""
        told = self._told.get(since.revision) if since is not None else None
        if told is None or self.facts is None or since is None or told.born != self.facts.born:
            return False
        return since.lineage == self.facts.lineage and bool(told.leases.keys() - self.held.keys())

    def ledger(self, me: Member | None, since: Cursor | None) -> Ledger:
        now, leases, members = self.cursor(), self.leases(), self.members()
        whole = since is None or not rules.fits(since, now, self.facts.born if self.facts is not None else 0)
        told = self._told.get(since.revision) if since is not None else None
        self._tell(now, Told(leases, members, self.facts.born if self.facts is not None else 0))
        if whole or since is None:
            return self._ledger(now, me, leases.values(), members.values(), whole=True)
        if told is None:
            return self._by_numbers(now, me, since.revision)
        if told.leases.keys() - leases.keys():
            return self._ledger(now, me, leases.values(), members.values(), whole=True)
        changed = [lease for partition, lease in leases.items() if told.leases.get(partition) != lease]
        if {name: _facts(member) for name, member in told.members.items()} != {
            name: _facts(member) for name, member in members.items()
        }:
            return self._ledger(now, me, changed, members.values(), whole=False)
        still = [member for name, member in members.items() if told.members[name].mark == member.mark]
        return self._ledger(now, me, changed, still, whole=False, roster=False)

    def _by_numbers(self, now: Cursor, me: Member | None, revision: int) -> Ledger:
        """For a cursor that another client has given: what is newer, as far as clocks agree."""
        leases = [lease for lease in self.leases().values() if lease.revision > revision]
        assert self.facts is not None
        roster = self.facts.roster > revision or any(row.news > revision for row in self.rows.values())
        members = self.members().values()
        rows = members if roster else [member for member in members if member.mark <= revision]
        return self._ledger(now, me, leases, rows, whole=False, roster=roster)

    def _ledger(
        self,
        now: Cursor,
        me: Member | None,
        leases: Iterable[Lease],
        members: Iterable[Member],
        *,
        whole: bool,
        roster: bool = True,
    ) -> Ledger:
        rows = (member for member in members if roster or me is None or member.id != me.id)
        return Ledger(
            cursor=now,
            me=me,
            whole=whole,
            leases=tuple(leases),
            roster=roster,
            members=tuple(rows),
            state=self.state,
        )

    def _tell(self, now: Cursor, told: Told) -> None:
        self._told[now.revision] = told
        self._told.move_to_end(now.revision)
        while len(self._told) > LEDGERS_REMEMBERED:
            self._told.popitem(last=False)


def row_of(blob: Blob, facts: Member | None = None) -> Row:
    note = wire.read(blob.metadata.get(wire.OURS, ""), wire.RowNote, blob.name)
    member = note.member or facts
    assert member is not None, "the content of such a row is read before"
    member = structs.replace(member, mark=note.mark, beat_at=note.beat_at, leaving=False)
    return Row(member, blob.etag, note.news, note.leaving, note.member is None)


def needs_content(blob: Blob) -> bool:
    return wire.read(blob.metadata.get(wire.OURS, ""), wire.RowNote, blob.name).member is None


def _facts(member: Member) -> Member:
    return structs.replace(member, mark=0, beat_at=0.0)
