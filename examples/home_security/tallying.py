"""Counting: what a partition's events add up to, per home and minute. Pure: no clock, no blobs, no waiting.

The state after an event follows from the events up to it and from nothing else: not from how they came in batches, how
often the state was written and loaded in between, or which minutes were moved into a day meanwhile. So of two states
of a partition the one with the higher `upto` always contains the other, and events at or below `upto` are passed over
when they come again. All that is said about replays and moves in README.md rests on this.

A report is counted in the minute that it was made in. When it comes more than LATE_MS after the latest report of its
partition, that minute is final already, and it is counted in the oldest one that is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from examples.home_security.layout import FOREVER, LAYOUT, HomeRecent, Recent, Span, append, bucket_of, pack, within
from examples.home_security.reports import ARMED, MINUTE_MS, SENSORS, home_of, key_of, meanings_of, reports_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evenflow.model import Event

LATE_MS = MINUTE_MS
_ARMED = {name: index for index, name in enumerate(ARMED)}
_COUNT = len(SENSORS)


class Minute:
    """A minute of a home that is not final yet."""

    __slots__ = ("active", "armed", "reports", "states")

    def __init__(self, states: int, armed: int) -> None:
        self.reports = [0] * _COUNT
        self.active = [0] * _COUNT
        self.states = states
        self.armed = armed

    def span(self, minute: int) -> Span:
        return Span(minute, 1, tuple(self.reports), tuple(self.active), self.states, self.armed)


class Home:
    __slots__ = ("armed", "known", "last_ms", "minute", "now", "number", "open", "raw", "spans", "states")

    def __init__(self, number: int) -> None:
        self.number = number
        self.last_ms = 0
        self.states = 0
        self.armed = 0
        self.known = 0
        self.spans: list[Span] = []
        """Minutes that are over, in order."""
        self.open: dict[int, Minute] = {}
        self.minute = -1
        self.now = Minute(0, 0)
        """What `minute` is counted in."""
        self.raw: Raw | None = None
        """It as it was last encoded, while nothing has changed."""

    def turn(self, minute: int, final: int) -> None:
        """Count in another minute from now on. Those before `final` get no more reports: they are over.

        So whatever is opened later comes after all that is over, which stays in order.
        """
        for one in sorted(self.open):
            if one >= final:
                break
            append(self.spans, self.open.pop(one).span(one))
        if minute not in self.open:
            self.open[minute] = Minute(self.states, self.armed)
        self.minute, self.now = minute, self.open[minute]

    def all_spans(self) -> list[Span]:
        spans = self.spans.copy()
        for minute in sorted(self.open):
            append(spans, self.open[minute].span(minute))
        return spans

    def forget_before(self, minute: int) -> None:
        """These minutes are kept elsewhere from now on."""
        self.spans = within(self.spans, minute, FOREVER)
        self.open = {one: counted for one, counted in self.open.items() if one >= minute}
        self.raw = None

    def encoded(self) -> Raw:
        if self.raw is None:
            spans = tuple(self.all_spans())
            self.raw = Raw(pack(HomeRecent(self.last_ms, self.states, self.armed, self.known, spans)))
        return self.raw


class Tally:
    """All homes of a partition, up to an event."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.upto = -1
        self.watermark_ms = 0
        self.complete_us = 0
        self.until: dict[int, int] = {}
        """For each bucket that has a day: which minutes were moved there, namely all before this one."""
        self._homes: dict[str | None, Home] = {}
        self._buckets: dict[int, list[Home]] = {}

    @classmethod
    def loaded(cls, recent: Recent) -> Tally:
        tally = cls(recent.partition)
        tally.upto = recent.upto
        tally.watermark_ms = recent.watermark_ms
        tally.complete_us = recent.complete_us
        tally.until = dict(recent.until)
        for number in recent.homes:
            found = recent.home(number)
            assert found is not None
            tally._add(_home(number, found, tally.final))
        return tally

    @property
    def final(self) -> int:
        """All minutes before this one have all their reports."""
        return (self.watermark_ms - LATE_MS) // MINUTE_MS

    @property
    def buckets(self) -> Iterable[int]:
        return self._buckets

    def add(self, events: Sequence[Event]) -> list[int]:
        """Count events, in order; when those of them that are new were made."""
        fresh = [event for event in events if event.sequence is not None and event.sequence > self.upto]
        if len(fresh) < len(events):
            _check(events)
        if not fresh:
            return []
        reports = reports_of([event.body for event in fresh])
        meanings = meanings_of(reports)
        homes, watermark_ms = self._homes, self.watermark_ms
        newcomers = [home_of(key) for key in dict.fromkeys(event.key for event in fresh) if key not in homes]
        # Invalid reports have raised an error by now: from here on, all are counted.
        for number in newcomers:
            self._add(Home(number))
        for event, report, (index, is_active) in zip(fresh, reports, meanings, strict=True):
            at_ms = report.at
            if at_ms > watermark_ms:
                watermark_ms = at_ms
            home = homes[event.key]
            minute = max(at_ms, watermark_ms - LATE_MS) // MINUTE_MS
            if minute != home.minute:
                home.turn(minute, (watermark_ms - LATE_MS) // MINUTE_MS)
            now = home.now
            now.reports[index] += 1
            if is_active:
                now.active[index] += 1
                home.states |= 1 << index
            else:
                home.states &= ~(1 << index)
            home.known |= 1 << index
            now.states = home.states
            home.armed = now.armed = _ARMED[report.armed]
            home.last_ms = at_ms
            home.raw = None
        self.watermark_ms = watermark_ms
        self.upto, self.complete_us = fresh[-1].sequence or 0, fresh[-1].enqueued_us
        return [report.at for report in reports]

    def recent(self, epoch: int) -> Recent:
        return Recent(
            LAYOUT,
            self.partition,
            epoch,
            self.upto,
            self.watermark_ms,
            self.complete_us,
            {home.number: home.encoded() for home in self._homes.values()},
            self.until,
        )

    def final_spans(self, bucket: int) -> dict[int, list[Span]]:
        """The bucket's minutes that are final and not kept elsewhere yet."""
        found = {home.number: within(home.all_spans(), 0, self.final) for home in self._buckets[bucket]}
        return {home: spans for home, spans in sorted(found.items()) if spans}

    def forget_before(self, bucket: int, minute: int) -> None:
        """The bucket's day has them."""
        self.until[bucket] = minute
        for home in self._buckets[bucket]:
            home.forget_before(minute)

    def _add(self, home: Home) -> None:
        self._homes[key_of(home.number)] = home
        self._buckets.setdefault(bucket_of(home.number), []).append(home)


def _check(events: Sequence[Event]) -> None:
    """What comes again is passed over. But what is no report is none then either, as a redrive has to hear."""
    meanings_of(reports_of([event.body for event in events]))
    for key in {event.key for event in events}:
        home_of(key)


def _home(number: int, found: HomeRecent, final: int) -> Home:
    home = Home(number)
    home.last_ms, home.states, home.armed, home.known = found.last_ms, found.states, found.armed, found.known
    home.spans = within(found.spans, 0, final)
    for span in within(found.spans, final, FOREVER):
        for minute in range(span.minute, span.end):
            counted = home.open[minute] = Minute(span.states, span.armed)
            counted.reports, counted.active = list(span.reports), list(span.active)
    return home
