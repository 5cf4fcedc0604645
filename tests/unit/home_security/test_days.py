"""The town lives believable days, the same ones each time, and the generator sends them as they are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from examples.home_security.days import habits, phase_ms, reports_in
from examples.home_security.generator import streets
from examples.home_security.places import Town
from examples.home_security.reports import MINUTE_MS, home_of, reports_of

DAY = 20_000
TOWN = Town(homes=600, seed=3)


def at(hour: float) -> int:
    return DAY * 1_440 + int(hour * 60)


def share(sensor: str, state: str, armed: str | None, minute: int) -> float:
    """Of homes of which some report in this minute says so."""
    hits = 0
    for home in range(TOWN.homes):
        reports = reports_in(TOWN, home, minute, has_detector=False)
        hits += any((one.sensor, one.state) == (sensor, state) and armed in (None, one.armed) for one in reports)
    return hits / TOWN.homes


def test_what_is_sent_is_what_follows_from_the_town_the_home_and_the_minute() -> None:
    begin_ms, end_ms = at(7.5) * MINUTE_MS + 20_000, at(7.5) * MINUTE_MS + 3 * MINUTE_MS + 40_000
    detectors_ms = begin_ms + MINUTE_MS
    sent = streets(TOWN, 1)[0].events(begin_ms, end_ms, detectors_ms)
    found = Counter(zip((home_of(event.key) for event in sent), reports_of([one.body for one in sent]), strict=True))
    expected = Counter(
        (home, one)
        for home in range(TOWN.homes)
        for minute in range(at(7.5), at(7.5) + 4)
        if begin_ms <= (moment_ms := minute * MINUTE_MS + phase_ms(TOWN, home)) < end_ms
        for one in reports_in(TOWN, home, minute, has_detector=moment_ms >= detectors_ms)
    )
    assert found == expected


def test_ticks_of_any_length_send_the_same() -> None:
    street, begin_ms = streets(TOWN, 1)[0], at(23.98) * MINUTE_MS
    whole = street.events(begin_ms, begin_ms + 3 * MINUTE_MS, None)
    steps_ms = [0, 1, 777, 59_999, 60_000, 100_001, 3 * MINUTE_MS]
    parts = [street.events(begin_ms + low, begin_ms + high, None) for low, high in pairwise(steps_ms)]
    assert [one for part in parts for one in part] == whole


def test_every_home_belongs_to_the_partition_that_the_hub_would_choose() -> None:
    from evenflow.embedded.hub.keys import partition_of

    begin_ms = at(12) * MINUTE_MS
    parts = {number: street.events(begin_ms, begin_ms + MINUTE_MS, None) for number, street in streets(TOWN, 4).items()}
    assert all(partition_of(one.key or "", 4) == number for number, part in parts.items() for one in part)
    assert len({one.key for part in parts.values() for one in part}) == TOWN.homes


def test_people_sleep_leave_and_come_home() -> None:
    assert share("motion", "moving", None, at(3)) < 0.02
    assert 0.3 < share("motion", "still", "night", at(3)) < 0.7
    assert share("motion", "still", "away", at(12)) > 0.4
    assert share("motion", "moving", None, at(20)) > 0.4
    assert share("motion", "still", "away", at(20.6)) < 0.05


def test_doors_open_when_people_leave() -> None:
    home = next(home for home in range(TOWN.homes) if habits(TOWN, home, DAY).leaves < habits(TOWN, home, DAY).back)
    leaves = DAY * 1_440 + habits(TOWN, home, DAY).leaves
    said = [(one.sensor, one.state) for one in reports_in(TOWN, home, leaves, has_detector=False)]
    assert said.index(("door", "open")) < said.index(("door", "closed"))


def test_about_seven_thousand_events_a_second_for_a_hundred_thousand_homes() -> None:
    counts = [
        sum(len(reports_in(TOWN, home, at(hour), has_detector=False)) for home in range(TOWN.homes))
        for hour in range(24)
    ]
    assert 6_600 < sum(counts) / 24 / 60 * 100_000 / TOWN.homes < 7_400


def test_another_seed_is_another_town() -> None:
    assert habits(TOWN, 1, DAY) != habits(Town(homes=600, seed=4), 1, DAY)
