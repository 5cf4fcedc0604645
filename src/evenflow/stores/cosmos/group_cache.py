"""What one client knows of one group: its documents as they were last seen, and what they mean.

Documents are turned into leases and members here, those of processors of another make among them; what of it a ledger
tells is decided in `ledgers`. Nothing is sent here.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from evenflow.errors import Corrupt
from evenflow.model import Cursor, GroupState, Lease, Owner, Wish
from evenflow.stores import rules
from evenflow.stores.cosmos import codec as wire
from evenflow.stores.cosmos import layouts
from evenflow.stores.cosmos.names import Names
from evenflow.stores.cosmos.ranges import Places, covered, left_alone, places
from evenflow.stores.ledgers import GroupSnapshot, RevisionCounter, SentLedgers
from evenflow.stores.third_party import LeaseSighting, ThirdPartyMembers, ThirdPartyTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from evenflow.model import Checkpoint, Group, Ledger, Member, PartitionId
    from evenflow.stores.cosmos.layouts import LeaseDocument
    from evenflow.stores.cosmos.options import Options
    from evenflow.stores.third_party import DisplacedOwner

RENEW_SHARE = 17 / 60
"""Of their expiry: how often .NET's and Java's processors renew, each lease on its own."""
ACQUIRE_SHARE = 13 / 60
"""And how often they look for leases to take."""
STOP_STRETCH = 1.2
"""Whoever is robbed finds out when it renews; then it has to end what it is doing."""
WHOLE_EVERY_S = 60.0
"""So often everything is asked for: documents that others deleted are not among those that changed."""
CLOCKS_S = 10
"""By so much may the clocks differ that stamp documents. A query for changes asks for so much more."""
AHEAD_LEAST_S, AHEAD_A_LEASE_S, AHEAD_MOST_S = 60.0, 6.0, 600.0
"""While nobody else takes part, timestamps are so far ahead for each lease of the group: one who comes counts our
owners as alive all the same, though they seldom renew, some twenty times a minute in all. It counts them as alive for
as long when they are dead: so it is no more than that."""


def ahead_s(leases: int) -> float:
    """How far ahead timestamps are in a group of so many."""
    return min(AHEAD_MOST_S, max(AHEAD_LEAST_S, AHEAD_A_LEASE_S * leases))


class Held(NamedTuple):
    """A partition as its document has it."""

    lease: Lease | None
    """None: there is a checkpoint, and nobody has had a lease."""
    document: LeaseDocument | None
    """None: there are only documents that speak of other ranges, which have to do with it."""
    note: wire.LeaseNote | None
    """Ours, if one of ours was the last to write; None otherwise."""
    hint: wire.LeaseNote | None = None
    """Ours, from before somebody else wrote."""

    @property
    def is_bare(self) -> bool:
        return self.note is None

    @property
    def etag(self) -> str:
        return self.document.etag if self.document is not None else ""


class Row(NamedTuple):
    """A member as its document has it."""

    note: wire.RowNote
    etag: str
    document: Mapping[str, Any]

    @property
    def member(self) -> Member:
        note = self.note
        return structs.replace(note.member, mark=note.mark, heartbeat_at=note.heartbeat_at, leaving=False)


class Room:
    def __init__(
        self, group: Group, prefix: str, options: Options, key_of: Callable[[Mapping[str, Any]], str], where: str = ""
    ) -> None:
        """`where` names the container, for people."""
        self.group = group
        self._where = where
        self.names = Names(prefix)
        self.options = options
        self._key_of = key_of
        self.spans: Mapping[PartitionId, tuple[str, str]] = {}
        self.mode = ""
        self.charter: wire.Charter | None = None
        self.charter_etag = ""
        self.held: dict[PartitionId, Held] = {}
        self.places = Places({}, {})
        self.rows: dict[str, Row] = {}
        """Those of whoever has left among them."""
        self.marker: Mapping[str, Any] | None = None
        expiry_s = options.peer_expiry_s
        round_s = expiry_s * RENEW_SHARE
        self.third_parties = ThirdPartyMembers(
            ThirdPartyTiming(expiry_s, round_s, in_rounds=False, stops_after_s=STOP_STRETCH * round_s)
        )
        self.written_rows: dict[str, str] = {}
        """ETags of rows as this client wrote them, never as it saw them: whoever finds another one looks to it that
        what it owns was not taken."""
        self.numbers = RevisionCounter()
        self.is_listed = False
        self.beaten_in = ("", 0)
        """The lineage and the history of the last heartbeat."""
        self.newest_s = 0
        """The latest second in which a document that was seen was written, by the service's clock."""
        self.seen = 0
        """How many documents were seen one by one. What was asked for before the last of them may be older."""
        self._seen: dict[str, int] = {}
        self._leases: dict[str, LeaseDocument] = {}
        self._ours: dict[str, PartitionId] = {}
        """Of those that are named by ranges, which ours wrote last: the partition that each is of."""
        self._past: dict[PartitionId, LeaseDocument] = {}
        self._unread: dict[str, Corrupt] = {}
        """Leases that cannot be read, by their ids."""
        self.damaged: dict[PartitionId, Corrupt] = {}
        """Partitions whose leases somebody has made something else of. They are paused, so that one of them stops no
        other; nothing is written to them."""
        self._whole_at_s = 0.0
        self._turns: dict[str, asyncio.Lock] = {}
        self._sent_ledgers = SentLedgers()

    # --- facts
    @property
    def exists(self) -> bool:
        return self.charter is not None and not self.charter.deleted

    @property
    def history(self) -> int:
        return self.charter.history if self.charter is not None else 0

    @property
    def lineage(self) -> str:
        return self.charter.lineage if self.charter is not None else ""

    @property
    def epoch_floor(self) -> int:
        return self.charter.epoch_floor if self.charter is not None else 0

    @property
    def state(self) -> GroupState:
        told = self.charter.state if self.charter is not None and not self.charter.deleted else GroupState()
        if not self.damaged:
            return told
        pauses = {name: Wish("the store", str(error), damaged=True) for name, error in self.damaged.items()}
        return structs.replace(told, pauses={**pauses, **told.pauses})

    def learn(self, spans: Mapping[PartitionId, tuple[str, str]], mode: str) -> None:
        """What is known of the hub."""
        self.mode = mode
        if spans != self.spans:
            self.spans = spans
            self._understand()

    def record_of(self, held: Held | None) -> Checkpoint | None:
        """Ours, unless it came late: to a deleted group, or by a seal when all documents had been lost."""
        note = held.note if held is not None else None
        if note is None or note.record is None or self.charter is None:
            return note.record if note is not None else None
        is_void = note.record.epoch < self.charter.epoch_floor or note.made_in not in ("", self.charter.lineage)
        return None if is_void else note.record

    def may_commit(self, record: Checkpoint | None, checkpoint: Checkpoint) -> bool:
        if record is None and not self.exists:
            return False
        return rules.may_commit(record, checkpoint, history=self.history, floor=self.epoch_floor)

    def turn(self, name: str) -> asyncio.Lock:
        """What one client does to one document it does in turn."""
        return self._turns.setdefault(name, asyncio.Lock())

    def move_to(self, prefix: str) -> None:
        """Its documents are under another prefix than was thought, and none of those that were seen are its own."""
        self.names, self.is_listed = Names(prefix), False
        self._forget(())

    # --- what is asked for
    def since(self) -> int:
        """From which second on to ask; 0: for everything."""
        every_s = self.options.peer_expiry_s * ACQUIRE_SHARE if self.third_parties.are_present else WHOLE_EVERY_S
        is_due = time.monotonic() - self._whole_at_s >= every_s  # noqa: TID251
        return 0 if not self.is_listed or is_due else max(1, self.newest_s - CLOCKS_S)

    def take_in(self, documents: Iterable[Mapping[str, Any]], seen: int, *, whole: bool) -> bool:
        """All of it, in one step, but for documents that were seen since it was asked for, when `seen` was what it was
        then. Whether everything has to be asked for: the group was deleted, or made again."""
        later = {name for name, number in self._seen.items() if number > seen and self._is_news(name)}
        found: dict[str, Mapping[str, Any]] = {}
        for one in sorted(documents, key=self._key_of, reverse=True):
            found[str(one.get("id", ""))] = one  # of several with one id, the same one that a look at it finds
        born = self.charter.born if self.charter is not None else 0
        if whole:
            self._forget(found.keys() | later)
            self.is_listed, self._whole_at_s = True, time.monotonic()  # noqa: TID251
        for name, document in found.items():
            if name not in later:
                self._take(name, document)
        self._understand()
        return not whole and (self.charter.born if self.charter is not None else 0) != born

    def _is_news(self, name: str) -> bool:
        """Not so a lease of an older history: an answer that was held up may show it although it is lost."""
        one = self._leases.get(name)
        held = self.held.get(one.token) if one is not None else None
        return held is None or held.lease is None or held.lease.history == self.history

    def see(self, name: str, document: Mapping[str, Any] | None) -> None:
        """As it was just written, or looked at; None: it is gone."""
        self.seen += 1
        self._seen[name] = self.seen
        if document is None:
            self._drop(name)
        else:
            self._take(name, document)
        one = self._leases.get(name)
        if one is None or self.has_ranges:
            self._understand()
        else:
            # By far the most frequent, a commit: nothing else changes.
            self.places.homes[one.token] = one
            self.damaged.pop(one.token, None)
            self.held[one.token] = self._understood(one.token, one, self.held.get(one.token))

    def _take(self, name: str, document: Mapping[str, Any]) -> None:
        names = self.names
        self.newest_s = max(self.newest_s, int(document.get("_ts") or 0))
        if name == names.group:
            self.charter = wire.read(document.get(wire.OURS), wire.Charter, name)
            self.charter_etag = str(document.get("_etag", ""))
            self.numbers.saw(self.charter.born)
        elif name.startswith(names.members):
            row = Row(wire.read(document.get(wire.OURS), wire.RowNote, name), str(document.get("_etag", "")), document)
            self.rows[row.note.member.id] = row
            self.numbers.saw(row.note.mark)
        elif name.startswith((names.past, names.leases)):
            self._take_lease(name, document)
        elif name == names.marker:
            self.marker = document

    def _take_lease(self, name: str, document: Mapping[str, Any]) -> None:
        self._drop(name)
        try:
            one = layouts.read(document, self._key_of(document))
            note = wire.any_note(one)
            if not self.names.is_of(name, one.token):
                raise layouts.damaged(name, "LeaseToken", f"is {one.token!r}, and the id ends otherwise")
        except Corrupt as error:
            self._unread[name] = error
            return
        if name.startswith(self.names.past):
            self._past[one.token] = one
            return
        self._leases[name] = one
        if note is not None and one.is_by_range and wire.is_in_force(note, one):
            self._ours[name] = note.partition

    def _drop(self, name: str) -> None:
        names = self.names
        self._leases.pop(name, None)
        self._ours.pop(name, None)
        self._unread.pop(name, None)
        if name == names.group:
            self.charter, self.charter_etag = None, ""
        elif name == names.marker:
            self.marker = None
        for instance in [instance for instance in self.rows if names.member(instance) == name]:
            del self.rows[instance]
        for partition in [one for one in self._past if names.past_lease(one) == name]:
            del self._past[partition]

    def _forget(self, there: Iterable[str]) -> None:
        """What is not there any more."""
        names, stay = self.names, set(there)
        known = {
            *self._leases,
            *self._unread,
            *(names.past_lease(one) for one in self._past),
            *map(names.member, self.rows),
        }
        for name in {*known, names.group, names.marker} - stay:
            self._drop(name)

    # --- what it means
    @property
    def has_ranges(self) -> bool:
        """Whether a partition's document has to be looked for."""
        return bool(self._past or self._unread or self._ours or self.places.covers) or (
            bool(self.spans) and any(one.is_by_range for one in self._leases.values())
        )

    def blank(self, partition: PartitionId) -> LeaseDocument | None:
        """What a new lease is made from; None where one as .NET makes them will do."""
        span = self.spans.get(partition)
        if span is None or not (self.options.layout == "java" or any(one.is_of_java for one in self._leases.values())):
            return None
        return layouts.blank_of_java(self.names.leases, span)

    def left_alone(self) -> list[LeaseDocument]:
        """Leases of ours that have ended since their range was merged with one of Java's, which goes on with its own
        part of the new one, and never comes for the rest."""
        found: list[LeaseDocument] = []
        past = sorted(self._past, key=self._revision, reverse=True)
        for name in self.places.covers.keys() - self.places.homes.keys():
            covering = self.places.covers[name]
            if self.third_parties.are_present and any(one.is_of_java for one in covering):
                found += left_alone(self.spans[name], covering, (self._past[one] for one in past))
        return found

    def _revision(self, partition: PartitionId) -> int:
        held = self.held.get(partition)
        return held.lease.revision if held is not None and held.lease is not None else 0

    def _understand(self) -> None:
        self.places = places(self._leases.values(), self._past, self.spans, self._ours)
        before, self.held, self.damaged = self.held, {}, {}
        for partition, document in self.places.homes.items():
            self.held[partition] = self._understood(partition, document, before.get(partition))
        for partition in self.places.covers.keys() - self.places.homes.keys():
            self.held[partition] = self._covered(partition, before.get(partition))
        for name, error in self._unread.items():
            for partition in self._told_by(name):
                if partition not in self.places.homes:
                    self.held[partition] = self._unreadable(partition, error, before.get(partition))
        self.numbers.saw(0, *(held.lease.revision for held in self.held.values() if held.lease is not None))
        self.third_parties.observe(
            {
                name: LeaseSighting(held.lease.owner.id, held.etag or self._cover_etags(name), _written_at(held))
                for name, held in self.held.items()
                if held.lease is not None and held.lease.owner is not None and held.lease.owner.incarnation == 0
            }
        )

    def _understood(self, partition: PartitionId, document: LeaseDocument, before: Held | None) -> Held:
        if before is not None and before.document is document and not before.is_bare:
            return before
        note = wire.lease_note(document, partition)
        if note is not None and wire.is_in_force(note, document):
            return Held(note.lease, document, note)
        if self.spans and (odd := layouts.oddity(document, self.spans.get(partition))) is not None:
            return self._unreadable(partition, odd, before)
        lease = self._foreign(partition, document.owner, document.written_at, before, note)
        return Held(lease, document, None, note)

    def _told_by(self, name: str) -> Sequence[PartitionId]:
        """The partitions that a lease of this id is about."""
        names = self.names
        token = name.removeprefix(names.past if name.startswith(names.past) else names.leases)
        low, dash, high = token.partition("-")
        return (dash and covered((low, high), self.spans)) or [token]

    def _unreadable(self, partition: PartitionId, error: Corrupt, before: Held | None) -> Held:
        """Nobody has it, and it has not ended: so nobody goes on from it, nor from what it came to."""
        self.damaged[partition] = Corrupt(f"In the {self._where}: {error}")
        return Held(self._foreign(partition, "", 0.0, before, None), None, None)

    def _covered(self, partition: PartitionId, before: Held | None) -> Held:
        covering = self.places.covers[partition]
        owner = next((one.owner for one in covering if one.owner), "")
        lease = self._foreign(partition, owner, max(one.written_at for one in covering), before, None)
        return Held(lease, None, None)

    def _foreign(
        self,
        partition: PartitionId,
        owner_id: str,
        written_at: float,
        before: Held | None,
        hint: wire.LeaseNote | None,
    ) -> Lease:
        """The lease that a document stands for which somebody else wrote last.

        Its turn counts as an epoch: above all that ours were given, and below the one that is given next.
        """
        owner = Owner(owner_id, 0) if owner_id else None
        known = before.lease if before is not None else None
        floor = self.charter.floor_of(partition) if self.charter is not None else 0
        epoch = max(floor + 1, known.epoch if known is not None else 0)
        is_known = before is not None and before.is_bare and known is not None and known.owner == owner
        if known is not None and is_known and known.history == self.history:
            return known if known.epoch >= epoch else structs.replace(known, epoch=epoch)
        old = known or (hint.lease if hint is not None else None) or Lease(partition=partition)
        return Lease(
            partition=partition,
            owner=owner,
            epoch=epoch,
            # Our own count, which the next one that is written passes: numbers are given by the clock.
            revision=old.revision + 1,
            history=self.history,
            ttl_s=self.options.peer_expiry_s if owner is not None else 0.0,
            late=old.late,
            reason=f"claimed: by {owner_id}, a processor of another make" if owner is not None else "released",
            changed_at=written_at,
        )

    def _cover_etags(self, partition: PartitionId) -> str:
        return " ".join(one.etag for one in self.places.covers.get(partition, ()))

    def of_another_mode(self) -> LeaseDocument | None:
        """A lease that somebody else keeps, who reads the feed in another way. What is ours is written anew."""
        foreign = (held.document for held in self.held.values() if held.note is None and held.document is not None)
        return next((one for one in foreign if self.mode and one.mode not in ("", self.mode)), None)

    # --- who is who
    def row_of(self, instance: str) -> Row | None:
        """None when it has none, or has left."""
        row = self.rows.get(instance)
        return row if row is not None and not row.note.left else None

    def mark_of(self, owner: Owner, held: Held | None) -> int | None:
        """Of this incarnation's heartbeats; None when it has no row. Of strangers, by what they own."""
        if owner.incarnation == 0:
            is_its_own = held is not None and held.lease is not None and held.lease.owner == owner
            seen = None
            if held is not None and held.lease is not None and is_its_own:
                partition = held.lease.partition
                seen = partition, held.etag or self._cover_etags(partition)
            return self.third_parties.mark_of(owner.id, seen)
        row = self.row_of(owner.id)
        if row is None or row.note.leaving or row.member.incarnation != owner.incarnation:
            return None
        return row.note.mark

    def is_named(self, owner: Owner) -> bool:
        return any(held.lease is not None and held.lease.owner == owner for held in self.held.values())

    def of(self, owner: Owner) -> list[Held]:
        return [held for held in self.held.values() if held.lease is not None and held.lease.owner == owner]

    def members(self) -> dict[str, Member]:
        mine = {name: row.member for name, row in self.rows.items() if not row.note.left}
        return {**self.third_parties.members(), **mine}

    def leases(self) -> dict[PartitionId, Lease]:
        return {name: self.shown(held) for name, held in self.held.items() if held.lease is not None}

    def shown(self, held: Held) -> Lease:
        """As ledgers and answers have it."""
        assert held.lease is not None
        return structs.replace(held.lease, settled=False) if self.robbed(held) is not None else held.lease

    def robbed(self, held: Held) -> DisplacedOwner | None:
        """Whom it was taken from, as long as that may still be handling it."""
        if held.lease is None or held.note is None:
            return None
        return (
            held.note.robbed if self.third_parties.may_still_process(held.lease.partition, held.note.robbed) else None
        )

    # --- timestamps
    def timestamp(self, lease: Lease | None, *, at: float) -> str:
        """What others take for the last sign of life of a lease's owner."""
        is_owned = lease is not None and lease.owner is not None
        is_ahead = self.options.shared == "auto" and not self.third_parties.are_present and is_owned
        return layouts.timestamp(at + self._ahead_s if is_ahead else at)

    @property
    def _ahead_s(self) -> float:
        return ahead_s(max(len(self.held), len(self.spans)))

    def is_due(self, held: Held, *, at: float) -> bool:
        """Whether others would soon take its owner for dead, or would take it for alive for too long."""
        if held.note is None or self.options.shared == "no":
            return False
        told_at = datetime.fromisoformat(held.note.timestamp[:26] + "+00:00").timestamp()
        if self.options.shared == "auto" and not self.third_parties.are_present:
            return not at + self._ahead_s / 2 <= told_at <= at + self._ahead_s + CLOCKS_S
        return not at - self.options.peer_expiry_s * RENEW_SHARE < told_at <= at + 1

    # --- ledgers
    def cursor(self) -> Cursor:
        charter = self.charter
        numbers = [held.lease.revision for held in self.held.values() if held.lease is not None]
        numbers += [row.note.mark for row in self.rows.values()]
        if charter is None:
            return Cursor("", 0, max(0, 0, *numbers))
        return Cursor(charter.lineage, charter.history, max(charter.born, 0, *numbers))

    def highest_but(self, instance: str) -> int:
        """Of what is known, without the row of this member."""
        numbers = [held.lease.revision for held in self.held.values() if held.lease is not None]
        numbers += [row.note.mark for name, row in self.rows.items() if name != instance]
        return max(self.charter.born if self.charter is not None else 0, 0, *numbers)

    def has_lost(self, since: Cursor | None) -> bool:
        """A lease of ours that this client has told of is gone, although nobody has deleted the group.

        Those of others go when their ranges do.
        """
        told = self._sent_ledgers.sent(since)
        if told is None or since is None or self.charter is None or told.first_revision != self.charter.born:
            return False
        gone = (told.leases[name] for name in told.leases.keys() - self.held.keys())
        return (
            since.lineage == self.charter.lineage
            and not self.third_parties.are_present
            and any(lease.owner is None or lease.owner.incarnation > 0 for lease in gone)
        )

    def ledger(self, me: Member | None, since: Cursor | None) -> Ledger:
        return self._sent_ledgers.ledger(self._picture(), me, since)

    def _picture(self) -> GroupSnapshot:
        leases = self.leases()
        loose = {name for name, lease in leases.items() if self.held[name].is_bare or not lease.settled}
        news = max(0, 0, *(row.note.news for row in self.rows.values()))
        born = self.charter.born if self.charter is not None else 0
        began, members = self.charter.began if self.charter is not None else 0, self.members()
        return GroupSnapshot(self.cursor(), born, leases, members, self.state, news, loose, began, self.epoch_floor)


def _written_at(held: Held) -> float:
    return held.document.written_at if held.document is not None else 0.0
