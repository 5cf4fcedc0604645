"""Rates and trends from looks one after the other."""

from __future__ import annotations

import pytest

from evenflow.operate.inspect.rates import STALLED_S, ProgressPoint, ProgressRate, RateTracker, Trend, rate_of


def test_one_snapshot_says_nothing() -> None:
    assert RateTracker().observe({"0": ProgressPoint(7, 3)}, 100.0) == {"0": ProgressRate()}


@pytest.mark.parametrize(
    ("first", "last", "per_s", "trend", "catch_up_s"),
    [
        (ProgressPoint(0, 100), ProgressPoint(20, 80), 10.0, "shrinks", 8.0),
        (ProgressPoint(0, 100), ProgressPoint(20, 130), 10.0, "grows", None),
        (ProgressPoint(0, 100), ProgressPoint(20, 105), 10.0, "steady", None),
        (ProgressPoint(0, 0), ProgressPoint(0, 0), 0.0, "steady", 0.0),
        (ProgressPoint(0, 10), ProgressPoint(10, 0), 5.0, "shrinks", 0.0),
        (ProgressPoint(5, 0), ProgressPoint(5, 1), 0.0, "grows", None),
        (ProgressPoint(0, None), ProgressPoint(20, 5), 10.0, None, None),
        (ProgressPoint(0, 5), ProgressPoint(20, None), 10.0, None, None),
        (ProgressPoint(9, 5), ProgressPoint(4, 5), 0.0, "steady", None),
    ],
)
def test_what_two_snapshots_say(
    first: ProgressPoint, last: ProgressPoint, per_s: float, trend: Trend | None, catch_up_s: float | None
) -> None:
    found = rate_of([(10.0, first), (12.0, last)])
    assert (found.per_s, found.trend, found.catch_up_s) == (per_s, trend, catch_up_s)


def test_rates_forget_what_is_long_ago() -> None:
    tracker = RateTracker()
    rates = [tracker.observe({"0": ProgressPoint(ordinal, 0)}, now_s)["0"].per_s for now_s, ordinal in
             [(0.0, 0), (6.0, 600), (12.0, 600), (18.0, 600)]]  # fmt: skip
    assert rates == [None, 100.0, 50.0, 0.0]


def test_a_checkpoint_that_stands_still_before_events_is_stalled_and_only_that() -> None:
    def stalled(points: list[ProgressPoint]) -> bool:
        rates, found = RateTracker(), ProgressRate()
        for number, point in enumerate(points):
            found = rates.observe({"0": point}, number * STALLED_S / 2)["0"]
        return found.is_stalled

    assert stalled([ProgressPoint(7, 3), ProgressPoint(7, 3), ProgressPoint(7, 4)])
    assert not stalled([ProgressPoint(7, 3), ProgressPoint(7, 3)])
    assert not stalled([ProgressPoint(7, 3), ProgressPoint(7, 3), ProgressPoint(8, 3)])
    assert not stalled([ProgressPoint(7, 0), ProgressPoint(7, 0), ProgressPoint(7, 0)])
    assert not stalled([ProgressPoint(7, 0), ProgressPoint(7, 0), ProgressPoint(7, 3)])
    assert not stalled([ProgressPoint(7, None), ProgressPoint(7, None), ProgressPoint(7, None)])


def test_what_came_between_two_looks_that_are_far_apart_is_not_stalled() -> None:
    rates = RateTracker()
    rates.observe({"0": ProgressPoint(7, 0)}, 0.0)
    assert not rates.observe({"0": ProgressPoint(7, 3)}, 60.0)["0"].is_stalled
    assert rates.observe({"0": ProgressPoint(7, 3)}, 120.0)["0"].is_stalled


def test_a_partition_that_is_gone_is_forgotten() -> None:
    rates = RateTracker()
    rates.observe({"0": ProgressPoint(1, 1), "1": ProgressPoint(1, 1)}, 0.0)
    assert list(rates.observe({"1": ProgressPoint(2, 1)}, 1.0)) == ["1"]
    assert rates.observe({"0": ProgressPoint(9, 9)}, 2.0) == {"0": ProgressRate()}
