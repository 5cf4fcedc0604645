"""How many moves make shares even, as the simulated world counts them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given

from evenflow.core.plan import plan
from evenflow.model import Seat
from evenflow.testing.simulated.moves import fewest_moves, levels, unfair
from tests.unit.core import test_plan_properties as by_force


def seats(*names: str, **facts: int) -> list[Seat]:
    return [Seat(name, **facts) for name in names]


@pytest.mark.parametrize(
    ("held", "members", "moves"),
    [
        ({"a": 8}, "ab", 4),
        ({"a": 5}, "ab", 2),
        ({"a": 3, "b": 3}, "abc", 2),
        ({"a": 2, "b": 2, "c": 2}, "ab", 2),
        ({"a": 3, "b": 3, "c": 2}, "abc", 0),
        ({"a": 4, "b": 2}, "ab", 1),
        ({"a": 1, "b": 1}, "abcd", 0),
    ],
)
def test_what_is_beyond_its_share_moves(held: dict[str, int], members: str, moves: int) -> None:
    assert fewest_moves(held, seats(*members), sum(held.values())) == moves


def test_bounds_and_weights_make_shares() -> None:
    table = [Seat("a", 2.0), Seat("b", 1.0), Seat("c", 1.0, None, 4), Seat("d", 5.0, 1)]
    assert levels(11, table) == {name: Fraction(count) for name, count in {"a": 4, "b": 2, "c": 4, "d": 1}.items()}
    assert fewest_moves({"a": 11}, table, 11) == 7
    assert unfair({"a": 4, "b": 2, "c": 4, "d": 1}, table) is None
    assert unfair({"a": 5, "b": 2, "c": 3, "d": 1}, table) is not None


def test_where_too_few_are_there_for_all_it_is_not_told() -> None:
    assert fewest_moves({"a": 3}, seats("a", "b", min_partitions=2), 3) is None


@given(by_force.tables(seats_min=1))
def test_it_is_the_same_as_by_trying_every_way_to_round(table: by_force.Table) -> None:
    owned = {owner for owner in table.owners.values() if owner is not None}
    held = {owner: sum(one == owner for one in table.owners.values()) for owner in owned}
    assert fewest_moves(held, table.seats, len(table.owners)) == by_force.fewest_moves(table)


@given(by_force.tables(seats_min=1, least=True))
def test_the_planner_needs_no_more(table: by_force.Table) -> None:
    owned = {owner for owner in table.owners.values() if owner is not None}
    held = {owner: sum(one == owner for one in table.owners.values()) for owner in owned}
    fewest = fewest_moves(held, table.seats, len(table.owners))
    if fewest is not None:
        moves = plan(table.owners, table.seats).moves
        assert sum(move.before is not None for move in moves) == fewest
