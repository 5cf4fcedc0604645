"""Who should own which partition.

The plan keeps what is, gives away what nobody owns, and moves the fewest partitions that make shares even. It depends
on nothing but its arguments, so all instances that see the same compute the same.

It is also stable while it is being carried out: planning again after some of its moves were made gives the rest of
the same moves. Owners act at different moments on different states of the ledger, and this is what keeps them from
sending a newcomer more than its share. Three choices make it so: shares prefer those who have more than the base
(all of them alike), an owner gives away its first partitions in a fixed order, and receivers in a fixed order are
filled one after the other from one pool in a fixed order.
"""

from __future__ import annotations

from math import floor, fsum, inf
from typing import TYPE_CHECKING

from evenflow.core.load import load_plan
from evenflow.core.seats import bounded, rank
from evenflow.model import Assignment, PartitionId, Plan, Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.model import Lease

ROUNDING = 1e-9
"""Quotas are fractions; 2.9999999999 is three."""


def plan(
    owners: Mapping[PartitionId, str | None],
    seats: Sequence[Seat],
    loads: Mapping[PartitionId, float] | None = None,
    since: Mapping[PartitionId, float] | None = None,
) -> Plan:
    """A plan for all partitions in `owners` (who owns each now, None when nobody alive does) over `seats`.

    An owner without a seat (it retires, or is gone) loses all it has. Partitions stay without an owner only when
    there is no seat, or every seat has as many as it may have; then those go first that nobody has owned for longest
    (`since`, see `free_since`), so that each has its turn. With `loads` it is loads that are evened out, as far as
    there are any; otherwise counts.
    """
    by_load = load_plan(owners, seats, loads) if loads and seats else None
    return by_load if by_load is not None else _count_plan(owners, seats, since or {})


def _count_plan(
    owners: Mapping[PartitionId, str | None], seats: Sequence[Seat], since: Mapping[PartitionId, float]
) -> Plan:
    held = _by_owner(owners)
    shares = fair_shares(len(owners), seats, {seat.id: len(held.get(seat.id, ())) for seat in seats})
    pool = list(held.pop(None, ()))
    for owner, partitions in held.items():
        surplus = len(partitions) - shares.get(owner or "", 0)
        if surplus > 0:
            pool += sorted(partitions, key=rank)[:surplus]
    if not pool:
        return Plan(owners, (), shares)
    pool.sort(key=rank)
    room = _room(seats, shares, held)
    served = sorted(pool, key=lambda partition: _turn(partition, owners, since))[:room] if room < len(pool) else pool
    after = dict(owners) | dict.fromkeys(pool)
    after.update(zip(sorted(served, key=rank), _receivers(seats, shares, held), strict=False))
    moves = tuple(
        Assignment(partition, owners[partition], after[partition], _reason(owners[partition], shares, held))
        for partition in pool
        if owners[partition] != after[partition]
    )
    return Plan(after, moves, shares)


def free_since(leases: Iterable[Lease]) -> dict[PartitionId, float]:
    """Of those that nobody owns, since when, as their store tells time."""
    return {lease.partition: lease.changed_at for lease in leases if lease.owner is None}


def fair_shares(count: int, seats: Sequence[Seat], held: Mapping[str, int]) -> dict[str, int]:
    """How many partitions each seat should have: in proportion to weight, off by less than one, within its bounds.

    What cannot be divided goes to those who have more than the rounded-down share already: that saves moves.
    """
    least = _least(count, seats, held)
    shares: dict[str, int] = {}
    open_seats, left = list(seats), count
    while open_seats:
        weights = {seat.id: bounded(seat.weight) for seat in open_seats}
        total = sum(weights.values())
        quotas = {name: left * weight / total for name, weight in weights.items()}
        fixed = _at_their_bounds(open_seats, quotas, least)
        if not fixed:
            shares.update(_divide(left, quotas, held))
            break
        shares.update(fixed)
        left -= sum(fixed.values())
        open_seats = [seat for seat in open_seats if seat.id not in fixed]
    return shares


def _least(count: int, seats: Sequence[Seat], held: Mapping[str, int]) -> dict[str, int]:
    """What some seats get at least. Where that is too much for all, it goes to one after the other: to those who have
    it already, so that nothing moves for it, and then in a fixed order."""
    wanted = {seat.id: int(min(seat.min_partitions, _most(seat))) for seat in seats if seat.min_partitions is not None}
    least: dict[str, int] = {}
    for name in sorted(wanted, key=lambda name: (held.get(name, 0) < wanted[name], rank(name))):
        least[name] = min(wanted[name], count)
        count -= least[name]
    return least


def _most(seat: Seat) -> float:
    return inf if seat.max_partitions is None else seat.max_partitions


def _at_their_bounds(seats: Sequence[Seat], quotas: Mapping[str, float], least: Mapping[str, int]) -> dict[str, int]:
    """Those whose quota is beyond a bound. Who has too much gives to the others, and who has too little takes from
    them; so of the two kinds that is fixed first which weighs more, and may spare the other."""
    over = {seat.id: int(_most(seat)) for seat in seats if _most(seat) <= floor(quotas[seat.id] + ROUNDING)}
    under = {name: bound for name, bound in least.items() if name in quotas and bound > floor(quotas[name] + ROUNDING)}
    lacks = fsum(bound - quotas[name] for name, bound in (over | under).items())
    return under if lacks > ROUNDING else over if lacks < -ROUNDING else over | under


def _divide(count: int, quotas: Mapping[str, float], held: Mapping[str, int]) -> dict[str, int]:
    shares = {name: floor(quota + ROUNDING) for name, quota in quotas.items()}
    extra = count - sum(shares.values())
    if extra:

        def worth(name: str) -> tuple[bool, bool, float, tuple[int, str]]:
            # Whose quota is whole comes last, whatever it has: one more would put it a whole partition above.
            fraction = round(quotas[name] - shares[name], 9)
            return fraction <= 0, held.get(name, 0) <= shares[name], -fraction, rank(name)

        for name in sorted(shares, key=worth)[:extra]:
            shares[name] += 1
    return shares


def _by_owner(owners: Mapping[PartitionId, str | None]) -> dict[str | None, list[PartitionId]]:
    held: dict[str | None, list[PartitionId]] = {}
    for partition, owner in owners.items():
        held.setdefault(owner, []).append(partition)
    return held


def _receivers(
    seats: Sequence[Seat], shares: Mapping[str, int], held: Mapping[str | None, Sequence[PartitionId]]
) -> Iterable[str]:
    for seat in sorted(seats, key=lambda seat: rank(seat.id)):
        missing = shares[seat.id] - len(held.get(seat.id, ()))
        yield from (seat.id for _ in range(missing))


def _room(seats: Sequence[Seat], shares: Mapping[str, int], held: Mapping[str | None, Sequence[PartitionId]]) -> int:
    return sum(max(0, shares[seat.id] - len(held.get(seat.id, ()))) for seat in seats)


def _turn(
    partition: PartitionId, owners: Mapping[PartitionId, str | None], since: Mapping[PartitionId, float]
) -> tuple[float, tuple[int, str]]:
    """Whose turn it is first where not all can be served. What somebody gives away goes on: it stays first when a
    part of the plan is carried out, and some of the rest was released."""
    return (since.get(partition, -inf) if owners[partition] is None else -inf), rank(partition)


def _reason(owner: str | None, shares: Mapping[str, int], held: Mapping[str | None, Sequence[PartitionId]]) -> str:
    if owner is None:
        return "nobody owned it"
    if owner not in shares:
        return f"{owner} leaves"
    return f"{owner} had {len(held[owner])}, its share is {shares[owner]}"
