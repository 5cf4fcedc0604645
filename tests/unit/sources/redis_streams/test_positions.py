"""What a stream's ids and counts tell about entries that were removed."""

from __future__ import annotations

import pytest

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position
from evenflow.sources.redis_streams.positions import NUMBER_MOST, ZERO, Facts, Id, Place, id_of, place_of

FULL = Facts(length=3, added=10, first=Id(80, 0), last=Id(100, 0))
OLD = Facts(length=3, first=Id(80, 0), last=Id(100, 0))
EMPTY = Facts(length=0, added=10, last=Id(100, 0))


def test_ids_are_read_and_written() -> None:
    assert str(id_of("17-3")) == "17-3"
    assert id_of("17") == Id(17, 0)
    assert sorted([Id(10, 1), Id(9, 5), Id(10, 0)]) == [Id(9, 5), Id(10, 0), Id(10, 1)]


@pytest.mark.parametrize("text", ["", "x", "1-x", "-5", "1-2-3", f"{1 << 64}-0", "5-"])
def test_what_is_no_id_is_told(text: str) -> None:
    with pytest.raises(PositionOutOfRange, match="is no id of a Redis stream"):
        id_of(text)


@pytest.mark.parametrize("one", [Id(5, 0), Id(5, 7), Id(0, 1), Id(5, NUMBER_MOST)])
def test_between_an_id_and_the_one_before_it_there_is_none(one: Id) -> None:
    assert one.before < one
    assert one.before.next == one


def test_positions_are_places_with_their_number() -> None:
    assert Place(Id(17, 3), 5).position == Position("17-3", 4)
    assert place_of(Position("17-3", 4)) == Place(Id(17, 3), 5)
    assert place_of(Position("17-3")) == Place(Id(17, 3))
    assert place_of(BEGINNING) == Place(ZERO, 0)


@pytest.mark.parametrize(
    ("after", "facts", "gone"),
    [
        (Place(Id(90, 0)), FULL, False),  # there is an older one
        (Place(Id(80, 0)), FULL, False),  # it is there itself
        (Place(Id(79, NUMBER_MOST)), FULL, False),  # nothing is between
        (Place(Id(100, 0)), FULL, False),  # nothing came after it
        (Place(Id(100, 0)), EMPTY, False),
        (Place(Id(99, 0)), EMPTY, True),
        (Place(Id(70, 0), 7), FULL, False),  # exactly what was counted up to it was removed
        (Place(Id(70, 0), 6), FULL, True),
        (Place(Id(70, 0), 8), FULL, True),  # more than were ever removed: it is another stream
        (Place(Id(70, 0)), FULL, True),  # nobody can tell
        (Place(ZERO, 0), FULL, True),
        (Place(ZERO, 0), Facts(3, 3, Id(80, 0), Id(100, 0)), False),
        (Place(Id(70, 0)), OLD, True),
        (Place(ZERO), OLD, False),  # from the beginning, whatever it is
    ],
)
def test_what_was_removed_before_it_was_read_is_found_out(after: Place, facts: Facts, gone: bool) -> None:
    assert facts.is_gone(after) is gone


def test_who_was_at_the_end_has_missed_nothing_as_far_as_an_older_server_can_tell() -> None:
    assert not OLD.is_gone(Place(Id(70, 0)), was_end=True)
    assert FULL.is_gone(Place(Id(70, 0), 6), was_end=True), "one that counts knows better"


def test_the_ends_of_a_stream() -> None:
    assert FULL.beginning == Place(Id(79, NUMBER_MOST), 7)
    assert FULL.bounds.oldest == Position("80-0", 7)
    assert FULL.bounds.newest == Position("100-0", 9)
    assert EMPTY.beginning == EMPTY.end == Place(Id(100, 0), 10)
    assert EMPTY.bounds.oldest == Position("100-1", 10)
    assert OLD.bounds.oldest == Position("80-0")
    assert Facts(added=0).bounds.newest == BEGINNING
