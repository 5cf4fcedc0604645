"""What the residents' page reads: three blobs for a home, and nothing else. No consumer has to run.

`read_about` once, then `read_home` whenever the page is shown, is all that a page needs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from evenflow.errors import Corrupt, Misconfigured
from examples.home_security.layout import (
    ABOUT,
    DAY_HOURS,
    FOREVER,
    HOUR_MINUTES,
    About,
    Alert,
    Alerts,
    Day,
    Recent,
    Span,
    alerts_name,
    bucket_of,
    day_name,
    joined,
    partition_of_home,
    recent_name,
    unpack,
    unpack_hour,
    within,
)
from examples.home_security.reports import ACTIVE, ARMED, MINUTE_MS, QUIET, SENSORS, Armed, Sensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.home_security.blobs import Blobs

T = TypeVar("T", Recent, Day, Alerts)


class SensorView(Struct, frozen=True, kw_only=True):
    """A sensor as it is now."""

    sensor: Sensor
    state: str
    """In the sensor's own word: still or moving, closed or open, whole or broken, clear or high."""
    is_active: bool
    since_ms: int
    """The beginning of the minute in which it became so, as far as the last 24 hours show."""


class HomeView(Struct, frozen=True, kw_only=True):
    """A home, read from the blobs. Times are the homes' own, in milliseconds since 1970."""

    home: int
    partition: str
    complete_ms: int
    """Everything that was reported up to then is in here."""
    stored_us: int
    """When the last report that is counted was stored in the hub, by the hub's clock, in microseconds."""
    last_ms: int | None
    """When the home reported last; None: never, as far as is known."""
    armed: Armed
    sensors: tuple[SensorView, ...]
    """Those that the home has, in the order of SENSORS."""
    spans: tuple[Span, ...]
    """The last 24 hours, minute by minute: spans in order, with gaps where nothing was reported."""
    alerts: tuple[Alert, ...]
    """Of the last 24 hours, the newest first."""
    lost_before_ms: int | None = None
    """What was reported before then is lost: a blob was damaged, or removed."""
    alerts_unknown: bool = False
    """There may be more alerts: their blob cannot be read."""


async def read_about(blobs: Blobs) -> About:
    """How many homes and partitions there are. It never changes: read it once."""
    found = await find_about(blobs)
    if found is None:
        raise Misconfigured("There are no aggregates here yet: start the demo, or name the folder that has them.")
    return found


async def find_about(blobs: Blobs) -> About | None:
    """None while nothing has been written."""
    found = await blobs.get(ABOUT)
    return unpack(found.data, About, ABOUT) if found is not None else None


async def read_home(blobs: Blobs, about: About, home: int) -> HomeView | None:
    """Three reads. None when no such home has reported yet. A blob that is damaged hides only what it had."""
    partition, bucket = partition_of_home(home, about.partitions), bucket_of(home)
    # The day comes after the recent part: minutes leave that one only when the day has them.
    recent = await read(blobs, recent_name(partition), Recent)
    day, alerts = await asyncio.gather(
        _readable(blobs, day_name(partition, bucket), Day), _readable(blobs, alerts_name(partition, bucket), Alerts)
    )
    found = recent.home(home) if recent is not None else None
    if recent is None or found is None:
        return None
    spans, lost = _all_spans(day, recent, home, found.spans)
    spans = _last_day(spans, recent.watermark_ms)
    since_ms = recent.watermark_ms - DAY_HOURS * HOUR_MINUTES * MINUTE_MS
    known = alerts.alerts if isinstance(alerts, Alerts) else ()
    mine = [alert for alert in known if alert.home == home and alert.last_ms >= since_ms]
    return HomeView(
        home=home,
        partition=partition,
        complete_ms=recent.watermark_ms,
        stored_us=recent.complete_us,
        last_ms=found.last_ms,
        armed=ARMED[found.armed],
        sensors=tuple(
            _sensor(index, bool(found.states >> index & 1), spans)
            for index in range(len(SENSORS))
            if found.known >> index & 1
        ),
        spans=spans,
        alerts=tuple(reversed(mine)),
        lost_before_ms=lost * MINUTE_MS if lost * MINUTE_MS > since_ms else None,
        alerts_unknown=isinstance(alerts, Corrupt),
    )


async def read(blobs: Blobs, name: str, kind: type[T]) -> T | None:
    """One blob; None when there is none."""
    found = await blobs.get(name)
    return unpack(found.data, kind, name) if found is not None else None


async def _readable(blobs: Blobs, name: str, kind: type[T]) -> T | Corrupt | None:
    try:
        return await read(blobs, name, kind)
    except Corrupt as error:
        return error


def _all_spans(
    day: Day | Corrupt | None, recent: Recent, home: int, latest: tuple[Span, ...]
) -> tuple[Sequence[Span], int]:
    """Each minute from the one place where it counts; and the minute before which some are lost, or 0."""
    # Minutes leave the recent part, which was read first, only when the day has them: it has them still, or lost them.
    moved = recent.until.get(bucket_of(home), 0)
    if not isinstance(day, Day):
        return latest, moved
    try:
        kept = [span for hour in day.hours for span in unpack_hour(hour).get(home, ())]
    except Corrupt:
        return within(latest, day.until, FOREVER), day.until
    return joined([*kept, *within(latest, day.until, FOREVER)]), moved if day.until < moved else day.since


def _last_day(spans: Sequence[Span], now_ms: int) -> tuple[Span, ...]:
    now = now_ms // MINUTE_MS
    return tuple(within(spans, now - DAY_HOURS * HOUR_MINUTES + 1, now + 1))


def _sensor(index: int, is_active: bool, spans: tuple[Span, ...]) -> SensorView:
    since = spans[-1].minute if spans else 0
    for span in reversed(spans):
        if bool(span.states >> index & 1) != is_active or since > span.end:
            break
        since = span.minute
    return SensorView(
        sensor=SENSORS[index],
        state=(ACTIVE if is_active else QUIET)[index],
        is_active=is_active,
        since_ms=since * MINUTE_MS,
    )
