"""What the plan would be, seen from outside: with the members there are, and with more or fewer of them.

The plan itself is `core.plan`, which every instance computes; here is only who counts as an owner and who gets a seat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.core.load import known_loads
from evenflow.core.plan import free_since, plan
from evenflow.model import PartitionId, Plan, Seat
from evenflow.operate.inspect.members import is_retiring
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Ledger, Member, Owner
    from evenflow.operate.inspect.survey import Survey

NEW = "new-"
"""How instances are called that are not there yet."""


class PlanForecast(Struct, frozen=True, kw_only=True):
    """A plan, and what it was made of."""

    owners: Mapping[PartitionId, str | None]
    """Who owns what now; nobody, where the owner is gone or silent."""
    seats: tuple[Seat, ...]
    plan: Plan
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    paused: tuple[PartitionId, ...] = ()
    """Nobody gets these."""
    unborn: tuple[PartitionId, ...] = ()
    """Nor these: they follow others, which have not ended."""
    loads: Mapping[PartitionId, float] | None = None
    """Of each partition, where the plan is by load; None where it is by count."""

    def carried(self, owners: Mapping[PartitionId, str | None]) -> dict[str, float] | None:
        """What each would carry with these owners, as a part of what one of its weight carries on average."""
        if self.loads is None or not self.seats:
            return None
        total = sum(self.loads.get(name, 0.0) for name in owners)
        mean = total / sum(seat.weight for seat in self.seats)
        if not mean:
            return None
        carried = {seat.id: 0.0 for seat in self.seats}
        for name, owner in owners.items():
            if owner in carried:
                carried[owner] += self.loads.get(name, 0.0)
        return {seat.id: carried[seat.id] / (mean * seat.weight) for seat in self.seats}

    def owned(self, member: str) -> int:
        return list(self.owners.values()).count(member)


def forecast_plan(found: Survey, silences: Mapping[Owner, float | None], members: int | None = None) -> PlanForecast:
    """The next plan; with `members`, the plan that so many instances would make.

    Instances that are not there yet count as ordinary ones. Of those that are, the youngest go first, as when a
    deployment is scaled down.
    """
    owners = _owners(found, silences)
    paused = tuple(name for name in owners if found.ledger is not None and found.ledger.state.pause_of(name))
    unborn = tuple(name for name in found.unborn if name not in paused)
    now = _members(found.ledger, silences)
    keep = now if members is None else now[: max(0, members)]
    taken = {member.id for member in now}
    fresh = (f"{NEW}{number}" for number in range(1, (members or 0) + len(taken) + 1))
    added = [name for name in fresh if name not in taken][: max(0, (members or 0) - len(now))]
    seats = [member.seat for member in keep] + [Seat(name) for name in added]
    loads = _loads(found.ledger, keep)
    wanted = {name: one for name, one in owners.items() if name not in (*paused, *unborn)}
    return PlanForecast(
        owners=owners,
        seats=tuple(seats),
        plan=plan(wanted, seats, loads, free_since(found.ledger.leases) if found.ledger is not None else None),
        loads=loads,
        added=tuple(added),
        removed=tuple(member.id for member in now[len(keep) :]),
        paused=paused,
        unborn=unborn,
    )


def _members(ledger: Ledger | None, silences: Mapping[Owner, float | None]) -> list[Member]:
    """Who gets a share: the oldest first."""
    if ledger is None:
        return []
    there = [
        member
        for member in ledger.members
        if not is_retiring(member, ledger) and (silences.get(member.owner) or 0.0) < member.ttl_s
    ]
    return sorted(there, key=lambda member: (member.started_at, member.incarnation, natural(member.id)))


def _loads(ledger: Ledger | None, members: Sequence[Member]) -> Mapping[PartitionId, float] | None:
    """As instances have it: by load only if all who get a share publish theirs. Who is not there yet would, too."""
    if ledger is None or not members or any(member.load is None for member in members):
        return None
    return known_loads(ledger.members, {lease.partition: lease for lease in ledger.leases}, {})


def _owners(found: Survey, silences: Mapping[Owner, float | None]) -> dict[PartitionId, str | None]:
    ledger = found.ledger
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    rows = {member.owner for member in ledger.members} if ledger is not None else set()
    owners: dict[PartitionId, str | None] = {}
    for name in sorted({*found.partitions, *leases}):
        lease = leases.get(name)
        if lease is None or not lease.ended:
            owner = lease.owner if lease is not None else None
            alive = owner in rows and (silences.get(owner) or 0.0) < lease.ttl_s if owner and lease else False
            owners[name] = owner.id if owner is not None and alive else None
    return owners
