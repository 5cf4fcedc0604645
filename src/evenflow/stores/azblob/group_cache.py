"""What one client knows of one group: the last listing of its blobs, and what it has told of it.

A listing is turned into leases and members here, those of processors of another make among them; what of it a ledger
tells is decided in `ledgers`. Nothing is sent here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from evenflow.model import Cursor, GroupState, Lease, Owner
from evenflow.stores import rules
from evenflow.stores.azblob import codec as wire
from evenflow.stores.azblob.names import HASHED, Names, plain
from evenflow.stores.ledgers import GroupSnapshot, RevisionCounter, SentLedgers
from evenflow.stores.third_party import LeaseSighting, ThirdPartyMembers, ThirdPartyTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from evenflow.model import Checkpoint, Group, Ledger, Member, PartitionId
    from evenflow.stores.azblob.client import Blob
    from evenflow.stores.third_party import DisplacedOwner


ROUNDS_IN_EXPIRY = 6
"""Of Azure's processors, unless they are told otherwise."""


class Held(NamedTuple):
    """A lease as its blob has it."""

    lease: Lease
    etag: str
    mark: int
    """Of the owner's heartbeat that renewed it last."""
    bare: bool
    """Without what is ours: whoever wrote it last was of another make."""
    modified_at: float = 0.0
    """By the service's clock."""
    robbed: DisplacedOwner | None = None
    """Whom it was taken from, if that was one of another make that may still be handling it."""
    record: Checkpoint | None = None
    """What the last owner of ours had committed, as far as the lease tells."""


class Row(NamedTuple):
    """A member as its blob has it."""

    member: Member
    etag: str
    news: int
    leaving: bool
    in_content: bool
    """The facts are the blob's content, which a heartbeat need not send again."""
    modified_at: float = 0.0
    """By the service's clock; 0: not known yet."""


class Room:
    def __init__(self, group: Group, peer_expiry_s: float, wall: Callable[[], float]) -> None:
        self.group = group
        self.names = Names(group)
        self.facts: wire.Facts | None = None
        self.state = GroupState()
        self.charter_etag = ""
        """Of the group's blob as `facts` and `state` have it."""
        self.held: dict[PartitionId, Held] = {}
        self.rows: dict[str, Row] = {}
        round_s = peer_expiry_s / ROUNDS_IN_EXPIRY
        self.third_parties = ThirdPartyMembers(
            ThirdPartyTiming(peer_expiry_s, round_s, in_rounds=True, stops_after_s=peer_expiry_s)
        )
        self.floors: dict[PartitionId, int] = {}
        """The lowest epochs that leases without ours may have, as far as was read; a swap reads them again."""
        self.is_listed = False
        self.seen = 0
        """How many leases were seen one by one. A listing that was begun before the last of them may be older."""
        self._seen: dict[PartitionId, int] = {}
        self._numbers = RevisionCounter(wall)
        self._marks: dict[Owner, int] = {}
        """The highest of each, by its row or by what it renewed, also where that has gone to somebody else since."""
        self._sent_ledgers = SentLedgers()

    # --- numbers
    def number(self) -> int:
        return self._numbers.next()

    def saw(self, *numbers: int) -> None:
        self._numbers.saw(*numbers)

    @property
    def highest(self) -> int:
        return self._numbers.highest

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

    @property
    def epoch_floor(self) -> int:
        return self.facts.epoch_floor if self.facts is not None else 0

    @property
    def lineage(self) -> str:
        return self.facts.lineage if self.facts is not None else ""

    def has_departed(self, nonce: str) -> bool:
        """Whoever writes its row now is late: it counts for nobody."""
        return self.facts is not None and nonce in self.facts.departed

    # --- progress
    def may_commit(self, record: Checkpoint | None, checkpoint: Checkpoint) -> bool:
        if not self.exists and record is None:
            return False
        return rules.may_commit(record, checkpoint, history=self.history, floor=self.epoch_floor)

    # --- one lease
    def see(self, partition: PartitionId, found: Held | None) -> None:
        """As it was just written, or looked at."""
        self.seen += 1
        self._seen[partition] = self.seen
        if found is not None:
            self._saw_mark(found.lease.owner, found.mark)
        if found is None:
            self.held.pop(partition, None)
        else:
            self.held[partition] = found

    # --- a listing
    def take_in(self, blobs: Iterable[Blob], contents: Mapping[str, Member], seen: int) -> None:
        """All of it, in one step, but for leases that were seen since it was begun, when `seen` was what it was then:
        of these it may show what was before, and one of another make would pass for new.

        `contents` are the rows whose facts did not fit into metadata.
        """
        later = {partition for partition, number in self._seen.items() if number > seen and self._is_news(partition)}
        held = {partition: found for partition, found in self.held.items() if partition in later}
        rows: dict[str, Row] = {}
        for blob in blobs:
            if blob.name.startswith(self.names.leases):
                if self._partition_of(blob.name) not in later:
                    partition, found = self.lease_of(blob)
                    held[partition] = found
            elif blob.name.startswith(self.names.members):
                row = row_of(blob, contents.get(blob.name))
                if not self.has_departed(row.member.nonce):
                    rows[row.member.id] = row
        self.held, self.rows, self.is_listed = held, rows, True
        for found in held.values():
            self._saw_mark(found.lease.owner, found.mark)
        present = {row.member.owner for row in rows.values()}
        self._marks = {owner: mark for owner, mark in self._marks.items() if owner in present}
        numbers = [found.lease.revision for found in held.values()]
        numbers += [row.member.mark for row in rows.values()]
        numbers += [found.mark for found in held.values()]
        self.saw(0, *numbers)
        self.third_parties.observe(
            {
                name: LeaseSighting(found.lease.owner.id, found.etag, found.modified_at)
                for name, found in held.items()
                if found.lease.owner is not None and found.lease.owner.incarnation == 0
            }
        )

    def _is_news(self, partition: PartitionId) -> bool:
        """Not so a lease of an older history: an answer that was held up may show it although it is lost."""
        return partition not in self.held or self.held[partition].lease.history == self.history

    def lease_of(self, blob: Blob) -> tuple[PartitionId, Held]:
        note = wire.lease_note(blob.metadata, blob.name)
        if note is not None:
            told = Held(note.lease, blob.etag, note.mark, bare=False, robbed=note.robbed, record=note.record)
            return note.lease.partition, told
        partition = self._partition_of(blob.name)
        before = self.held.get(partition)
        owner_id = blob.metadata.get("ownerid") or ""
        owner = Owner(owner_id, 0) if owner_id else None
        is_known = before is not None and before.bare and before.lease.owner == owner
        if before is not None and is_known and before.lease.history == self.history:
            lease = before.lease
            if lease.epoch < self.floors.get(partition, 0):
                lease = structs.replace(lease, epoch=self.floors[partition])
            return partition, Held(lease, blob.etag, 0, bare=True, modified_at=blob.modified_at)
        known = before.lease if before is not None else Lease(partition=partition)
        lease = Lease(
            partition=partition,
            owner=owner,
            epoch=max(known.epoch, self.floors.get(partition, 0)),
            # Our own count, which the next one that is written passes: numbers are given by the clock.
            revision=known.revision + 1,
            history=self.history,
            ttl_s=self.third_parties.timing.expiry_s if owner is not None else 0.0,
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
        """Of this incarnation's heartbeats, by its row or by what it renewed; None when it has no row."""
        is_its_own = found is not None and found.lease.owner == owner
        if owner.incarnation == 0:
            seen = (found.lease.partition, found.etag) if found is not None and is_its_own else None
            return self.third_parties.mark_of(owner.id, seen)
        if row is None or row.leaving or row.member.incarnation != owner.incarnation:
            return None
        if self.has_departed(row.member.nonce):
            return None
        renewed = found.mark if found is not None and is_its_own else 0
        return max(row.member.mark, renewed, self._marks.get(owner, 0))

    def _saw_mark(self, owner: Owner | None, mark: int) -> None:
        if owner is not None and mark > self._marks.get(owner, 0):
            self._marks[owner] = mark

    def is_named(self, owner: Owner) -> bool:
        return any(found.lease.owner == owner for found in self.held.values())

    def of(self, owner: Owner) -> list[Held]:
        return [found for found in self.held.values() if found.lease.owner == owner]

    def members(self) -> dict[str, Member]:
        """With marks as renewed leases have them: they are written before the row."""
        members = self.third_parties.members()
        for row in self.rows.values():
            mark = max(row.member.mark, self._marks.get(row.member.owner, 0))
            members[row.member.id] = row.member if mark == row.member.mark else structs.replace(row.member, mark=mark)
        return members

    def leases(self) -> dict[PartitionId, Lease]:
        return {partition: self.shown(found) for partition, found in self.held.items()}

    def shown(self, found: Held) -> Lease:
        """As ledgers and answers have it."""
        return structs.replace(found.lease, settled=False) if self.robbed(found) is not None else found.lease

    def robbed(self, found: Held) -> DisplacedOwner | None:
        """Whom it was taken from, as long as that may still be handling it."""
        return found.robbed if self.third_parties.may_still_process(found.lease.partition, found.robbed) else None

    # --- ledgers
    def cursor(self) -> Cursor:
        """How far what is listed goes. Not by marks on leases: who takes one over, drops its mark."""
        facts = self.facts or wire.Facts(lineage="")
        numbers = [found.lease.revision for found in self.held.values()]
        numbers += [row.member.mark for row in self.rows.values()]
        return Cursor(facts.lineage, facts.history, max(facts.born, facts.roster, 0, *numbers))

    def has_lost(self, since: Cursor | None) -> bool:
        """A lease that this client has told of is gone, although nobody has deleted the group."""
        told = self._sent_ledgers.sent(since)
        if told is None or self.facts is None or since is None or told.first_revision != self.facts.born:
            return False
        return since.lineage == self.facts.lineage and bool(told.leases.keys() - self.held.keys())

    def ledger(self, me: Member | None, since: Cursor | None) -> Ledger:
        return self._sent_ledgers.ledger(self._picture(), me, since)

    def _picture(self) -> GroupSnapshot:
        facts, leases = self.facts or wire.Facts(lineage=""), self.leases()
        loose = {name for name, lease in leases.items() if self.held[name].bare or not lease.settled}
        news = max(facts.roster, 0, *(row.news for row in self.rows.values()))
        members = self.members()
        return GroupSnapshot(
            self.cursor(), facts.born, leases, members, self.state, news, loose, facts.began, facts.epoch_floor
        )


def row_of(blob: Blob, facts: Member | None = None) -> Row:
    note = wire.read(blob.metadata.get(wire.OURS, ""), wire.RowNote, blob.name)
    member = note.member or facts
    assert member is not None, "the content of such a row is read before"
    member = structs.replace(member, mark=note.mark, heartbeat_at=note.heartbeat_at, leaving=False)
    return Row(member, blob.etag, note.news, note.leaving, note.member is None, blob.modified_at)


def needs_content(blob: Blob) -> bool:
    return wire.read(blob.metadata.get(wire.OURS, ""), wire.RowNote, blob.name).member is None
