"""Forecasts the plan from outside the group: with its current members, or with more or fewer of them.

The plan itself is `core.plan`, which every instance computes; this decides only who counts as an owner and who gets a
seat.
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
"""The name prefix of instances that do not exist yet."""


class PlanForecast(Struct, frozen=True, kw_only=True):
    """A plan, and its input."""

    owners: Mapping[PartitionId, str | None]
    """The owner of each partition now; None where it has none, or where its owner is gone or silent."""
    seats: tuple[Seat, ...]
    plan: Plan
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    paused: tuple[PartitionId, ...] = ()
    """The plan leaves these out."""
    waiting: tuple[PartitionId, ...] = ()
    """These, too: they wait for their parents to end."""
    loads: Mapping[PartitionId, float] | None = None
    """Of each partition, where the plan balances by load; None where it balances by count."""

    def carried(self, owners: Mapping[PartitionId, str | None]) -> dict[str, float] | None:
        """The load of each instance with these owners, relative to the mean for its weight."""
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
    """The next plan; with `members`, the plan that this number of instances would make.

    Additional instances have weight 1 and no limits. Fewer instances: the youngest leave first, as when a deployment
    is scaled down.
    """
    owners = _owners(found, silences)
    paused = tuple(name for name in owners if found.ledger is not None and found.ledger.state.pause_of(name))
    waiting = tuple(name for name in found.waiting_for if name not in paused)
    now = _members(found.ledger, silences)
    keep = now if members is None else now[: max(0, members)]
    taken = {member.id for member in now}
    fresh = (f"{NEW}{number}" for number in range(1, (members or 0) + len(taken) + 1))
    added = [name for name in fresh if name not in taken][: max(0, (members or 0) - len(now))]
    seats = [member.seat for member in keep] + [Seat(name) for name in added]
    loads = _loads(found.ledger, keep)
    wanted = {name: one for name, one in owners.items() if name not in (*paused, *waiting)}
    return PlanForecast(
        owners=owners,
        seats=tuple(seats),
        plan=plan(wanted, seats, loads, free_since(found.ledger.leases) if found.ledger is not None else None),
        loads=loads,
        added=tuple(added),
        removed=tuple(member.id for member in now[len(keep) :]),
        paused=paused,
        waiting=waiting,
    )


def _members(ledger: Ledger | None, silences: Mapping[Owner, float | None]) -> list[Member]:
    """Those that get a share, the oldest first."""
    if ledger is None:
        return []
    there = [
        member
        for member in ledger.members
        if not is_retiring(member, ledger) and (silences.get(member.owner) or 0.0) < member.ttl_s
    ]
    return sorted(there, key=lambda member: (member.started_at, member.incarnation, natural(member.id)))


def _loads(ledger: Ledger | None, members: Sequence[Member]) -> Mapping[PartitionId, float] | None:
    """As the instances do it: by load only if all members that get a share publish their load. New ones would, too."""
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
