"""Ledgers of a store that lists what there is: what differs from the ledger before, or from a number.

For stores whose documents or blobs others write, too, and where nothing counts the changes of a group as a whole. Each
client gives numbers by its clock, higher than all that it has seen, and remembers what it told last.
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


class Numbers:
    """Revisions and marks."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:  # noqa: TID251
        self._wall = wall
        self.highest = 0
        """Of all that were given or seen here."""

    def next(self) -> int:
        """Higher than every number seen here, and, as far as clocks agree, than every one that others have given."""
        self.highest = max(self.highest + 1, int(self._wall() * 1000))
        return self.highest

    def saw(self, *numbers: int) -> None:
        self.highest = max(self.highest, *numbers)


def is_ahead(since: Cursor | None, now: Cursor, seen: int) -> bool:
    """A number that nobody has given: somebody saw what the store does not know any more."""
    if since is None or (since.lineage, since.history) != (now.lineage, now.history):
        return False
    return since.revision > seen


async def together(requests: Iterable[Awaitable[Any]]) -> list[Any]:
    """All of them at once. When one fails the others are done first: what they began has an end."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)


class Picture(NamedTuple):
    """A group as it is known now."""

    cursor: Cursor
    born: int
    leases: Mapping[PartitionId, Lease]
    members: Mapping[str, Member]
    state: GroupState
    news: int
    """With which number the roster last changed."""
    loose: Collection[PartitionId]
    """Leases whose revisions do not tell whether they are news to somebody else."""
    began: int = 0
    epoch_floor: int = 0


class Told(NamedTuple):
    """What a ledger said."""

    leases: Mapping[PartitionId, Lease]
    members: Mapping[str, Member]
    born: int


class Teller:
    def __init__(self) -> None:
        self._told: OrderedDict[int, Told] = OrderedDict()

    def told(self, since: Cursor | None) -> Told | None:
        """What the ledger with this cursor said, if this client gave it lately."""
        return self._told.get(since.revision) if since is not None else None

    def ledger(self, now: Picture, me: Member | None, since: Cursor | None) -> Ledger:
        told = self.told(since)
        if me is not None or since is not None:  # whoever peeks does not ask for what came since
            self._tell(now)
        if since is None or not rules.fits(since, now.cursor, now.born):
            return _ledger(now, me, now.leases.values(), now.members.values(), whole=True)
        if told is None:
            return _by_numbers(now, me, since.revision)
        if told.leases.keys() - now.leases.keys():
            return _ledger(now, me, now.leases.values(), now.members.values(), whole=True)
        changed = [lease for partition, lease in now.leases.items() if told.leases.get(partition) != lease]
        if {name: _facts(member) for name, member in told.members.items()} != {
            name: _facts(member) for name, member in now.members.items()
        }:
            return _ledger(now, me, changed, now.members.values())
        still = [member for name, member in now.members.items() if told.members[name].mark == member.mark]
        return _ledger(now, me, changed, still, roster=False)

    def _tell(self, now: Picture) -> None:
        revision = now.cursor.revision
        self._told[revision] = Told(now.leases, now.members, now.born)
        self._told.move_to_end(revision)
        while len(self._told) > LEDGERS_REMEMBERED:
            self._told.popitem(last=False)


def _by_numbers(now: Picture, me: Member | None, revision: int) -> Ledger:
    """For a cursor that another client has given: what is newer, as far as clocks agree."""
    leases = [lease for name, lease in now.leases.items() if lease.revision > revision or name in now.loose]
    roster = now.news > revision
    members = now.members.values()
    rows = members if roster else [member for member in members if member.mark <= revision]
    return _ledger(now, me, leases, rows, roster=roster)


def _ledger(
    now: Picture,
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


def _facts(member: Member) -> Member:
    return structs.replace(member, mark=0, heartbeat_at=0.0)
