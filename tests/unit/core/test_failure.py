"""How long to wait before something is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.core.failure import CAREFUL_EVENTS, ends_after, pause_s
from evenflow.core.notes import Ends

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


# --- how many owners have ended
def _counted(*ends: str) -> list[int]:
    """What each owner counts, by how the one before it ended: with progress (+), without (-), or as planned (p). What
    an owner knew is written along with its progress, and with nothing else."""
    written, ordinal, begun, fruitless, found = None, 0, 0, 0, []
    known = None
    for end in ends:
        if end in "+p":
            written, ordinal = known, ordinal + 1
        fruitless = 0 if ordinal > begun else fruitless + 1
        begun = ordinal
        known = ends_after(written, ordinal, fruitless, unplanned=end != "p")
        found.append(known.owners if known is not None else 0)
    return found


@pytest.mark.parametrize(
    ("ends", "counted"),
    [
        ("p", [0]),
        ("pppp", [0, 0, 0, 0]),
        ("++++", [1, 2, 3, 4]),
        ("--", [2, 3]),
        ("+--", [1, 2, 3]),
        ("--+--+", [2, 3, 4, 5, 6, 7]),
        ("+-+-+-", [1, 2, 3, 4, 5, 6]),
        ("+pp+", [1, 1, 1, 2]),
    ],
)
def test_all_owners_that_ended_near_each_other_are_counted(ends: str, counted: list[int]) -> None:
    assert _counted(*ends) == counted


@given(st.lists(st.sampled_from("+-"), min_size=1, max_size=30))
def test_none_is_missed_and_at_most_one_is_too_many(ends: list[str]) -> None:
    assert all(after - ended in (0, 1) for ended, after in enumerate(_counted(*ends), start=1))


def test_those_far_from_each_other_are_not_counted_together() -> None:
    last = Ends(owners=4, since=100, begun=700, fruitless=0)
    near, far = 100 + CAREFUL_EVENTS - 1, 100 + CAREFUL_EVENTS
    assert ends_after(last, near, 0, unplanned=True) == Ends(owners=5, since=100, begun=near, fruitless=0)
    assert ends_after(last, far, 0, unplanned=True) == Ends(owners=1, since=far, begun=far, fruitless=0)
    assert ends_after(last, far, 0, unplanned=False) is None


def test_what_was_written_before_the_store_lost_writes_is_forgotten() -> None:
    assert ends_after(Ends(4, 100, 700, 0), 50, 0, unplanned=True) == Ends(1, 50, 50, 0)


def test_notes_of_an_epoch_without_progress_are_not_counted_twice() -> None:
    """They may have been written although the partition stood still."""
    first = ends_after(None, 7, 0, unplanned=True)
    second = ends_after(first, 7, 1, unplanned=True)
    assert second == Ends(owners=2, since=7, begun=7, fruitless=1)
    assert ends_after(second, 7, 2, unplanned=True) == Ends(owners=3, since=7, begun=7, fruitless=2)
    assert ends_after(second, 7, 1, unplanned=False) == second
