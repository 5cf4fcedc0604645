"""Whether the blobs are right: what they say against what follows from the generator's account.

Every home that is looked at is lived through again, minute by minute, from the town's seed, and compared with what its
recent part and its day say. What the blobs lack was lost; what they have too much was counted twice. Its alerts are
raised again, too, and compared.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from evenflow.errors import Corrupt
from evenflow.model import Event
from examples.home_security.alarms import alarms_in, no_alerts, with_alarms
from examples.home_security.days import phase_ms, reports_in
from examples.home_security.layout import (
    DAY_HOURS,
    FOREVER,
    HOUR_MINUTES,
    LOST,
    Alerts,
    Day,
    Recent,
    Span,
    alerts_name,
    bucket_of,
    day_name,
    lost_name,
    partition_of_home,
    recent_name,
    unpack_hour,
    within,
)
from examples.home_security.reading import read
from examples.home_security.reports import ARMED, MINUTE_MS, Report, key_of, meanings_of
from examples.home_security.tallying import LATE_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from examples.home_security.blobs import Blobs
    from examples.home_security.generator import Account
    from examples.home_security.layout import About
    from examples.home_security.places import Place, Town

T = TypeVar("T", Recent, Day, Alerts)

EVENTS_MOST = 2_000_000
"""About so many are lived through again at most: of more, only some homes, evenly spread."""


class Injected(Struct, frozen=True):
    """A report that was injected in addition to the generator's."""

    home: int
    report: Report


class Verdict(Struct, frozen=True, kw_only=True):
    homes: int
    """How many were looked at."""
    expected: int
    """Reports that were acknowledged, of these homes."""
    injected: int = 0
    """How many of them were injected in addition to the generator's."""
    counted: int
    """Reports that the aggregates have, of these homes."""
    lost: int
    twice: int
    wrong: int
    """Minutes that have all reports, and yet another last state, or another setting of the alarm."""
    alerts: int
    """That were raised."""
    alerts_wrong: int
    """Alerts that should be there and are not, or are there and should not."""
    damaged: tuple[str, ...] = ()
    """Blobs that cannot be read, or that were there once and are no more: they count as empty."""

    @property
    def is_fine(self) -> bool:
        return not (self.lost or self.twice or self.wrong or self.alerts_wrong or self.damaged)


class _Bucket(NamedTuple):
    partition: str
    homes: list[int]
    recent: Recent | None
    day: Day | None
    alerts: Alerts | None


Counts = Counter[tuple[int, int, bool]]
"""By minute, sensor, and whether it was active."""


async def judge(
    place: Place,
    blobs: Blobs,
    about: About,
    account: Account,
    *,
    unwritten: Collection[str] = (),
    unraised: Collection[str] = (),
    report: Callable[[int], None] = lambda homes: None,
) -> Verdict:
    """When nothing more is written.

    Partitions that are `unwritten` have events that wait to be aggregated: of these, only minutes are compared that
    were over before. Of those that are `unraised`, alerts are not.
    """
    town, injected = place.scene().town, read_injected(place)
    step = -(-account.sent // EVENTS_MOST) or 1
    since_ms = account.until_ms - (DAY_HOURS - 1) * HOUR_MINUTES * MINUTE_MS
    total, damaged = Counter[str](), {path.removeprefix(lost_name("")) for path in await blobs.paths(LOST)}
    async for bucket in _buckets(blobs, about, damaged):
        kept = _hours(bucket, damaged)
        first, end = _oldest(bucket.day), _written_until(bucket.recent) if bucket.partition in unwritten else FOREVER
        for home in bucket.homes[::step]:
            days = [span for hour in sorted(kept) for span in kept[hour].get(home, ())]
            due = _reports(town, account, home, first, end)
            extra = [one.report for one in injected if one.home == home]
            spans = within(_spans(home, days, bucket, damaged), 0, end)
            total.update(_compared(spans, due, [one for one in extra if one.at // MINUTE_MS < end], first))
            if bucket.partition in unraised:
                continue
            if extra:
                total.update(_compared_injected(home, bucket, extra))
            else:
                total.update(_compared_alerts(home, bucket, _reports(town, account, home, first), since_ms))
        report(total["homes"])
    counts = {name: total[name] for name in Verdict.__struct_fields__ if name != "damaged"}
    return Verdict(**counts, damaged=tuple(sorted(damaged)))


def write_injected(place: Place, home: int, report: Report) -> None:
    with place.injected.open("ab") as file:
        file.write(msgspec.json.encode(Injected(home, report)) + b"\n")


def read_injected(place: Place) -> list[Injected]:
    lines = place.injected.read_bytes().splitlines() if place.injected.exists() else []
    return [msgspec.json.decode(line, type=Injected) for line in lines]


async def _buckets(blobs: Blobs, about: About, damaged: set[str]) -> AsyncIterator[_Bucket]:
    """All of them, each with its partition's recent part."""
    for partition, mine in sorted(_homes(about).items()):
        recent = await _found(blobs, recent_name(partition), Recent, damaged)
        for bucket in sorted({bucket_of(home) for home in mine}):
            name = day_name(partition, bucket)
            day = await _found(blobs, name, Day, damaged)
            if recent is not None and recent.until.get(bucket, 0) > (day.until if day is not None else 0):
                damaged.add(name)
            yield _Bucket(
                partition,
                [home for home in mine if bucket_of(home) == bucket],
                recent,
                day,
                await _found(blobs, alerts_name(partition, bucket), Alerts, damaged),
            )


async def _found(blobs: Blobs, name: str, kind: type[T], damaged: set[str]) -> T | None:
    try:
        return await read(blobs, name, kind)
    except Corrupt:
        damaged.add(name)
        return None


def _hours(bucket: _Bucket, damaged: set[str]) -> dict[int, dict[int, list[Span]]]:
    if bucket.day is None:
        return {}
    try:
        return {hour.hour: unpack_hour(hour) for hour in bucket.day.hours}
    except Corrupt:
        damaged.add(day_name(bucket.day.partition, bucket.day.bucket))
        return {}


def _homes(about: About) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for home in range(about.homes):
        found.setdefault(partition_of_home(home, about.partitions), []).append(home)
    return found


def _spans(home: int, days: list[Span], bucket: _Bucket, damaged: set[str]) -> list[Span]:
    try:
        mine = bucket.recent.home(home) if bucket.recent is not None else None
    except Corrupt:
        damaged.add(recent_name(bucket.recent.partition if bucket.recent is not None else ""))
        mine = None
    until = bucket.day.until if bucket.day is not None else 0
    return days + within(mine.spans if mine is not None else (), until, FOREVER)


def _oldest(day: Day | None) -> int:
    """The first minute that the day still has."""
    return (day.until // HOUR_MINUTES - DAY_HOURS) * HOUR_MINUTES if day is not None else 0


def _written_until(recent: Recent | None) -> int:
    """All minutes before this one were over when it was written, however reports are mixed within a minute."""
    return (recent.watermark_ms - LATE_MS) // MINUTE_MS if recent is not None else 0


def _reports(town: Town, account: Account, home: int, first: int, end: int = FOREVER) -> dict[int, list[Report]]:
    """By minute, from one up to another: all that the home has sent, as far as it was acknowledged."""
    offset_ms = phase_ms(town, home)
    found = {}
    for minute in range(max(first, account.begin_ms // MINUTE_MS), min(end, account.until_ms // MINUTE_MS + 1)):
        moment_ms = minute * MINUTE_MS + offset_ms
        if account.begin_ms <= moment_ms < account.until_ms:
            has_detector = account.detectors_ms is not None and moment_ms >= account.detectors_ms
            found[minute] = reports_in(town, home, minute, has_detector=has_detector)
    return found


def _compared(
    spans: list[Span], due: Mapping[int, Sequence[Report]], extra: Sequence[Report], first: int
) -> dict[str, int]:
    counted = _counted(spans, first)
    expected = _expected([report for reports in due.values() for report in reports], first)
    expected.update(_arrived(_expected(extra, first), counted - expected))
    # With an injected report, the last report of its minute is unknown.
    lasts = {minute: _last(reports) for minute, reports in due.items()} if not extra else {}
    return {
        "homes": 1,
        "expected": expected.total(),
        "injected": len(extra),
        "counted": counted.total(),
        "lost": (expected - counted).total(),
        "twice": (counted - expected).total(),
        "wrong": sum(
            lasts.get(minute, (span.states, span.armed)) != (span.states, span.armed)
            for span in spans
            for minute in range(span.minute, span.end)
        ),
    }


def _counted(spans: list[Span], first: int) -> Counts:
    counts = Counts()
    for span in spans:
        for minute in range(max(span.minute, first), span.end):
            for index, (reports, active) in enumerate(zip(span.reports, span.active, strict=True)):
                counts[minute, index, True] += active
                counts[minute, index, False] += reports - active
    return counts


def _expected(reports: Sequence[Report], first: int) -> Counts:
    meanings = zip(reports, meanings_of(reports), strict=True)
    return Counts(
        (minute, index, is_active)
        for report, (index, is_active) in meanings
        if (minute := report.at // MINUTE_MS) >= first
    )


def _arrived(extra: Counts, surplus: Counts) -> Counts:
    """Reports beside the generator's, each where it was counted: when it came late, in a later minute than its own."""
    found = Counts()
    for wanted in sorted(extra.elements()):
        fits = (one for one in sorted(surplus) if one >= wanted and one[1:] == wanted[1:] and surplus[one] > found[one])
        found[next(fits, wanted)] += 1
    return found


def _last(reports: Sequence[Report]) -> tuple[int, int]:
    states = dict(meanings_of(reports))
    return sum(is_active << index for index, is_active in states.items()), ARMED.index(reports[-1].armed)


def _compared_injected(home: int, bucket: _Bucket, extra: Sequence[Report]) -> dict[str, int]:
    """Each that is alarming belongs to an alert. Other alerts cannot be predicted: see `_compared`."""
    alerts = [alert for alert in bucket.alerts.alerts if alert.home == home] if bucket.alerts is not None else []
    events = [Event(b"", key_of(home), None, sequence) for sequence in range(len(extra))]
    missing = [
        alarm
        for alarm in alarms_in(events, extra)
        if not any(alert.kind == alarm.kind and alert.at_ms <= alarm.at_ms <= alert.last_ms for alert in alerts)
    ]
    return {"alerts": len(alerts), "alerts_wrong": len(missing)}


def _compared_alerts(home: int, bucket: _Bucket, due: Mapping[int, Sequence[Report]], since_ms: int) -> dict[str, int]:
    """Those that began after a moment from which on both know all."""
    reports = [report for minute in sorted(due) for report in due[minute]]
    events = [Event(b"", key_of(home), None, sequence) for sequence in range(len(reports))]
    expected = with_alarms(no_alerts("", 0), alarms_in(events, reports))[0].alerts
    found = bucket.alerts.alerts if bucket.alerts is not None else ()
    one, other = (
        {(alert.kind, alert.at_ms, alert.last_ms, alert.reports) for alert in some if alert.at_ms >= since_ms}
        for some in (expected, [alert for alert in found if alert.home == home])
    )
    return {"alerts": len(other), "alerts_wrong": len(one ^ other)}
