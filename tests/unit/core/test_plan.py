"""Who gets what, as sentences: a picture of who owns what, who sits at the table, and what the plan makes of it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import pytest

from evenflow.core.plan import fair_shares, plan
from evenflow.core.seats import rank
from evenflow.model import Seat

Picture: TypeAlias = "dict[str | None, str]"
"""An owner (None: nobody), and the partitions that it has."""

ADA, BO, CY = Seat("ada"), Seat("bo"), Seat("cy")
ADA_1, ADA_2 = Seat("ada", max_partitions=1), Seat("ada", max_partitions=2)
BO_2, BO_3 = Seat("bo", max_partitions=2), Seat("bo", max_partitions=3)
TWO = Seat("two", 2.0)
ADA_3UP, ADA_4UP, BO_2UP, BO_4UP = (
    *(Seat("ada", min_partitions=count) for count in (3, 4)),
    *(Seat("bo", min_partitions=count) for count in (2, 4)),
)


class Case(NamedTuple):
    sentence: str
    before: Picture
    seats: tuple[Seat, ...]
    counts: dict[str | None, int]
    moves: int


def owners(picture: Picture) -> dict[str, str | None]:
    return {partition: owner for owner, names in picture.items() for partition in names.split()}


def counts(planned: dict[str, str | None]) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for owner in planned.values():
        found[owner] = found.get(owner, 0) + 1
    return found


CASES = [
    Case("nothing to own needs no move", {}, (ADA, BO), {}, 0),
    Case("the only one gets all", {None: "0 1 2"}, (ADA,), {"ada": 3}, 3),
    Case("what nobody owns is shared evenly", {None: "0 1 2 3"}, (ADA, BO), {"ada": 2, "bo": 2}, 4),
    Case("a newcomer gets its share", {"ada": "0 1 2 3"}, (ADA, BO), {"ada": 2, "bo": 2}, 2),
    Case("who has one more than others keeps it", {"ada": "0 1", "bo": "2"}, (ADA, BO), {"ada": 2, "bo": 1}, 0),
    Case("even is left alone", {"ada": "0 1", "bo": "2 3"}, (ADA, BO), {"ada": 2, "bo": 2}, 0),
    Case("only the surplus moves", {"ada": "0 1 2 3", "bo": "4 5"}, (ADA, BO, CY), {"ada": 2, "bo": 2, "cy": 2}, 2),
    Case("more members than partitions", {"ada": "0", "bo": "1"}, (ADA, BO, CY), {"ada": 1, "bo": 1}, 0),
    Case("who leaves loses all", {"old": "0 1 2 3"}, (ADA, BO), {"ada": 2, "bo": 2}, 4),
    Case("who leaves is replaced by its successor", {"ada": "0 1", "old": "2 3"}, (ADA, BO), {"ada": 2, "bo": 2}, 2),
    Case("with nobody left all becomes nobody's", {"old": "0 1", None: "2"}, (), {None: 3}, 2),
    Case("with nobody there nothing changes", {None: "0 1"}, (), {None: 2}, 0),
    Case("double weight, double share", {None: "0 1 2 3 4 5"}, (Seat("ada", 2.0), BO), {"ada": 4, "bo": 2}, 6),
    Case("weights are proportions", {None: "0 1 2"}, (Seat("ada", 0.2), Seat("bo", 0.1)), {"ada": 2, "bo": 1}, 3),
    Case("whose quota is whole keeps no more", {"two": "0 1"}, (TWO, BO, CY), {"two": 1, "cy": 1}, 1),
    Case("whose quota is whole gets no less", {"bo": "0", "cy": "1"}, (TWO, BO, CY), {"two": 1, "cy": 1}, 1),
    Case("a cap passes the rest on", {None: "0 1 2 3 4 5"}, (ADA_1, BO), {"ada": 1, "bo": 5}, 6),
    Case("a cap that is not reached changes nothing", {None: "0 1"}, (ADA_2, BO), {"ada": 1, "bo": 1}, 2),
    Case("a cap of the exact share is no cap", {"ada": "0 1", "bo": "2 3"}, (ADA_2, BO), {"ada": 2, "bo": 2}, 0),
    Case("a cap takes what is above it", {"ada": "0 1 2 3"}, (ADA_1, BO), {"ada": 1, "bo": 3}, 3),
    Case("one cap after the other", {None: "0 1 2 3 4 5 6 7"}, (ADA_1, BO_3, CY), {"ada": 1, "bo": 3, "cy": 4}, 8),
    Case("caps of all leave some to nobody", {None: "0 1 2 3"}, (ADA_1, BO_2), {"ada": 1, "bo": 2, None: 1}, 3),
    Case("who has more than it may gives it up", {"ada": "0 1 2"}, (ADA_2,), {"ada": 2, None: 1}, 1),
    Case("who wants some has them at least", {None: "0 1 2 3"}, (ADA_3UP, BO), {"ada": 3, "bo": 1}, 4),
    Case("it takes them from those who have more", {"bo": "0 1 2 3"}, (ADA_3UP, BO), {"ada": 3, "bo": 1}, 3),
    Case("who has its share anyway has no more", {None: "0 1 2 3"}, (ADA, BO_2UP), {"ada": 2, "bo": 2}, 4),
    Case("with too few for all, who has them keeps them", {"bo": "0 1 2 3"}, (ADA_4UP, BO_4UP), {"bo": 4}, 0),
    Case("with too few for all, one is served after the other", {None: "0 1 2 3 4"}, (ADA_4UP, BO_4UP),
         {"ada": 4, "bo": 1}, 5),
    Case("with too few for all, who wants none has none", {"cy": "0 1 2"}, (ADA_3UP, CY), {"ada": 3}, 3),
    Case("a cap counts more than a wish", {None: "0 1 2 3"}, (Seat("ada", 1.0, 1, 3), BO), {"ada": 1, "bo": 3}, 4),
    Case("caps and wishes", {None: "0 1 2 3 4 5 6 7"}, (ADA_1, BO_4UP, CY), {"ada": 1, "bo": 4, "cy": 3}, 8),
    Case("a rounded-down cap is a cap", {"ada": "0 1 2", "bo": "3 4"}, (ADA_2, BO), {"ada": 2, "bo": 3}, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.sentence for case in CASES])
def test_shares(case: Case) -> None:
    before = owners(case.before)
    planned = plan(before, case.seats)
    assert counts(dict(planned.owners)) == case.counts
    assert len(planned.moves) == case.moves
    assert {move.partition: move.after for move in planned.moves} == {
        name: owner for name, owner in planned.owners.items() if owner != before[name]
    }
    assert all(move.before == before[move.partition] for move in planned.moves)


def test_a_move_says_why() -> None:
    planned = plan(owners({"ada": "0 1 2 3", "old": "4", None: "5"}), (ADA, BO))
    reasons = {move.before: move.reason for move in planned.moves}
    assert reasons == {
        "ada": "ada had 4, its share is 3",
        "old": "old leaves",
        None: "nobody owned it",
    }


def test_shares_are_part_of_the_plan() -> None:
    planned = plan(owners({"ada": "0 1 2 3 4"}), (ADA, BO))
    assert planned.shares == {"ada": 3, "bo": 2}
    assert plan(owners({"ada": "0 1 2", "bo": "3 4"}), (ADA, BO)).shares == {"ada": 3, "bo": 2}


def test_what_cannot_be_divided_goes_to_those_who_have_it() -> None:
    assert fair_shares(5, (ADA, BO), {"ada": 3, "bo": 2}) == {"ada": 3, "bo": 2}
    assert fair_shares(5, (ADA, BO), {"ada": 2, "bo": 3}) == {"ada": 2, "bo": 3}
    assert fair_shares(5, (ADA, BO), {"ada": 0, "bo": 5}) == {"ada": 2, "bo": 3}


def test_who_is_nearest_to_one_more_comes_first() -> None:
    heavy, light = Seat("heavy", 2.0), Seat("light", 1.0)
    assert fair_shares(5, (heavy, light), {}) == {"heavy": 3, "light": 2}
    assert fair_shares(4, (heavy, light), {}) == {"heavy": 3, "light": 1}


def test_fractions_that_are_whole_count_as_whole() -> None:
    """0.1 + 0.2 is not 0.3, and 3 * 0.1 / 0.3 is not 1: nobody may gain or lose a partition by that."""
    seats = [Seat(f"m{number}", 0.1) for number in range(10)]
    assert set(fair_shares(30, seats, {}).values()) == {3}
    uneven = [Seat("a", 0.1), Seat("b", 0.2), Seat("c", 0.3)]
    assert fair_shares(6, uneven, {"a": 2, "b": 2, "c": 2}) == {"a": 1, "b": 2, "c": 3}


def test_the_same_on_every_machine() -> None:
    """Instances never tell each other their plans, so these very assignments are part of the protocol."""
    planned = plan(owners({"ada": "0 1 2 3 4 5 6 7", None: "8 9"}), (ADA, BO, CY))
    assert [(move.partition, move.after) for move in planned.moves] == [
        ("2", "cy"),
        ("6", "cy"),
        ("7", "cy"),
        ("3", "bo"),
        ("9", "bo"),
        ("8", "bo"),
    ]


def test_the_order_has_nothing_to_do_with_names() -> None:
    names = [str(number) for number in range(64)]
    assert sorted(names, key=rank) != sorted(names)
    assert len({rank(name) for name in names}) == 64


def test_where_not_all_can_be_served_those_go_first_that_were_free_for_longest() -> None:
    free = {"0": None, "1": None, "2": None, "3": "ada"}
    seats = [Seat("ada", max_partitions=1), Seat("bo", max_partitions=1)]
    assert plan(free, seats, since={"0": 30.0, "1": 10.0, "2": 20.0}).owners == {**free, "1": "bo"}
    assert plan(free, seats, since={"0": 30.0, "2": 20.0}).owners == {**free, "1": "bo"}, "it never had an owner"
    assert plan(free, seats, since={"0": 5.0, "1": 10.0, "2": 20.0}).owners == {**free, "0": "bo"}


def test_what_somebody_gives_away_goes_on_before_what_nobody_has() -> None:
    seats = [Seat("ada", max_partitions=1), Seat("bo", max_partitions=1)]
    after = plan({"0": "ada", "1": "ada", "2": None}, seats, since={"2": 0.0}).owners
    assert sorted(map(str, after.values())) == ["None", "ada", "bo"]
    assert after["2"] is None
