"""Which reports raise an alert, and that raising it again changes nothing."""

from __future__ import annotations

import pytest

from evenflow.model import Event
from examples.home_security.alarms import Alarm, alarms_in, no_alerts, with_alarms
from examples.home_security.reports import MINUTE_MS, Armed, Report, body_of

NOW_MS = 1_700_000_000_000


def kinds(sensor: str, state: str, armed: Armed) -> list[str]:
    said = Report(NOW_MS, sensor, state, armed)
    return [alarm.kind for alarm in alarms_in([Event(body_of(said), "home-7", None, 5)], [said])]


@pytest.mark.parametrize(
    ("sensor", "state", "armed", "expected"),
    [
        ("door", "open", "away", ["break-in"]),
        ("window", "open", "away", ["break-in"]),
        ("motion", "moving", "away", ["break-in"]),
        ("motion", "moving", "night", []),
        ("door", "open", "off", []),
        ("door", "closed", "away", []),
        ("glass", "broken", "night", ["glass break"]),
        ("glass", "broken", "away", ["glass break"]),
        ("glass", "broken", "off", []),
        ("co", "high", "off", ["carbon monoxide"]),
        ("co", "high", "away", ["carbon monoxide"]),
        ("co", "clear", "away", []),
    ],
)
def test_what_is_alarming(sensor: str, state: str, armed: Armed, expected: list[str]) -> None:
    assert kinds(sensor, state, armed) == expected


def alarm(sequence: int, minute: float = 0.0, home: int = 7, kind: str = "break-in") -> Alarm:
    return Alarm(home, kind, "door", NOW_MS + int(minute * MINUTE_MS), sequence)


def test_alarms_of_one_kind_in_a_home_within_minutes_are_one_alert() -> None:
    after, raised = with_alarms(no_alerts("0", 0), [alarm(1), alarm(5, 2), alarm(6, 2, home=8), alarm(9, 30)])
    assert [(one.home, one.first, one.last, one.reports) for one in after.alerts] == [
        (7, 1, 5, 2),
        (8, 6, 6, 1),
        (7, 9, 9, 1),
    ]
    assert [one.first for one in raised] == [1, 6, 9]


def test_a_replay_changes_nothing_wherever_it_begins() -> None:
    alarms = [
        alarm(1),
        alarm(5, 2),
        alarm(6, 2, home=8),
        alarm(9, 30),
        alarm(12, 31),
        alarm(15, 32, kind="glass break"),
    ]
    whole, _ = with_alarms(no_alerts("0", 0), alarms)
    for died in range(len(alarms) + 1):
        before, _ = with_alarms(no_alerts("0", 0), alarms[:died])
        for again in range(died + 1):
            assert with_alarms(before, alarms[again:])[0] == whole
    assert with_alarms(whole, alarms) == (whole, [])


def test_alerts_of_yesterday_fall_off() -> None:
    after, _ = with_alarms(no_alerts("0", 0), [alarm(1), alarm(2, 25 * 60, home=8)])
    assert [one.home for one in after.alerts] == [8]
