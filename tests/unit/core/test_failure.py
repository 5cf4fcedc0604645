"""How long to wait before something is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.core.failure import pause_s

CHANCES = st.floats(0.0, 1.0, exclude_max=True)


@pytest.mark.parametrize(
    ("attempt", "longest_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (9, 25.6), (10, 30.0), (1000, 30.0), (10**9, 30.0)]
)
def test_each_failure_doubles_the_pause_up_to_a_limit(attempt: int, longest_s: float) -> None:
    assert pause_s(attempt, 1.0) == pytest.approx(longest_s)
    assert pause_s(attempt, 0.0) == pytest.approx(longest_s / 10)


def test_first_and_most_can_be_chosen() -> None:
    assert pause_s(1, 1.0, first_s=0.5) == pytest.approx(0.5)
    assert pause_s(5, 1.0, most_s=2.0) == pytest.approx(1.6)
    assert pause_s(6, 1.0, most_s=2.0) == pytest.approx(2.0)


@given(st.integers(1, 10_000), CHANCES, CHANCES)
def test_a_fleet_that_failed_together_does_not_come_back_together(attempt: int, one: float, other: float) -> None:
    first_s, second_s = sorted((pause_s(attempt, one), pause_s(attempt, other)))
    assert 0.0 < first_s <= second_s <= 30.0
    assert (one == other) or first_s < second_s or abs(one - other) < 1e-9
