"""What a stream's ids and counts show about entries that were removed."""

from __future__ import annotations

import pytest

from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position
from evenflow.sources.redis_streams.positions import (
    NUMBER_MOST,
    ZERO,
    Id,
    StreamPosition,
    StreamState,
    id_of,
    parse_position,
)

FULL = StreamState(length=3, added=10, first=Id(80, 0), last=Id(100, 0))
OLD = StreamState(length=3, first=Id(80, 0), last=Id(100, 0))
EMPTY = StreamState(length=0, added=10, last=Id(100, 0))


def test_ids_are_read_and_written() -> None:
    assert str(id_of("17-3")) == "17-3"
    assert id_of("17") == Id(17, 0)
    assert sorted([Id(10, 1), Id(9, 5), Id(10, 0)]) == [Id(9, 5), Id(10, 0), Id(10, 1)]


@pytest.mark.parametrize("text", ["", "x", "1-x", "-5", "1-2-3", f"{1 << 64}-0", "5-"])
def test_an_invalid_id_is_refused(text: str) -> None:
    with pytest.raises(PositionOutOfRange, match="is not an id of a Redis stream"):
        id_of(text)


@pytest.mark.parametrize("one", [Id(5, 0), Id(5, 7), Id(0, 1), Id(5, NUMBER_MOST)])
def test_between_an_id_and_the_one_before_it_there_is_none(one: Id) -> None:
    assert one.before < one
    assert one.before.next == one


def test_positions_are_places_with_their_number() -> None:
    assert StreamPosition(Id(17, 3), 5).position == Position("17-3", 4)
    assert parse_position(Position("17-3", 4)) == StreamPosition(Id(17, 3), 5)
    assert parse_position(Position("17-3")) == StreamPosition(Id(17, 3))
    assert parse_position(BEGINNING) == StreamPosition(ZERO, 0)


@pytest.mark.parametrize(
    ("after", "state", "gone"),
    [
        (StreamPosition(Id(90, 0)), FULL, False),  # an older entry exists
        (StreamPosition(Id(80, 0)), FULL, False),  # the entry itself exists
        (StreamPosition(Id(79, NUMBER_MOST)), FULL, False),  # no id lies in between
        (StreamPosition(Id(100, 0)), FULL, False),  # it is the last id
        (StreamPosition(Id(100, 0)), EMPTY, False),
        (StreamPosition(Id(99, 0)), EMPTY, True),
        (StreamPosition(Id(70, 0), 7), FULL, False),  # exactly what was counted up to it was removed
        (StreamPosition(Id(70, 0), 6), FULL, True),
        (StreamPosition(Id(70, 0), 8), FULL, True),  # more than were ever removed: it is another stream
        (StreamPosition(Id(70, 0)), FULL, True),  # unknown
        (StreamPosition(ZERO, 0), FULL, True),
        (StreamPosition(ZERO, 0), StreamState(3, 3, Id(80, 0), Id(100, 0)), False),
        (StreamPosition(Id(70, 0)), OLD, True),
        (StreamPosition(ZERO), OLD, False),  # from the beginning, whatever it is
    ],
)
def test_entries_removed_before_they_were_read_are_detected(
    after: StreamPosition, state: StreamState, gone: bool
) -> None:
    assert state.is_removed(after) is gone


def test_at_the_end_of_a_stream_without_counts_nothing_is_reported_as_missed() -> None:
    assert not OLD.is_removed(StreamPosition(Id(70, 0)), was_end=True)
    assert FULL.is_removed(StreamPosition(Id(70, 0), 6), was_end=True), "the count shows a removed entry"


def test_the_ends_of_a_stream() -> None:
    assert FULL.beginning == StreamPosition(Id(79, NUMBER_MOST), 7)
    assert FULL.bounds.oldest == Position("80-0", 7)
    assert FULL.bounds.newest == Position("100-0", 9)
    assert EMPTY.beginning == EMPTY.end == StreamPosition(Id(100, 0), 10)
    assert EMPTY.bounds.oldest == Position("100-1", 10)
    assert OLD.bounds.oldest == Position("80-0")
    assert StreamState(added=0).bounds.newest == BEGINNING
