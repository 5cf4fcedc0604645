"""How a bucket's day grows: final minutes are added, hours that are too old fall off. Pure, and the same whenever it
is done: which steps led to `until` does not show in the day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.home_security.layout import (
    DAY_HOURS,
    HOUR_MINUTES,
    LAYOUT,
    Day,
    Hour,
    Span,
    joined,
    pack_hour,
    unpack_hour,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def folded(day: Day, homes: Mapping[int, Sequence[Span]], until: int) -> Day:
    """With these minutes, as far as they are not in it yet, up to and without `until`."""
    if until <= day.until:
        return day
    hours = {hour.hour: hour for hour in day.hours}
    fresh = {home: within(spans, day.until, until) for home, spans in homes.items()}
    for hour in _hours_of(fresh):
        hours[hour] = _grown(hours.get(hour), hour, fresh)
    oldest = until // HOUR_MINUTES - DAY_HOURS
    kept = tuple(hours[hour] for hour in sorted(hours) if hour >= oldest)
    since = day.since if day.since > oldest * HOUR_MINUTES else 0
    return Day(LAYOUT, day.partition, day.bucket, until, kept, since)


def empty_day(partition: str, bucket: int, since: int = 0) -> Day:
    """One that has no minutes yet; `since`: and never will have those before."""
    return Day(LAYOUT, partition, bucket, since, (), since)


def _hours_of(homes: Mapping[int, Sequence[Span]]) -> set[int]:
    return {
        hour
        for spans in homes.values()
        for span in spans
        for hour in range(span.minute // HOUR_MINUTES, (span.end - 1) // HOUR_MINUTES + 1)
    }


def _grown(before: Hour | None, hour: int, homes: Mapping[int, Sequence[Span]]) -> Hour:
    rollup = unpack_hour(before) if before is not None else {}
    first, end = hour * HOUR_MINUTES, (hour + 1) * HOUR_MINUTES
    for home, spans in homes.items():
        if inside := within(spans, first, end):
            rollup[home] = joined([*rollup.get(home, ()), *inside])
    return pack_hour(hour, dict(sorted(rollup.items())))
