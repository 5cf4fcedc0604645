"""Who should own which partition, when it is load that is to be even: how long handlers are busy with a partition.

As with counts, it keeps what is, gives away what nobody owns (the heaviest first, to the least loaded), and then moves
little. A member gives something away only when it carries more than START above the level; then it goes down to STOP
above it, so that what was moved stays moved while loads waver. Three ways, one after the other:

1. One partition to the least loaded: the lightest that is enough, or else the heaviest that fits.
2. An exchange of two, where no single move helps.
3. Where these end above what a greedy packing of all partitions reaches, that packing, with its bins matched to those
   who have most of what is in them.

The level is the mean load for weight, without those partitions that alone are above it: one hot partition fills a
member, and the others are to be even among each other. A member with far less than the level (a newcomer, as a rule)
is fed by those who have most, even when nobody is above START. Where members are busy for less than a quarter of their
time, START and the like are shares of that quarter: small differences between small loads are chance.

What holds (tests/unit/core/test_load_properties.py). Owners act at different moments, and unlike the plan by count this
one may then give other moves than the rest of the same. But from *every* state, also one in which any part of an
earlier plan was carried out, a plan ends within the bar (15% above the mean, or of that quarter, or the heaviest
partition, or the greedy packing, and what hysteresis allows above that), and the one after it moves nothing: so there
is no way to go round in circles while loads are as they are. What is moved in vain, when each owner has done all of its
moves or none, is at most 2%. A packing anew *is* finished as it was begun, in any order: its bins depend on loads
alone, and a move towards a bin adds to what its owner has in common with it and takes from a pair that was not chosen.
"""

from __future__ import annotations

from bisect import bisect_right
from math import fsum
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from evenflow.core.scales import Scales, heaviest_first, matched, pack
from evenflow.model import Assignment, PartitionId, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evenflow.core.scales import Item
    from evenflow.model import Lease, Member, Seat

START, STOP = 0.10, 0.03
"""Above the level: from where on a member gives away, and how far down it then goes."""
GAIN, PACK_GAIN, FINE = 0.05, 0.03, 0.01
"""By so much of the level the most loaded of those involved must be relieved, or nothing is moved; by so much a packing
anew must be better, which moves many. While something moves anyway, the third will do: then it is done well."""
STARVING, FED = 0.5, 0.9
"""Of the level: below the first a member is fed, up to the second."""
ENOUGH = 0.12
"""Above the mean: only above this is it worth asking whether a packing anew would do better."""
STEP = 0.001
"""The least part of the level by which one step must help."""
ROUNDS = 8
"""A bound that nothing comes near."""
EXCHANGES = 16
"""With how many of the least loaded an exchange is tried."""

LOAD_MOST = 1_000.0
"""Nobody is busier than that with one partition, whatever it publishes."""
IDLE = 0.001
"""Busy seconds a second: a partition below this counts as this, so that idle ones are spread by count ..."""
FLOOR = 0.02
"""... and no partition counts less than this part of the mean one."""
UNIT = 1_000_000
"""The mean load of a partition as a whole number."""


class Aim(NamedTuple):
    """Where the plan wants to go, in load for weight."""

    mean: float
    level: float
    quarter: float
    """A member that is busy for a quarter of its time."""

    @property
    def notable(self) -> float:
        """Where nobody has much to do, it is chance who has a little more, and a move helps nobody."""
        return max(self.mean, self.quarter)

    @property
    def yard(self) -> float:
        """What shares are taken of. Where all but a few partitions are idle, their level alone would be too fine."""
        return max(self.level, self.mean / 2, self.quarter)

    @property
    def start(self) -> float:
        return self.level + START * self.yard

    @property
    def stop(self) -> float:
        return self.level + STOP * self.yard


def is_load(value: object) -> TypeGuard[float]:
    """What a member may publish as a partition's load; anything else counts as unknown."""
    return isinstance(value, int | float) and value >= 0.0  # nan is neither above nor below


def known_loads(
    members: Iterable[Member], leases: Mapping[PartitionId, Lease], before: Mapping[PartitionId, float]
) -> dict[PartitionId, float]:
    """What is published of each partition: by its owner, or else by somebody who had it; or else what was `before`.

    Who passed a partition on publishes it until its new owner does, so that a load is not unknown on its way.
    """
    loads = dict(before)
    rows = sorted((member for member in members if member.load), key=lambda member: member.id)
    for member in rows:
        loads.update(_sound(member.load or {}))
    for member in rows:
        for partition, load in _sound(member.load or {}).items():
            lease = leases.get(partition)
            if lease is not None and lease.owner is not None and lease.owner.id == member.id:
                loads[partition] = load
    return loads


def _sound(loads: Mapping[PartitionId, float]) -> dict[PartitionId, float]:
    return {partition: min(LOAD_MOST, load) for partition, load in loads.items() if is_load(load)}


def load_plan(
    owners: Mapping[PartitionId, str | None],
    seats: Sequence[Seat],
    loads: Mapping[PartitionId, float],
) -> Plan | None:
    """None when there is no load to go by: all is idle, or nothing is known."""
    mean = _mean(owners, loads)
    if mean is None:
        return None
    figures = _figures(owners, loads, mean)
    scales = Scales(owners, seats, figures)
    before = {name: scales.scaled(name) for name in scales.load}
    aim = _aim(figures, scales.weight, UNIT / (4 * mean))
    _give_away(scales, owners)
    _settle(scales, aim, FINE if scales.log else GAIN)
    if scales.log:
        _settle(scales, aim, FINE)
    after = {
        partition: scales.moved.get(partition, owner if owner in before else None)
        for partition, owner in owners.items()
    }
    packed = _packed(scales, owners, after, seats, aim)
    return _told(owners, packed or after, before, aim, scales, anew=packed is not None)


def _mean(owners: Mapping[PartitionId, str | None], loads: Mapping[PartitionId, float]) -> float | None:
    """Of the partitions whose load is known. None: nothing to go by."""
    known = [load for partition in owners if is_load(load := loads.get(partition))]
    if not known or max(known) <= IDLE:
        return None
    return fsum(map(_bounded, known)) / len(known)


def _figures(
    owners: Mapping[PartitionId, str | None], loads: Mapping[PartitionId, float], mean: float
) -> dict[str, int]:
    """Every partition's load as a whole number, UNIT when it has the mean, or an unknown one."""
    known = {partition: _bounded(load) for partition in owners if is_load(load := loads.get(partition))}
    figures = {partition: max(int(UNIT * FLOOR), round(UNIT * load / mean)) for partition, load in known.items()}
    return {partition: figures.get(partition, UNIT) for partition in owners}


def _bounded(load: float) -> float:
    return max(IDLE, min(LOAD_MOST, load))


def _aim(figures: Mapping[PartitionId, int], weight: Mapping[str, float], quarter: float) -> Aim:
    """The level: what is left for the others, once those who have one partition above it are full."""
    total, width = float(sum(figures.values())), fsum(weight.values())
    mean = total / width
    level = mean
    widest = sorted(weight.values(), reverse=True)
    if max(figures.values()) > level * widest[0]:
        for load, wide in zip(sorted(figures.values(), reverse=True), widest[:-1], strict=False):
            if load <= level * wide:
                break
            total, width = total - load, width - wide
            level = total / width
    return Aim(mean, level, quarter)


# --- what nobody has
def _give_away(scales: Scales, owners: Mapping[PartitionId, str | None]) -> None:
    for name in sorted(name for name in scales.load if scales.surplus(name) > 0):
        for _, (_, partition) in scales.items(name)[: scales.surplus(name)]:
            scales.move(partition, name, None)
    loose = [partition for partition, owner in owners.items() if owner not in scales.load]
    loose += [partition for partition, name in scales.moved.items() if name is None]
    for partition in heaviest_first(loose, scales.figures):
        heir = scales.lightest()
        if heir is None:
            return
        scales.move(partition, None, heir)


def _settle(scales: Scales, aim: Aim, gain: float) -> None:
    """Until nothing helps any more: what was given away may make room for others that could not be helped before."""
    for _ in range(ROUNDS):
        mark = len(scales.log)
        _even_out(scales, aim, gain)
        _feed(scales, aim)
        if len(scales.log) == mark:
            return


# --- who has too much
def _even_out(scales: Scales, aim: Aim, gain: float) -> None:
    """One overloaded member after the other, the most loaded first, until none is left that can be helped."""
    start, stop = aim.start, aim.stop
    over = {name for name in scales.load if scales.scaled(name) > start}
    stuck = {name for name in over if _is_filled_by_one(scales, name, gain * aim.yard)}
    steps = len(scales.log) + 2 * len(scales.figures) + 8 * len(scales.load)
    while over - stuck and len(scales.log) < steps:
        source = max(over - stuck, key=lambda name: (scales.scaled(name), name))
        mark, before = len(scales.log), scales.scaled(source)
        while scales.scaled(source) > stop and len(scales.log) < steps and _step(scales, source, aim):
            pass
        touched = {source, *(name for _, *ends in scales.log[mark:] for name in ends if name is not None)}
        if before - max(map(scales.scaled, touched)) < gain * aim.yard:
            scales.back_to(mark)
            stuck.add(source)
        over = (over - touched) | {name for name in touched if scales.scaled(name) > start}
        if source in over:
            stuck.add(source)


def _is_filled_by_one(scales: Scales, name: str, gain: float) -> bool:
    """Nobody could carry its heaviest more easily, and to be rid of all the others would help too little."""
    rest = scales.load[name] - scales.items(name)[-1][0]
    return rest < gain * scales.weight[name] and scales.weight[name] == max(scales.weight.values())


def _step(scales: Scales, source: str, aim: Aim) -> bool:
    receiver = scales.lightest()
    if receiver is None or receiver == source:
        return _exchange(scales, source, aim)
    item = _enough(scales, source, receiver, aim) or _halfway(scales, source, receiver, aim)
    if item is None:
        return _exchange(scales, source, aim)
    scales.move(item[1][1], source, receiver)
    return True


def _enough(scales: Scales, source: str, receiver: str, aim: Aim) -> Item | None:
    """Of what fits into the receiver's gap: the lightest that is enough, or else the heaviest."""
    items = scales.items(source)
    gap = aim.level * scales.weight[receiver] - scales.load[receiver]
    needed = scales.load[source] - aim.stop * scales.weight[source]
    fitting = bisect_right(items, (gap, (1 << 32, "")))
    first = bisect_right(items, (needed, (-1, "")), hi=fitting)
    if first == fitting:
        return items[fitting - 1] if fitting else None
    item = items[first]
    stays = (scales.load[source] - item[0]) / scales.weight[source]
    return item if stays >= scales.scaled(receiver) else None


def _halfway(scales: Scales, source: str, receiver: str, aim: Aim) -> Item | None:
    """What brings the two nearest to each other, though the receiver is above the level then."""
    items = scales.items(source)
    ideal = _ideal(scales, source, receiver)
    at = bisect_right(items, (ideal, (1 << 32, "")))
    near = items[max(0, at - 1) : at + 1]
    best = min(near, key=lambda item: (_worse(scales, source, receiver, item[0]), item), default=None)
    if best is None or _worse(scales, source, receiver, best[0]) > scales.scaled(source) - STEP * aim.yard:
        return None
    return best


def _exchange(scales: Scales, source: str, aim: Aim) -> bool:
    """A heavier one for a lighter one."""
    best: tuple[float, Item, Item, str] | None = None
    for receiver in scales.lightest_few(EXCHANGES, but=source):
        ideal = _ideal(scales, source, receiver)
        others = scales.items(receiver)
        for item in scales.items(source):
            at = bisect_right(others, (item[0] - ideal, (1 << 32, "")))
            for other in others[max(0, at - 1) : at + 1]:
                found = (_worse(scales, source, receiver, item[0] - other[0]), item, other, receiver)
                if best is None or found < best:
                    best = found
    if best is None or best[0] > scales.scaled(source) - STEP * aim.yard:
        return False
    _, item, other, receiver = best
    scales.move(item[1][1], source, receiver)
    scales.move(other[1][1], receiver, source)
    return True


def _ideal(scales: Scales, source: str, receiver: str) -> float:
    """What would have to change hands for both to be even."""
    wide, other = scales.weight[source], scales.weight[receiver]
    return (scales.load[source] * other - scales.load[receiver] * wide) / (wide + other)


def _worse(scales: Scales, source: str, receiver: str, load: int) -> float:
    """The more loaded of the two, after so much has changed hands."""
    return max(
        (scales.load[source] - load) / scales.weight[source], (scales.load[receiver] + load) / scales.weight[receiver]
    )


# --- who has too little
def _feed(scales: Scales, aim: Aim) -> None:
    dry: set[str] = set()
    while (name := scales.lightest()) is not None and scales.scaled(name) < STARVING * aim.level:
        while scales.scaled(name) < FED * aim.level:
            giver = scales.heaviest(but=dry)
            if giver is None or giver == name or scales.scaled(giver) <= aim.level:
                return
            item = _spare(scales, giver, name, aim)
            if item is None:
                dry.add(giver)
            else:
                scales.move(item[1][1], giver, name)
                if not scales.has_room(name):
                    break


def _spare(scales: Scales, giver: str, receiver: str, aim: Aim) -> Item | None:
    """The heaviest that the giver can spare and the receiver takes; or else its lightest, if both are nearer then."""
    items = scales.items(giver)
    over = scales.load[giver] - FED * aim.level * scales.weight[giver]
    gap = aim.level * scales.weight[receiver] - scales.load[receiver]
    at = bisect_right(items, (min(over, gap), (1 << 32, "")))
    item = items[at - 1] if at else items[0]
    stays = (scales.load[giver] - item[0]) / scales.weight[giver]
    return item if stays >= (scales.load[receiver] + item[0]) / scales.weight[receiver] else None


# --- when that is not enough
def _packed(
    scales: Scales,
    owners: Mapping[PartitionId, str | None],
    after: Mapping[PartitionId, str | None],
    seats: Sequence[Seat],
    aim: Aim,
) -> dict[PartitionId, str | None] | None:
    """A packing anew, when all else ends above the bar and it does not."""
    peak = scales.peak()
    heaviest = max(scales.figures.values()) / max(scales.weight.values())
    if peak <= max(aim.mean + ENOUGH * aim.notable, heaviest) or None in after.values():
        return None
    packed = pack(owners, seats, scales.figures)
    other = Scales(packed, seats, scales.figures)
    _settle(other, aim, FINE)
    if other.peak() > peak - (FINE if scales.log else PACK_GAIN) * aim.notable:
        return None
    bins = packed | {partition: name for partition, name in other.moved.items() if name is not None}
    return dict(matched(bins, owners, seats))


# --- the plan, and why
def _told(
    owners: Mapping[PartitionId, str | None],
    after: Mapping[PartitionId, str | None],
    before: Mapping[str, float],
    aim: Aim,
    scales: Scales,
    *,
    anew: bool,
) -> Plan:
    capped = {partition for partition, _, heir in scales.log if heir is None}

    def why(partition: PartitionId, owner: str | None, heir: str | None) -> str:
        if owner is None:
            return "nobody owned it"
        if owner not in before:
            return f"{owner} leaves"
        if heir is None or partition in capped:
            return f"{owner} may not have so many"
        at = f"{owner} is at {before[owner] / aim.mean:.2f} of the mean load"
        if anew:
            return f"{at}, the most loaded at {max(before.values()) / aim.mean:.2f}: all are packed anew"
        if before[owner] > before[heir]:
            return f"{at}, its heaviest that helps goes to {heir} at {before[heir] / aim.mean:.2f}"
        return f"{at}, it gives this one to {heir} at {before[heir] / aim.mean:.2f} for a heavier one"

    changed = [partition for partition, owner in owners.items() if after[partition] != owner]
    order = {partition: number for number, (partition, *_) in enumerate(scales.log)}
    changed.sort(key=lambda partition: (order.get(partition, -1), partition))
    moves = tuple(
        Assignment(partition, owners[partition], after[partition], why(partition, owners[partition], after[partition]))
        for partition in changed
    )
    counts = dict.fromkeys(before, 0)
    for owner in after.values():
        if owner is not None:
            counts[owner] += 1
    return Plan(after, moves, counts)
