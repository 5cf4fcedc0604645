"""What holds for every plan: complete, even to one, fewest moves, settled, the same for all, and stable on the way.

What is fair is computed here a second time, in exact fractions and by brute force, without a look at the planner.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.core.plan import plan
from evenflow.model import Assignment, Plan, Seat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WEIGHTS = ["1", "1", "1", "2", "3", "5", "0.5", "0.1", "0.3", "0.7"]
"""As text, so that a fraction of it is exact."""


class Table(NamedTuple):
    """Who sits at the table, and who owns what."""

    seats: list[Seat]
    owners: dict[str, str | None]

    @property
    def held(self) -> dict[str, int]:
        return {seat.id: sum(owner == seat.id for owner in self.owners.values()) for seat in self.seats}

    def after(self, moves: Sequence[Assignment]) -> Table:
        return Table(self.seats, self.owners | {move.partition: move.after for move in moves})


@st.composite
def tables(
    draw: st.DrawFn, *, seats_min: int = 0, partitions_max: int = 12, caps: bool = True, least: bool = False
) -> Table:
    """With `least`, some want so many at least."""
    names = [f"m{number}" for number in range(draw(st.integers(seats_min, 5)))]
    weights = st.sampled_from(WEIGHTS if draw(st.booleans()) else ["1"])
    caps_of = st.sampled_from([None, None, 1, 2, 3, 5]) if caps and draw(st.booleans()) else st.none()
    least_of = st.sampled_from([None, None, 1, 2, 4, 7]) if least else st.none()
    seats = [Seat(name, float(draw(weights)), draw(caps_of), draw(least_of)) for name in names]
    owners = [*names, None, "retiring", "gone"]
    count = draw(st.integers(0, partitions_max))
    return Table(seats, {str(number): draw(st.sampled_from(owners)) for number in range(count)})


def exact_quotas(count: int, seats: Sequence[Seat]) -> dict[str, Fraction]:
    """Water poured into vessels as wide as weights and as full as caps allow: where it stands in each."""
    weight = {seat.id: Fraction(str(seat.weight)) for seat in seats}
    left, quotas = Fraction(count), dict[str, Fraction]()
    capped = [seat for seat in seats if seat.max_partitions is not None]
    for seat in sorted(capped, key=lambda seat: Fraction(seat.max_partitions or 0) / weight[seat.id]):
        level = left / sum(weight[one.id] for one in seats if one.id not in quotas)
        if (seat.max_partitions or 0) > level * weight[seat.id]:
            break
        quotas[seat.id] = Fraction(seat.max_partitions or 0)
        left -= quotas[seat.id]
    rest = [seat.id for seat in seats if seat.id not in quotas]
    return quotas | {name: left * weight[name] / sum(weight[one] for one in rest) for name in rest}


def room(table: Table) -> int:
    """How many partitions can have an owner."""
    count = len(table.owners)
    return min(count, sum(count if seat.max_partitions is None else seat.max_partitions for seat in table.seats))


def fewest_moves(table: Table) -> int:
    """Of owned partitions, over all allowed ways to round the quotas, by trying every one."""
    quotas = exact_quotas(room(table), table.seats)
    held, best = table.held, 0
    for shares in product(*({floor(quota), ceil(quota)} for quota in quotas.values())):
        if sum(shares) == room(table):
            best = max(best, sum(min(held[name], share) for name, share in zip(quotas, shares, strict=True)))
    return sum(owner is not None for owner in table.owners.values()) - best


def counted(planned: Plan) -> dict[str, int]:
    return {name: sum(owner == name for owner in planned.owners.values()) for name in planned.shares}


@given(tables(least=True))
def test_every_partition_has_one_owner_as_long_as_there_is_room(table: Table) -> None:
    planned = plan(table.owners, table.seats)
    assert planned.owners.keys() == table.owners.keys()
    found = list(planned.owners.values())
    assert found.count(None) == len(found) - room(table)
    assert set(found) <= {seat.id for seat in table.seats} | {None}


@settings(max_examples=300)
@given(tables(partitions_max=8))
def test_shares_are_even_to_one(table: Table) -> None:
    planned = plan(table.owners, table.seats)
    found = counted(planned)
    for name, quota in exact_quotas(room(table), table.seats).items():
        assert abs(found[name] - quota) < 1
    for seat in table.seats:
        assert seat.max_partitions is None or found[seat.id] <= seat.max_partitions
    assert planned.shares == found


def wants(table: Table) -> dict[str, int]:
    """What each of them wants at least, as far as it may have that."""
    count = len(table.owners)
    return {seat.id: min(seat.min_partitions or 0, count + 1 if (most := seat.max_partitions) is None else most)
            for seat in table.seats}  # fmt: skip


@settings(max_examples=400)
@given(tables(least=True, partitions_max=20))
def test_who_wants_some_at_least_has_them_while_there_are_enough(table: Table) -> None:
    found, wanted = counted(plan(table.owners, table.seats)), wants(table)
    if sum(wanted.values()) <= len(table.owners):
        assert all(found[name] >= least for name, least in wanted.items())
        return
    assert all(found[name] <= least for name, least in wanted.items()), "nobody has more before all have enough"
    assert sum(0 < found[name] < least for name, least in wanted.items()) <= 1
    assert all(found[name] == least for name, least in wanted.items() if table.held[name] >= least), "it had enough"


@settings(max_examples=400)
@given(tables(least=True, partitions_max=20))
def test_beyond_what_is_wanted_at_least_shares_are_even(table: Table) -> None:
    """Nobody who has more than it wants would be nearer to others without one of them."""
    found, wanted = counted(plan(table.owners, table.seats)), wants(table)
    weight = {seat.id: Fraction(str(seat.weight)) for seat in table.seats}
    for giver, taker in product(table.seats, table.seats):
        may_take = taker.max_partitions is None or found[taker.id] < taker.max_partitions
        if found[giver.id] > wanted[giver.id] and may_take and weight[giver.id] == weight[taker.id]:
            assert found[giver.id] - found[taker.id] <= 1


@given(tables(caps=False, seats_min=1))
def test_without_caps_a_share_is_the_proportion_of_the_weight(table: Table) -> None:
    found = counted(plan(table.owners, table.seats))
    total = sum(Fraction(str(seat.weight)) for seat in table.seats)
    for seat in table.seats:
        assert abs(found[seat.id] - len(table.owners) * Fraction(str(seat.weight)) / total) < 1


@given(tables())
def test_no_plan_moves_fewer(table: Table) -> None:
    moves = plan(table.owners, table.seats).moves
    assert sum(move.before is not None for move in moves) == fewest_moves(table)
    assert len({move.partition for move in moves}) == len(moves)
    assert all(move.before != move.after for move in moves)


@given(tables(least=True))
def test_a_settled_plan_moves_nothing(table: Table) -> None:
    planned = plan(table.owners, table.seats)
    again = plan(planned.owners, table.seats)
    assert again.moves == ()
    assert again.owners == planned.owners


@given(tables(least=True), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_told_changes_nothing(table: Table, rng: object) -> None:
    first = plan(table.owners, table.seats)
    other = plan(shuffled(table.owners, rng), [*reversed(table.seats)])
    assert (other.owners, other.moves, other.shares) == (first.owners, first.moves, first.shares)


def shuffled(owners: Mapping[str, str | None], rng: object) -> dict[str, str | None]:
    names = list(owners)
    rng.shuffle(names)  # type: ignore[attr-defined]
    return {name: owners[name] for name in names}


@settings(max_examples=400)
@given(tables(partitions_max=20, least=True), st.data())
def test_what_is_half_done_is_finished_as_it_was_begun(table: Table, data: st.DataObject) -> None:
    """Owners act at different moments, in any order: the rest of the moves stays as it was, with the same heirs."""
    first = plan(table.owners, table.seats)
    order = data.draw(st.permutations(first.moves))
    done = order[: data.draw(st.integers(0, len(order)))]
    again = plan(table.after(done).owners, table.seats)
    assert again.owners == first.owners
    assert again.shares == first.shares
    assert {move[:3] for move in again.moves} == {move[:3] for move in first.moves if move not in done}


@given(tables(partitions_max=20, least=True), st.data())
def test_what_was_taken_from_its_owner_on_the_way_still_goes_to_the_same_heir(
    table: Table, data: st.DataObject
) -> None:
    """An owner that retires releases, and a dead one is taken over: meanwhile a partition that moves is nobody's."""
    first = plan(table.owners, table.seats)
    freed = [move for move in first.moves if data.draw(st.booleans())]
    owners = table.owners | {move.partition: None for move in freed}
    assert plan(owners, table.seats).owners == first.owners


@given(tables(seats_min=1, partitions_max=20, least=True), st.data())
def test_no_newcomer_ever_has_more_than_its_share(table: Table, data: st.DataObject) -> None:
    """However the moves of a plan interleave, each is a step towards the plan."""
    first = plan(table.owners, table.seats)
    now, before = table, table.held
    for move in data.draw(st.permutations(first.moves)):
        now = now.after([move])
        for name, held in now.held.items():
            assert min(before[name], first.shares[name]) <= held <= max(before[name], first.shares[name])


@given(tables(least=True))
def test_reasons_are_true(table: Table) -> None:
    planned = plan(table.owners, table.seats)
    held = table.held
    for move in planned.moves:
        if move.before is None:
            assert move.reason == "nobody owned it"
        elif move.before not in held:
            assert move.reason == f"{move.before} leaves"
        else:
            had, share = held[move.before], planned.shares[move.before]
            assert move.reason == f"{move.before} had {had}, its share is {share}"
            assert had > share


@pytest.mark.parametrize("joined", [1, 7, 100])
def test_in_a_large_group_only_the_newcomers_shares_move(joined: int) -> None:
    before = plan({str(number): None for number in range(1000)}, [Seat(f"m{number}") for number in range(100)])
    seats = [Seat(f"m{number}") for number in range(100 + joined)]
    planned = plan(before.owners, seats)
    assert {move.after for move in planned.moves} == {f"m{number}" for number in range(100, 100 + joined)}
    assert len(planned.moves) == sum(planned.shares[f"m{number}"] for number in range(100, 100 + joined))
    assert max(planned.shares.values()) - min(planned.shares.values()) <= 1
