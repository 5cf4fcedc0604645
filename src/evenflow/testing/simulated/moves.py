"""Whether planned moves are as few as they can be, and the calm worlds in which instances only come and go.

How many moves make shares even again is computed here a second time, in exact fractions, without a look at the planner.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any

from evenflow.model import Seat
from evenflow.testing.simulated.checkers import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Lease
    from evenflow.testing.simulated.world import World

MOVING_EVERY, MOVING_AT = 24, 18
"""Of the calm worlds."""
CALM_S = 8.0
"""So long after the last change and the last move all is even, and all instances have seen each other's heartbeats."""
TRIED_S = 90.0
"""At most, until a newcomer has its share, and until all that it had is passed on."""


def is_moving(seed: int) -> bool:
    return seed % MOVING_EVERY == MOVING_AT


def draw_moves(seed: int) -> dict[str, Any]:
    """A world in which instances come and go, and all is even now and then in between."""
    if not is_moving(seed):
        return {}
    rng = random.Random(seed * 7919 + 22)
    return {
        "mean_gap_s": rng.choice((6.0, 15.0, 30.0)),
        "faulty_s": rng.choice((90.0, 150.0)),
        "partitions": rng.choice((2, 5, 8, 13, 16, 40)),
        "weights": rng.choice(((), (), (1.0, 2.0, 0.5))),
    }


# --- what is even
def levels(total: int, seats: Sequence[Seat]) -> dict[str, Fraction] | None:
    """How many partitions each seat should have, before rounding: in proportion to weight, within its bounds.

    None where there are too few for all that want so many at least: who gets them then is a matter of turns.
    """
    least = {seat.id: Fraction(seat.min_partitions or 0) for seat in seats}
    most = {seat.id: Fraction(total if seat.max_partitions is None else seat.max_partitions) for seat in seats}
    least = {name: min(bound, most[name]) for name, bound in least.items()}
    weight = {seat.id: Fraction(str(seat.weight)) for seat in seats}
    if not seats or sum(least.values()) > total:
        return None

    def at(level: Fraction) -> dict[str, Fraction]:
        return {name: max(least[name], min(most[name], level * weight[name])) for name in weight}

    if sum(most.values()) <= total:
        return most
    bounds = sorted({bound[name] / weight[name] for bound in (least, most) for name in weight})
    below = max(level for level in [Fraction(0), *bounds] if sum(at(level).values()) <= total)
    above = min(level for level in bounds if sum(at(level).values()) >= total)
    low, high = sum(at(below).values()), sum(at(above).values())
    return at(below if low == high else below + (above - below) * (total - low) / (high - low))


def fewest_moves(held: Mapping[str, int], seats: Sequence[Seat], total: int) -> int | None:
    """How many of the partitions that are held have to change hands, so that shares are even. `held` may name instances
    without a seat: they give away all that they have."""
    quotas = levels(total, seats)
    if quotas is None:
        return None
    spare = floor(sum(quotas.values())) - sum(map(floor, quotas.values()))
    stay = sum(min(held.get(name, 0), floor(quota)) for name, quota in quotas.items())
    stay += min(spare, sum(held.get(name, 0) > floor(quota) < quota for name, quota in quotas.items()))
    return sum(held.values()) - stay


def unfair(counts: Mapping[str, int], seats: Sequence[Seat]) -> str | None:
    """Whether any of these is off its share by one or more."""
    quotas = levels(sum(counts.values()), seats) or {}
    off = {name: counts.get(name, 0) for name, quota in quotas.items() if abs(counts.get(name, 0) - quota) >= 1}
    return f"shares are uneven: {off} of {dict(counts)}, weights {[seat.weight for seat in seats]}" if off else None


class FewestMoves:
    """7. Between two changes of membership no more partitions move than it takes to make shares even again.

    Where a change comes before all is even again, those who have not heard of it go on as before: each of the moves
    that were left may be made in vain, and undone.
    """

    def __init__(self, world: World) -> None:
        options = world.options
        self._world = world
        self._is_active = options.balance == "count" and options.failing is None and not any(options.rates.values())
        self._is_active = self._is_active and set(options.incidents) <= {"join", "retire", "set_wall"}
        self._seats: list[Seat] = []
        self._changed_s = 0.0
        self._most: int | None = None
        """So many moves at most since all was even; None: it never was, or cannot be told."""
        self._done = 0
        self.stretches = 0
        """How many changes began with even shares."""
        self.moves = 0
        """How many moves were among those that were looked at."""

    def changed(self) -> None:
        """An instance has come, or was told to leave."""
        before, self._seats = self._seats, self._seats_now()
        now_s, since_s = self._world.timeline.now_s, max(self._changed_s, self._world.last_write_s)
        self._changed_s = now_s
        held, total = self._held()
        left, after = fewest_moves(held, before, total), fewest_moves(held, self._seats, total)
        if not self._is_active or left is None or after is None:
            self._most = None
        elif left == 0 and now_s - since_s >= CALM_S and sum(held.values()) == total:
            self._most, self._done = after, 0
            self.stretches += 1
        elif self._most is not None:
            here = {seat.id for seat in self._seats}
            self._most += after + 2 * left + sum(held[seat.id] for seat in before if seat.id not in here)

    def stop(self) -> None:
        """Somebody has died: what follows is not planned."""
        self._is_active, self._most = False, None

    def written(self, before: Lease | None, after: Lease) -> None:
        if self._most is None or before is None or before.owner is None or before.owner == after.owner:
            return
        self._done, self.moves = self._done + 1, self.moves + 1
        if self._done > self._most:
            raise Violation(
                f"partition {after.partition} moved ({after.reason}): that is {self._done} moves, and {self._most} make"
                " shares even"
            )

    def _seats_now(self) -> list[Seat]:
        options = self._world.options
        names = {process.name for process in self._world._alive()}
        return [Seat(name, options.weight_of(name), None, options.least_of(name)) for name in sorted(names)]

    def _held(self) -> tuple[Counter[str], int]:
        """Who has how many of those that are open, and how many of those there are."""
        leases, names = self._world.leases(), self._world.source.open_ids
        owners = (leases[name].owner for name in names if name in leases)
        return Counter(owner.id for owner in owners if owner is not None), len(names)

    def uneven(self) -> str | None:
        """By weight, within what some want at least."""
        counts, _ = self._held()
        return unfair(counts, self._seats_now())

    # --- at the end of each world
    def try_out(self) -> None:
        """All is even and nothing moves any more, whatever happened before: one comes, and leaves again."""
        world = self._world
        self._is_active = True
        self._seats = self._seats_now()
        newcomer = world.start("newcomer")
        self._await_even("a newcomer")
        world.retire(newcomer)
        self._await_even("one that leaves")

    def _await_even(self, who: str) -> None:
        world = self._world
        began_s = world.timeline.now_s
        while (question := world.unsettled()) or world.timeline.now_s - max(world.last_write_s, began_s) < CALM_S:
            if question and world.timeline.now_s > began_s + TRIED_S:
                raise Violation(f"nothing went wrong for {TRIED_S:.0f} s, but for {who}: {question}")
            world._run_until(world.timeline.now_s + 0.5)
