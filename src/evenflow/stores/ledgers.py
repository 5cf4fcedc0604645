"""Builds ledgers for stores that list documents or blobs, as the difference to an earlier ledger or to a revision.

In such stores third-party processors write too, and no counter covers the changes of a whole group. Each client takes
revisions from its clock, always above every revision it has seen, and remembers the ledgers it sent last.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from evenflow.model import Ledger
from evenflow.stores import rules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from evenflow.model import Cursor, GroupState, Lease, Member, PartitionId

LEDGERS_REMEMBERED = 2


class RevisionCounter:
    """Assigns revisions and heartbeat counters."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:  # noqa: TID251
        self._wall = wall
        self.highest = 0
        """The highest number that this client has assigned or seen."""

    def next(self) -> int:
        """Higher than every number seen here and, as far as clocks agree, than every number that others assigned."""
        self.highest = max(self.highest + 1, int(self._wall() * 1000))
        return self.highest

    def saw(self, *numbers: int) -> None:
        self.highest = max(self.highest, *numbers)


def is_ahead(since: Cursor | None, now: Cursor, seen: int) -> bool:
    """The cursor is ahead of every revision in the store: the store lost writes that the cursor's owner has seen."""
    if since is None or (since.lineage, since.history) != (now.lineage, now.history):
        return False
    return since.revision > seen


async def wait_for_all(requests: Iterable[Awaitable[Any]]) -> list[Any]:
    """Runs all requests concurrently and waits for all of them, then raises the first error."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)


class GroupSnapshot(NamedTuple):
    """A group as this client knows it now."""

    cursor: Cursor
    first_revision: int
    """When the group was created."""
    leases: Mapping[PartitionId, Lease]
    members: Mapping[str, Member]
    state: GroupState
    roster_revision: int
    """When the roster last changed."""
    unordered: Collection[PartitionId]
    """Leases whose revision does not show whether another client has seen them: always included in its ledger."""
    began: int = 0
    epoch_floor: int = 0


class SentLedger(NamedTuple):
    """The contents of a ledger that this client returned."""

    leases: Mapping[PartitionId, Lease]
    members: Mapping[str, Member]
    first_revision: int


class SentLedgers:
    def __init__(self) -> None:
        self._sent: OrderedDict[int, SentLedger] = OrderedDict()

    def sent(self, since: Cursor | None) -> SentLedger | None:
        """The ledger with this cursor, if this client returned it recently."""
        return self._sent.get(since.revision) if since is not None else None

    def ledger(self, now: GroupSnapshot, me: Member | None, since: Cursor | None) -> Ledger:
        sent = self.sent(since)
        if me is not None or since is not None:  # a peek never asks for the changes since then
            self._remember(now)
        if since is None or not rules.can_send_changes(since, now.cursor, now.first_revision):
            return _ledger(now, me, now.leases.values(), now.members.values(), whole=True)
        if sent is None:
            return _newer_than(now, me, since.revision)
        if sent.leases.keys() - now.leases.keys():
            return _ledger(now, me, now.leases.values(), now.members.values(), whole=True)
        changed = [lease for partition, lease in now.leases.items() if sent.leases.get(partition) != lease]
        if {name: _without_heartbeat(member) for name, member in sent.members.items()} != {
            name: _without_heartbeat(member) for name, member in now.members.items()
        }:
            return _ledger(now, me, changed, now.members.values())
        still = [member for name, member in now.members.items() if sent.members[name].mark == member.mark]
        return _ledger(now, me, changed, still, roster=False)

    def _remember(self, now: GroupSnapshot) -> None:
        revision = now.cursor.revision
        self._sent[revision] = SentLedger(now.leases, now.members, now.first_revision)
        self._sent.move_to_end(revision)
        while len(self._sent) > LEDGERS_REMEMBERED:
            self._sent.popitem(last=False)


def _newer_than(now: GroupSnapshot, me: Member | None, revision: int) -> Ledger:
    """For a cursor from another client: everything newer than its revision, as far as clocks agree."""
    leases = [lease for name, lease in now.leases.items() if lease.revision > revision or name in now.unordered]
    roster = now.roster_revision > revision
    members = now.members.values()
    rows = members if roster else [member for member in members if member.mark <= revision]
    return _ledger(now, me, leases, rows, roster=roster)


def _ledger(
    now: GroupSnapshot,
    me: Member | None,
    leases: Iterable[Lease],
    members: Iterable[Member],
    *,
    whole: bool = False,
    roster: bool = True,
) -> Ledger:
    rows = (member for member in members if roster or me is None or member.id != me.id)
    return Ledger(
        cursor=now.cursor,
        me=me,
        whole=whole,
        leases=tuple(leases),
        roster=roster,
        members=tuple(rows),
        state=now.state,
        began=now.began,
        epoch_floor=now.epoch_floor,
    )


def _without_heartbeat(member: Member) -> Member:
    return structs.replace(member, mark=0, heartbeat_at=0.0)
