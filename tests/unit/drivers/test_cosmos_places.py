"""Places in the feed of a range: their text, and what becomes of them when ranges are read, split and merged."""

from __future__ import annotations

import pytest

from evenflow.drivers.cosmos_places import (
    Piece,
    Place,
    Span,
    Spot,
    advanced,
    child_place,
    lsn_of,
    next_of,
    place_at,
    place_of,
    position_of,
    text_of,
    within,
)
from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position

HALF = "1" + "F" * 31
LEFT, RIGHT, WHOLE = ("", HALF), (HALF, "FF"), ("", "FF")


def place(text: str) -> Place:
    return place_of(Position(text))


@pytest.mark.parametrize(
    "text", ["0", "17", "17@-1~", "17@1~-FF", "8@0~,3@1~-3~", "8+5a3f", "8+5a3f@05C1DFFFFFFFFC,9@1~-FF"]
)
def test_a_place_is_what_its_position_says(text: str) -> None:
    assert text_of(place(text)) == text


def test_ends_of_ranges_are_written_short() -> None:
    assert text_of(place_at(LEFT, 7)) == "7@-1~"
    assert place("7@-1~") == (Piece("", HALF, Spot(7)),)
    assert text_of(place_at((HALF[:-1] + "0", "FF"), 7)) == f"7@{HALF[:-1]}0-FF"


@pytest.mark.parametrize(
    "text", ["", "x", "-5", "8@", "8@-", "8@2-1", "8@0~,3@0~-1~", "8+@0-1", "8+5-3", "8@0~,x@1~-FF", "8@zz-FF", "1.5"]
)
def test_an_offset_of_another_source_is_out_of_range(text: str) -> None:
    with pytest.raises(PositionOutOfRange, match="Was it another source's"):
        place(text)


def test_the_sequence_says_up_to_where_nothing_is_missing() -> None:
    assert position_of(place("8@,3@1~-FF")) == Position("8@,3@1~-FF", 3)
    assert position_of(place("8+5a3f")) == Position("8+5a3f", 7)
    assert (lsn_of(Position("8+5a3f@-1~")), lsn_of(Position("9")), lsn_of(BEGINNING)) == (7, 9, 0)


def test_a_place_belongs_to_its_range() -> None:
    assert within(place("7"), RIGHT) == place_at(RIGHT, 7)
    assert within(place("7@-FF"), RIGHT) == place_at(RIGHT, 7)
    with pytest.raises(PositionOutOfRange, match="another range"):
        within(place("7@-1~"), RIGHT)


def test_the_piece_that_is_furthest_behind_comes_next() -> None:
    three = place("8@,3@1~,12@3~-FF")
    piece, ceiling = next_of(three)
    assert (text_of((piece,)), ceiling) == ("3@1~-3~", Spot(8))
    assert text_of(advanced(three, piece, Spot(8))) == "8@,12@3~-FF"
    assert next_of(place_at(LEFT, 5)) == (Piece("", HALF, Spot(5)), None)


def test_inside_an_lsn_some_are_passed() -> None:
    assert Spot(7) < Spot(8, "00") < Spot(8, "5a3f") < Spot(8) < Spot(9, "00")


@pytest.mark.parametrize(
    ("span", "parents", "expected"),
    [
        (LEFT, ["5"], "5@-1~"),
        (LEFT, ["5@-FF"], "5@-1~"),
        (RIGHT, ["8@,3@1~-FF"], "3@1~-FF"),
        (WHOLE, ["8@-1~", "3@1~-FF"], "8@,3@1~-FF"),
        (WHOLE, ["4@-1~", "4@1~-FF"], "4"),
        (LEFT, ["5+5a3f@-FF"], "5+5a3f@-1~"),
    ],
)  # fmt: skip
def test_a_child_goes_on_everywhere_where_its_parents_were(span: Span, parents: list[str], expected: str) -> None:
    assert text_of(child_place(span, map(place, parents))) == expected


def test_what_nobody_has_had_begins_at_its_beginning() -> None:
    assert text_of(child_place(WHOLE, [place("4@-1~")])) == "4@,0@1~-FF"


def test_of_several_generations_the_furthest_counts() -> None:
    generations = ["2", "8@-1~", "3@1~-FF", "9@,7@1~-FF"]
    assert text_of(child_place(RIGHT, map(place, generations))) == "7@1~-FF"
    assert text_of(child_place(RIGHT, map(place, generations[:2]))) == "2@1~-FF"


def test_parents_that_do_not_say_what_they_had_count_as_the_least_of_them() -> None:
    assert text_of(child_place(WHOLE, map(place, ["8", "3"]))) == "3"
    assert text_of(child_place(WHOLE, map(place, ["8", "3", "1@-1~"]))) == "1@,3@1~-FF"
