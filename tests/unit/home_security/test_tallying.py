"""The state of a partition follows from its events alone: not from batches, reloads, replays or moves into days."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from evenflow.model import Event
from examples.home_security.folding import empty_day, folded
from examples.home_security.layout import FOREVER, Recent, pack, unpack, unpack_hour, within
from examples.home_security.reports import MINUTE_MS, SENSORS, NotUnderstood, meanings_of, reports_of
from examples.home_security.tallying import Tally
from tests.unit.home_security.streams import BEGIN_MS, a_morning, report, stored

if TYPE_CHECKING:
    from collections.abc import Sequence


def tally_of(events: Sequence[Event]) -> Tally:
    tally = Tally("0")
    tally.add(events)
    return tally


def spans(tally: Tally, home: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...], int, int]]:
    """Minute by minute."""
    found = tally.recent(1).home(home)
    assert found is not None
    return [
        (minute, span.reports, span.active, span.states, span.armed)
        for span in found.spans
        for minute in range(span.minute, span.end)
    ]


def test_each_minute_has_its_counts_its_last_states_and_how_the_alarm_was_set() -> None:
    minute = BEGIN_MS // MINUTE_MS
    events = stored(
        [
            report(1, BEGIN_MS + 1_000, "door", "open"),
            report(1, BEGIN_MS + 2_000, "door", "closed"),
            report(1, BEGIN_MS + 3_000, "motion", "moving"),
            report(1, BEGIN_MS + MINUTE_MS, "motion", "still"),
        ]
    )
    assert spans(tally_of(events), 1) == [
        (minute, (1, 2, 0, 0, 0), (1, 1, 0, 0, 0), 1, 2),
        (minute + 1, (1, 0, 0, 0, 0), (0, 0, 0, 0, 0), 0, 2),
    ]


def test_minutes_that_are_alike_are_one_span() -> None:
    events = stored(report(1, BEGIN_MS + number * MINUTE_MS, "door", "closed") for number in range(5))
    found = tally_of(events).recent(1).home(1)
    assert found is not None
    assert [(span.minute, span.minutes) for span in found.spans] == [(BEGIN_MS // MINUTE_MS, 5)]


def test_all_reports_of_a_morning_are_counted() -> None:
    events = a_morning()
    recent = tally_of(events).recent(1)
    counted = [0] * len(SENSORS)
    for number in recent.homes:
        home = recent.home(number)
        assert home is not None
        for span in home.spans:
            counted = [count + span.minutes * more for count, more in zip(counted, span.reports, strict=True)]
    said = [index for index, _ in meanings_of(reports_of([event.body for event in events]))]
    assert counted == [said.count(index) for index in range(len(SENSORS))]


@pytest.mark.parametrize("seed", range(12))
def test_batches_reloads_and_replays_change_nothing(seed: int) -> None:
    random = Random(seed)
    events = with_late_ones(a_morning(), random)
    expected = pack(tally_of(events).recent(1))
    tally, place = Tally("0"), 0
    while place < len(events):
        place = max(0, place - random.choice([0, 0, 0, 40, 400]))
        step = random.choice([1, 7, 90, 1_000])
        tally.add(events[place : place + step])
        place += step
        if random.random() < 0.3:
            tally = Tally.loaded(unpack(pack(tally.recent(9)), Recent, "it"))
    assert pack(tally.recent(1)) == expected


@pytest.mark.parametrize("seed", range(12))
def test_moves_into_the_day_at_any_time_lose_nothing_and_leave_nothing_twice(seed: int) -> None:
    random = Random(seed)
    events = with_late_ones(a_morning(90), random)
    whole = tally_of(events)
    tally, day = Tally("0"), empty_day("0", 0)
    for place in range(0, len(events), 50):
        tally.add(events[place : place + 50])
        if random.random() < 0.1:
            day = folded(day, tally.final_spans(0), tally.final)
            # Now and then the owner dies between the writing of the day and of the recent part.
            if random.random() < 0.7:
                tally.forget_before(0, tally.final)
    for number in range(40):
        kept = [span for hour in day.hours for span in unpack_hour(hour).get(number, ())]
        left = tally.recent(1).home(number)
        assert left is not None
        together = [
            (minute, span.reports, span.active, span.states, span.armed)
            for span in [*kept, *within(left.spans, day.until, FOREVER)]
            for minute in range(span.minute, span.end)
        ]
        assert together == spans(whole, number)


def test_a_report_that_is_too_late_is_counted_in_the_oldest_minute_that_is_open() -> None:
    events = stored([report(1, BEGIN_MS + 10 * MINUTE_MS), report(2, BEGIN_MS), report(2, BEGIN_MS + 9 * MINUTE_MS)])
    minute = BEGIN_MS // MINUTE_MS
    assert [(found[0], found[1][1]) for found in spans(tally_of(events), 2)] == [(minute + 9, 2)]


@pytest.mark.parametrize(
    "bad",
    [
        Event(b"not json", "home-1"),
        report(1, BEGIN_MS, "door", "ajar"),
        report(1, BEGIN_MS, "doorbell", "open"),
        Event(report(1, BEGIN_MS).body, None),
        Event(report(1, BEGIN_MS).body, "home-x"),
    ],
    ids=["no JSON", "no such state", "no such sensor", "no key", "no home"],
)
def test_what_cannot_be_understood_is_refused_before_anything_is_counted(bad: Event) -> None:
    tally = Tally("0")
    with pytest.raises(NotUnderstood):
        tally.add(stored([report(1, BEGIN_MS), bad]))
    assert tally.upto == -1
    assert tally.recent(1).homes == {}
    # Nor is it skipped as already counted when it is redriven.
    tally.add(stored([report(1, BEGIN_MS), report(1, BEGIN_MS)]))
    with pytest.raises(NotUnderstood):
        tally.add(stored([bad]))


def with_late_ones(events: Sequence[Event], random: Random) -> list[Event]:
    """Some reports come later than they should, by up to several minutes."""
    order = sorted(range(len(events)), key=lambda place: place + random.choice([0] * 60 + [30, 900]))
    return stored(events[place] for place in order)
