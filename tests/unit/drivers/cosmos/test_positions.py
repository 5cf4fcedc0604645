"""Places in the feed of a range: their text, and what becomes of them when ranges are read, split and merged."""

from __future__ import annotations

import pytest

from evenflow.drivers.cosmos.positions import (
    WHOLE,
    Piece,
    Place,
    Range,
    Spot,
    child_place,
    lsn_of,
    of_the_youngest,
    place_at,
    place_of,
)
from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position

HALF = "1" + "F" * 31
ALONE, MERGED = Range("0", WHOLE), Range("9", WHOLE, ("7", "8"))
LEFT, RIGHT = Range("7", ("", HALF), ("0",)), Range("8", (HALF, "FF"), ("0",))


def place(text: str) -> Place:
    return place_of(Position(text))


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "17",
        "17@-FF",
        "17@-1~",
        "17@1~-FF",
        "8@0~,3@1~-3~",
        "8+5a3f",
        "8+5a3f@05C1DFFFFFFFFC,9@1~-FF",
        "8;17",
        "8@0~,3@1~-3~;1700000000",
        "8+5a3f@-FF;17",
    ],
)
def test_a_place_is_what_its_position_says(text: str) -> None:
    assert str(place(text)) == text


def test_ends_of_ranges_are_written_short() -> None:
    assert str(place_at(LEFT, 7)) == "7@-1~"
    assert place("7@-1~").pieces == (Piece("", HALF, Spot(7)),)
    assert str(place_at(Range("1", (HALF[:-1] + "0", "FF")), 7)) == f"7@{HALF[:-1]}0-FF"


def test_only_the_first_range_that_is_alone_needs_no_ends() -> None:
    assert (str(place_at(ALONE, 7)), str(place_at(MERGED, 7))) == ("7", "7@-FF")
    assert (str(place("7").within(ALONE)), str(place("7").within(MERGED))) == ("7", "7@-FF")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-5",
        "8@",
        "8@-",
        "8@2-1",
        "8@0~,3@0~-1~",
        "8+@0-1",
        "8+5-3",
        "8@0~,x@1~-FF",
        "8@zz-FF",
        "1.5",
        "8;",
        "8;x",
        "8@-FF;-1",
        "8;1;2",
    ],
)
def test_an_offset_of_another_source_is_out_of_range(text: str) -> None:
    with pytest.raises(PositionOutOfRange, match="Was it another source's"):
        place(text)


def test_the_sequence_says_up_to_where_nothing_is_missing() -> None:
    assert place("8@,3@1~-FF").position == Position("8@,3@1~-FF", 3)
    assert place("8+5a3f").position == Position("8+5a3f", 7)
    assert (lsn_of(Position("8+5a3f@-1~")), lsn_of(Position("9")), lsn_of(BEGINNING)) == (7, 9, 0)


def test_a_place_belongs_to_its_range() -> None:
    assert place("7").within(RIGHT) == place_at(RIGHT, 7)
    assert place("7@-FF").within(RIGHT) == place_at(RIGHT, 7)
    assert str(place("7@-FF;17").within(RIGHT)) == "7@1~-FF;17"
    with pytest.raises(PositionOutOfRange, match="another range"):
        place("7@-1~").within(RIGHT)


def test_the_piece_that_is_furthest_behind_comes_next() -> None:
    three = place("8@,3@1~,12@3~-FF")
    piece, ceiling = three.next()
    assert (str(Place((piece,), has_span=True)), ceiling) == ("3@1~-3~", Spot(8))
    assert str(three.advanced(piece, Spot(8))) == "8@,12@3~-FF"
    assert str(place("8@-FF;17").advanced(place("8@-FF").pieces[0], Spot(9))) == "9@-FF;17"
    assert place_at(LEFT, 5).next() == (Piece("", HALF, Spot(5)), None)


def test_inside_an_lsn_some_are_passed() -> None:
    assert Spot(7) < Spot(8, "00") < Spot(8, "5a3f") < Spot(8) < Spot(9, "00")


@pytest.mark.parametrize(
    ("child", "parents", "expected"),
    [
        (LEFT, ["5"], "5@-1~"),
        (LEFT, ["5@-FF"], "5@-1~"),
        (RIGHT, ["8@,3@1~-FF"], "3@1~-FF"),
        (MERGED, ["8@-1~", "3@1~-FF"], "8@,3@1~-FF"),
        (MERGED, ["4@-1~", "4@1~-FF"], "4@-FF"),
        (LEFT, ["5+5a3f@-FF"], "5+5a3f@-1~"),
        (LEFT, ["5@-FF;17"], "5@-1~;17"),
        (MERGED, ["8@-1~;17", "3@1~-FF;17"], "8@,3@1~-FF;17"),
        (MERGED, ["8@-1~;17", "3@1~-FF;18"], "8@,3@1~-FF"),
        (MERGED, ["8@-1~;17", "3@1~-FF"], "8@,3@1~-FF"),
        (MERGED, ["8@-1~;17"], "8@,0@1~-FF"),
        (LEFT, ["5@-FF;17", "5@-1~"], "5@-1~"),
    ],
)
def test_a_child_goes_on_everywhere_where_its_parents_were(child: Range, parents: list[str], expected: str) -> None:
    assert str(child_place(child, map(place, parents))) == expected


def test_what_nobody_has_had_begins_at_its_beginning() -> None:
    assert str(child_place(MERGED, [place("4@-1~")])) == "4@,0@1~-FF"


def test_of_several_generations_the_furthest_counts() -> None:
    generations = ["2", "8@-1~", "3@1~-FF", "9@,7@1~-FF"]
    assert str(child_place(RIGHT, map(place, generations))) == "7@1~-FF"
    assert str(child_place(RIGHT, map(place, generations[:2]))) == "2@1~-FF"
    assert str(child_place(RIGHT, map(place, ["2@1~-FF", "8@-FF"]))) == "8@1~-FF"


@pytest.mark.parametrize(
    ("generations", "expected"),
    [
        (["9@-FF", "2@-1~"], ["9@1~-FF", "2@-1~"]),
        (["9@-1~", "5@1~-FF", "2@-FF"], ["2@-FF"]),
        (["9@-FF;17", "2@1~-3~"], ["9@-1~;17", "9@3~-FF;17", "2@1~-3~"]),
        (["9", "2@-1~"], ["9", "2@-1~"]),
        (["2@-1~", "9"], ["2@-1~", "9"]),
    ],
)
def test_what_a_younger_generation_speaks_of_counts(generations: list[str], expected: list[str]) -> None:
    """It may be behind an older one: somebody has rewound it."""
    assert [str(one) for one in of_the_youngest(map(place, generations))] == expected


def test_parents_that_do_not_tell_what_they_had_count_as_the_least_of_them() -> None:
    assert str(child_place(MERGED, map(place, ["8", "3"]))) == "3@-FF"
    assert str(child_place(MERGED, map(place, ["8", "3", "1@-1~"]))) == "1@,3@1~-FF"
