"""Whether the aggregates are right: what the blobs say against what follows from the generator's account.

Every home that is looked at is lived through again, minute by minute, from the town's seed, and compared with what its
recent part and its day say. What the blobs lack was lost; what they have too much was counted twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from examples.home_security.days import phase_ms, reports_in
from examples.home_security.layout import (
    DAY_HOURS,
    HOUR_MINUTES,
    Day,
    Recent,
    Span,
    bucket_of,
    day_name,
    partition_of_home,
    recent_name,
    unpack,
    unpack_hour,
    within,
)
from examples.home_security.reports import ARMED, MEANING, MINUTE_MS, Report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from examples.home_security.blobs import Blobs
    from examples.home_security.generator import Account
    from examples.home_security.layout import About
    from examples.home_security.places import Place, Town

EVENTS_MOST = 2_000_000
"""About so many are lived through again at most: of more, only some homes, evenly spread."""


class Injected(Struct, frozen=True):
    """A report that somebody sent beside the generator's."""

    home: int
    report: Report


class Verdict(Struct, frozen=True, kw_only=True):
    homes: int
    """How many were looked at."""
    expected: int
    """Reports that were acknowledged, of these homes."""
    counted: int
    """Reports that the aggregates have, of these homes."""
    lost: int
    twice: int
    wrong: int
    """Minutes that have all reports, and yet another last state, or another setting of the alarm."""

    @property
    def is_fine(self) -> bool:
        return not (self.lost or self.twice or self.wrong)


Counts = Counter[tuple[int, int, bool]]
"""By minute, sensor, and whether it was active."""


async def judge(place: Place, blobs: Blobs, about: About, account: Account) -> Verdict:
    """When all that was sent is written."""
    town = place.scene().town
    step = -(-account.sent // EVENTS_MOST) or 1
    injected = read_injected(place)
    total = Counter[str]()
    async for bucket, day, recent in _buckets(blobs, about):
        kept = {hour.hour: unpack_hour(hour) for hour in day.hours} if day is not None else {}
        for home in bucket[::step]:
            days = [span for hour in sorted(kept) for span in kept[hour].get(home, ())]
            found = _spans(home, days, day, recent)
            first = _oldest(day)
            due = _reports(town, account, home, first)
            extra = [one.report for one in injected if one.home == home]
            total.update(_compared(found, due, extra, first))
    return Verdict(
        homes=total["homes"],
        expected=total["expected"],
        counted=total["counted"],
        lost=total["lost"],
        twice=total["twice"],
        wrong=total["wrong"],
    )


def write_injected(place: Place, home: int, report: Report) -> None:
    with (place.folder / "injected.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(Injected(home, report)) + b"\n")


def read_injected(place: Place) -> list[Injected]:
    path = place.folder / "injected.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Injected) for line in lines]


async def _buckets(blobs: Blobs, about: About) -> AsyncIterator[tuple[list[int], Day | None, Recent | None]]:
    """All homes, by bucket, each with its partition's recent part and its day."""
    for partition, mine in sorted(_homes(about).items()):
        found = await blobs.get(recent_name(partition))
        recent = unpack(found.data, Recent, recent_name(partition)) if found is not None else None
        for bucket in sorted({bucket_of(home) for home in mine}):
            name = day_name(partition, bucket)
            day = await blobs.get(name)
            homes = [home for home in mine if bucket_of(home) == bucket]
            yield homes, unpack(day.data, Day, name) if day is not None else None, recent


def _homes(about: About) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for home in range(about.homes):
        found.setdefault(partition_of_home(home, about.partitions), []).append(home)
    return found


def _spans(home: int, days: list[Span], day: Day | None, recent: Recent | None) -> list[Span]:
    mine = recent.home(home) if recent is not None else None
    return days + within(mine.spans if mine is not None else (), day.until if day is not None else 0, 1 << 62)


def _oldest(day: Day | None) -> int:
    """The first minute that the day still has."""
    return (day.until // HOUR_MINUTES - DAY_HOURS) * HOUR_MINUTES if day is not None else 0


def _reports(town: Town, account: Account, home: int, first: int) -> dict[int, list[Report]]:
    """By minute: all that the home has sent, as far as it was acknowledged."""
    offset_ms = phase_ms(town, home)
    found = {}
    for minute in range(max(first, account.begin_ms // MINUTE_MS), account.until_ms // MINUTE_MS + 1):
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
    expected.update(_expected(extra, first))
    # Where somebody sent a report of his own, nobody can tell which one was the last of its minute.
    lasts = {minute: _last(reports) for minute, reports in due.items()} if not extra else {}
    return {
        "homes": 1,
        "expected": expected.total(),
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
    found = [(report.at // MINUTE_MS, *MEANING[report.sensor, report.state]) for report in reports]
    return Counts(one for one in found if one[0] >= first)


def _last(reports: Sequence[Report]) -> tuple[int, int]:
    states = dict(MEANING[one.sensor, one.state] for one in reports)
    return sum(is_active << index for index, is_active in states.items()), ARMED.index(reports[-1].armed)
