"""Who gets what by load, as sentences."""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING

import pytest

from evenflow.core.load import IDLE, known_loads
from evenflow.core.plan import plan
from evenflow.model import Lease, Member, Owner, Seat

if TYPE_CHECKING:
    from collections.abc import Mapping

ADA, BO, CY = Seat("ada"), Seat("bo"), Seat("cy")


def owned(**picture: str) -> dict[str, str | None]:
    return {
        partition: None if name == "nobody" else name for name, names in picture.items() for partition in names.split()
    }


def carried(owners: Mapping[str, str | None], loads: Mapping[str, float]) -> dict[str | None, float]:
    found: dict[str | None, float] = {}
    for partition, owner in owners.items():
        found[owner] = round(found.get(owner, 0.0) + loads[partition], 9)
    return found


def test_what_nobody_owns_goes_heaviest_first_to_the_least_loaded() -> None:
    loads = {"0": 0.5, "1": 0.3, "2": 0.2, "3": 0.1}
    planned = plan(owned(nobody="0 1 2 3"), (ADA, BO), loads)
    assert sorted(carried(planned.owners, loads).values()) == [0.5, 0.6]
    assert {move.reason for move in planned.moves} == {"nobody owned it"}


def test_within_a_tenth_of_the_mean_nothing_moves() -> None:
    loads = {"0": 0.1, "1": 0.1, "2": 0.009, "3": 0.1, "4": 0.09}
    assert plan(owned(ada="0 1 2", bo="3 4"), (ADA, BO), loads).moves == ()


def test_where_nobody_has_much_to_do_nothing_moves_because_of_a_little() -> None:
    loads = {"0": 0.02, "1": 0.02, "2": 0.01, "3": 0.01, "4": 0.02, "5": 0.02}
    owners = owned(ada="0 1 2 3", bo="4 5")
    assert plan(owners, (ADA, BO), loads).moves == ()
    assert len(plan(owners, (ADA, BO), {partition: 10 * load for partition, load in loads.items()}).moves) == 1
    # But who has nothing is given something.
    assert {move.after for move in plan(owners, (ADA, BO, CY), loads).moves} == {"cy"}


def test_one_move_that_is_enough_is_the_only_one() -> None:
    loads = {"0": 0.3, "1": 0.2, "2": 0.05, "3": 0.05, "4": 0.2}
    planned = plan(owned(ada="0 1 2 3", bo="4"), (ADA, BO), loads)
    assert [(move.partition, move.after) for move in planned.moves] == [("1", "bo")]


def test_a_move_says_why_in_figures() -> None:
    loads = {"0": 0.3, "1": 0.2, "2": 0.05, "3": 0.05, "4": 0.2}
    planned = plan(owned(ada="0 1 2 3", bo="4"), (ADA, BO), loads)
    assert [move.reason for move in planned.moves] == [
        "ada is at 1.50 of the mean load, its heaviest that helps goes to bo at 0.50"
    ]
    planned = plan(owned(ada="0 1", old="2", nobody="3"), (ADA, BO), loads)
    assert {move.partition: move.reason for move in planned.moves} | {"1": ""} == {
        "1": "",
        "2": "old leaves",
        "3": "nobody owned it",
    }


def test_where_no_single_move_helps_two_are_exchanged() -> None:
    loads = {"0": 0.5, "1": 0.4, "2": 0.3, "3": 0.3}
    planned = plan(owned(ada="0 1", bo="2 3"), (ADA, BO), loads)
    assert sorted(carried(planned.owners, loads).values()) == [0.7, 0.8]
    assert len(planned.moves) == 2
    assert {move.before for move in planned.moves} == {"ada", "bo"}
    assert any("for a heavier one" in move.reason for move in planned.moves)


def test_one_hot_partition_fills_its_owner_and_the_others_are_even() -> None:
    loads = {"hot": 0.9, **{str(number): 0.05 for number in range(8)}}
    planned = plan(owned(ada="hot 0 1", bo="2 3 4 5 6 7"), (ADA, BO, CY), loads)
    assert carried(planned.owners, loads) == {"ada": 0.9, "bo": 0.2, "cy": 0.2}


def test_a_newcomer_is_fed_though_nobody_has_a_tenth_too_much() -> None:
    seats = [Seat(f"m{number}") for number in range(20)]
    loads = {f"{number}.{part}": 0.1 for number in range(20) for part in range(10)}
    owners: dict[str, str | None] = {name: f"m{name.split('.')[0]}" for name in loads}
    planned = plan(owners, [*seats, Seat("new")], loads)
    assert {move.after for move in planned.moves} == {"new"}
    assert len(planned.moves) == 9
    assert len({move.before for move in planned.moves}) == 9


def test_weights_scale_what_is_even() -> None:
    loads = {str(number): 0.1 for number in range(9)}
    planned = plan(owned(ada="0 1 2 3 4 5 6 7 8"), (ADA, Seat("bo", 2.0)), loads)
    assert carried(planned.owners, loads) == {"ada": 0.3, "bo": 0.6}


def test_a_cap_is_respected_and_what_is_above_it_given_away() -> None:
    loads = {"0": 0.4, "1": 0.3, "2": 0.1, "3": 0.1}
    one = Seat("ada", max_partitions=1)
    planned = plan(owned(ada="0 1 2", bo="3"), (one, BO), loads)
    assert planned.shares == {"ada": 1, "bo": 3}
    assert {move.reason for move in planned.moves} == {"ada may not have so many"}
    planned = plan(owned(nobody="0 1 2 3"), (one, Seat("bo", max_partitions=2)), loads)
    assert planned.shares == {"ada": 1, "bo": 2}
    assert list(planned.owners.values()).count(None) == 1


def test_who_has_no_seat_loses_all() -> None:
    loads = {"0": 0.4, "1": 0.1, "2": 0.1, "3": 0.4}
    planned = plan(owned(old="0 1", ada="2", bo="3"), (ADA, BO), loads)
    assert planned.owners == {"0": "ada", "1": "bo", "2": "ada", "3": "bo"}


@pytest.mark.parametrize("loads", [{}, dict.fromkeys("0123", 0.0), {"0": IDLE, "1": 0.0}, {"elsewhere": 1.0}])
def test_without_any_load_counts_are_evened_out(loads: dict[str, float]) -> None:
    owners = owned(ada="0 1 2", nobody="3")
    assert plan(owners, (ADA, BO, CY), loads) == plan(owners, (ADA, BO, CY))


def test_idle_partitions_are_spread_by_count() -> None:
    loads = dict.fromkeys(map(str, range(13)), 0.0) | {"hot": 0.5}
    planned = plan(dict.fromkeys(loads), (ADA, BO, CY), loads)
    hot = planned.owners["hot"]
    assert sorted(count for name, count in planned.shares.items() if name != hot) == [6, 7]


def test_an_unknown_load_counts_as_the_mean() -> None:
    loads = {"0": 0.3, "1": 0.1}
    planned = plan(owned(nobody="0 1 2"), (ADA, BO), loads)
    assert planned.owners["1"] == planned.owners["2"] != planned.owners["0"]


@pytest.mark.parametrize("nonsense", [nan, -1.0, inf, -inf, 1e308, "much", None])
def test_nonsense_breaks_nobodys_plan(nonsense: float) -> None:
    loads = {"0": nonsense, "1": 0.3, "2": 0.3, "3": 0.3, "4": nonsense}
    planned = plan(owned(nobody="0 1 2 3 4"), (ADA, BO, CY), loads)
    assert None not in planned.owners.values()
    assert plan(planned.owners, (ADA, BO, CY), loads).moves == ()
    assert all(planned.shares.values())


def test_the_same_on_every_machine() -> None:
    """Instances never tell each other their plans, so these very assignments are part of the protocol."""
    loads = {str(number): 0.3 / (number + 1) for number in range(10)}
    planned = plan(owned(ada="0 1 2 3 4 5 6 7", nobody="8 9"), (ADA, BO, CY), loads)
    assert [(move.partition, move.after) for move in planned.moves] == [
        ("8", "cy"), ("9", "bo"), ("1", "bo"), ("2", "cy"), ("3", "cy"), ("4", "bo"), ("5", "cy"),
        ("6", "bo"), ("7", "cy"),
    ]  # fmt: skip


def member(name: str, load: dict[str, float] | None) -> Member:
    return Member(id=name, nonce=name, incarnation=1, ttl_s=8.0, load=load)


def lease(partition: str, owner: str) -> Lease:
    return Lease(partition=partition, owner=Owner(owner, 1))


def test_the_owners_word_counts_first_then_that_of_who_had_it_then_memory() -> None:
    rows = [member("ada", {"0": 0.1, "1": 0.2}), member("bo", {"0": 0.5}), member("cy", None)]
    leases = {name: lease(name, owner) for name, owner in {"0": "ada", "1": "bo", "2": "cy"}.items()}
    assert known_loads(rows, leases, {"1": 0.9, "2": 0.7}) == {"0": 0.1, "1": 0.2, "2": 0.7}


def test_nonsense_that_is_published_is_not_known() -> None:
    rows = [member("ada", {"0": nan, "1": -1.0, "2": 1e300})]
    leases = {name: lease(name, "ada") for name in "012"}
    assert known_loads(rows, leases, {"0": 0.3}) == {"0": 0.3, "2": 1000.0}
