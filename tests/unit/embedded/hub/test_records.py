from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.embedded.hub import records
from evenflow.embedded.hub.records import decode, encode, is_storable, split_into_rows
from evenflow.model import Event

PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()


@given(st.lists(st.integers(0, 400), max_size=60))
def test_rows_are_the_events_in_order_within_bounds(sizes: list[int]) -> None:
    events = [Event(bytes(size)) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "ROW_EVENTS", 7)
        patch.setattr(records, "ROW_BYTES", 1000)
        rows = list(split_into_rows(events))
    assert [event for row in rows for event in row] == events
    assert all(rows) or not events
    assert all(len(row) <= 7 for row in rows)
    assert all(len(row) == 1 or records.body_bytes(row) <= 1000 for row in rows)


def test_an_event_that_is_too_large_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "ROW_BYTES", 10)
        patch.setattr(records, "EVENT_BYTES_MAX", 20)
        with pytest.raises(ValueError, match="an event has 21 bytes; the maximum is 20"):
            list(split_into_rows([Event(bytes(20)), Event(bytes(21))]))


PARTS = st.tuples(st.binary(), st.none() | st.text(), st.none() | st.dictionaries(st.text(), PLAIN))


@given(st.lists(PARTS, max_size=5))
def test_what_is_encoded_comes_back_with_its_place_and_time(parts: list[Any]) -> None:
    found = decode(encode([Event(*part) for part in parts], 1_000_000, 1_700_000_000_000_000))
    assert [(event.body, event.key, event.properties) for event in found] == parts
    assert [event.sequence for event in found] == list(range(1_000_000, 1_000_000 + len(parts)))
    assert {event.enqueued_us for event in found} <= {1_700_000_000_000_000}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, True),
        ({"text": "a", "number": 1, "ratio": 0.5, "flag": True, "raw": b"x", "none": None}, True),
        ({"nested": {"list": [1, {"deep": None}]}, "at": datetime(2026, 1, 2, tzinfo=UTC)}, True),
        ({1: "a number as a name"}, False),
        ({"nested": {(1, 2): "a tuple as a name"}}, True),
        ({"nested": {frozenset((1,)): "a set as a name"}}, True),
        ({"object": object()}, False),
        ({"function": len}, False),
    ],
)
def test_properties_are_taken_only_if_they_come_back(properties: dict[str, Any], expected: bool) -> None:
    assert is_storable(properties) is expected
    if expected:
        decode(encode([Event(b"", None, properties)], 0, 0))
