"""Which reports are alarming, and how alarms become alerts. Pure, and the same when it is done again.

A report says how the alarm was set, so each is judged by itself. Alarms of one kind that follow each other in a home
within EPISODE_MS are one alert. A home's reports come in order, so an alarm at or before the last one that its alert
has counted is there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from examples.home_security.layout import DAY_HOURS, HOUR_MINUTES, LAYOUT, Alert, Alerts
from examples.home_security.reports import MINUTE_MS, home_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evenflow.model import Event
    from examples.home_security.reports import Report

EPISODE_MS = 10 * MINUTE_MS
KEPT_MS = DAY_HOURS * HOUR_MINUTES * MINUTE_MS

BREAK_IN, GLASS_BREAK, CARBON_MONOXIDE = "break-in", "glass break", "carbon monoxide"
_ALARMING = {
    ("co", "high", "off"): CARBON_MONOXIDE,
    ("co", "high", "night"): CARBON_MONOXIDE,
    ("co", "high", "away"): CARBON_MONOXIDE,
    ("glass", "broken", "night"): GLASS_BREAK,
    ("glass", "broken", "away"): GLASS_BREAK,
    ("door", "open", "away"): BREAK_IN,
    ("window", "open", "away"): BREAK_IN,
    ("motion", "moving", "away"): BREAK_IN,
}
"""By sensor, state and how the alarm is set. At night people are at home, and may walk and open windows."""
_LOUD = frozenset(state for _, state, _ in _ALARMING)


class Alarm(NamedTuple):
    home: int
    kind: str
    sensor: str
    at_ms: int
    sequence: int


def alarms_in(events: Sequence[Event], reports: Sequence[Report]) -> list[Alarm]:
    # A quick check rules most reports out.
    loud = [(event, report) for event, report in zip(events, reports, strict=True) if report.state in _LOUD]
    return [
        Alarm(home_of(event.key), kind, report.sensor, report.at, event.sequence or 0)
        for event, report in loud
        if (kind := _ALARMING.get((report.sensor, report.state, report.armed))) is not None
    ]


def no_alerts(partition: str, bucket: int) -> Alerts:
    return Alerts(LAYOUT, partition, bucket, ())


def with_alarms(before: Alerts, alarms: Iterable[Alarm]) -> tuple[Alerts, list[Alert]]:
    """With these, as far as they are new; and those alerts that were not there before."""
    found = {(alert.home, alert.kind, alert.first): alert for alert in before.alerts}
    newest = {(alert.home, alert.kind): alert for alert in before.alerts}
    raised: dict[tuple[int, str, int], Alert] = {}
    for alarm in alarms:
        last = newest.get((alarm.home, alarm.kind))
        if last is not None and alarm.sequence <= last.last:
            continue
        alert = _grown(last, alarm)
        newest[alarm.home, alarm.kind] = found[alert.home, alert.kind, alert.first] = alert
        if last is None or alert.first != last.first:
            raised[alert.home, alert.kind, alert.first] = alert
    if not found:
        return before, []
    oldest_ms = max(alert.last_ms for alert in found.values()) - KEPT_MS
    kept = sorted((alert for alert in found.values() if alert.last_ms >= oldest_ms), key=lambda alert: alert.first)
    return Alerts(LAYOUT, before.partition, before.bucket, tuple(kept)), list(raised.values())


def _grown(last: Alert | None, alarm: Alarm) -> Alert:
    home, kind, sensor, at_ms, sequence = alarm
    if last is None or at_ms - last.last_ms > EPISODE_MS:
        return Alert(home, kind, sensor, at_ms, at_ms, sequence, sequence, 1)
    return Alert(home, kind, last.sensor, last.at_ms, at_ms, last.first, sequence, last.reports + 1)
