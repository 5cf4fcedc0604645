"""The few records that can do more than be read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.model import BEGINNING, Event, Group, Member, Owner, Position, epoch_parts, next_epoch, show_epoch

EPOCHS = st.integers(0, 2**62)
HISTORIES = st.integers(0, 2**20)


@pytest.mark.parametrize(
    ("epoch", "history", "expected", "shown"),
    [
        (0, 0, 1, "1"),
        (7, 0, 8, "8"),
        (7, 1, (1 << 32) + 1, "1.1"),
        ((1 << 32) + 7, 1, (1 << 32) + 8, "1.8"),
        ((2 << 32) + 7, 1, (2 << 32) + 8, "2.8"),
    ],
)
def test_epochs_grow_and_carry_the_history(epoch: int, history: int, expected: int, shown: str) -> None:
    assert next_epoch(epoch, history) == expected
    assert show_epoch(expected) == shown


@given(EPOCHS, HISTORIES)
def test_the_next_epoch_is_above_the_last_and_of_no_older_history(epoch: int, history: int) -> None:
    following = next_epoch(epoch, history)
    assert following > epoch
    assert epoch_parts(following)[0] >= history
    assert epoch_parts(following)[1] >= 1 or epoch_parts(epoch)[0] < epoch_parts(following)[0]


def test_an_event_knows_where_and_when_it_was_stored() -> None:
    event = Event(b"x", sequence=7, enqueued_us=1_500_000)
    assert (event.offset, event.position) == ("7", Position("7", 7))
    assert event.enqueued_at == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    foreign = Event(b"x", sequence=7, offset_text="@latest-9")
    assert (foreign.offset, foreign.position) == ("@latest-9", Position("@latest-9", 7))


def test_names_for_people() -> None:
    assert str(Position("7", 7)) == "7"
    assert str(BEGINNING) == "-1"
    assert str(Group("homes.example", "sensors", "alerts")) == "homes.example/sensors/alerts"
    assert str(Owner("ada", 2)) == "ada#2"
    assert Member(id="ada", nonce="n", incarnation=2, ttl_s=8.0).owner == Owner("ada", 2)
