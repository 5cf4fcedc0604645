"""Where aggregates are, and what they look like. Every name and every content follows from the stream alone.

    about                       how many partitions and homes there are: JSON, written once
    recent/PARTITION            all homes of a partition: last states, and the minutes that no day has yet;
                                rewritten every two seconds
    days/PARTITION/BUCKET       some 100 homes: the last 24 hours, one packed roll-up an hour; rewritten every
                                few minutes
    alerts/PARTITION/BUCKET     some 100 homes: the alerts of the last 24 hours; rewritten when there is one
    lost/NAME                   what was at that name when it could not be read any more: nothing, or something damaged

A home's page is three reads: its partition's recent part, its bucket's day, its bucket's alerts. A minute of 100,000
homes is 16 recent parts, which are there already, and not one new blob.

A minute of a home is counted in one place only: in the day up to (and without) the minute `until`, which is in the day,
and in the recent part from there on. So a recent part may hold minutes that the day has as well; a reader of both takes
no minute before `until` from it.

Blobs are MessagePack (`msgspec`), with records as arrays: a field is only ever added at the end.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from evenflow.embedded.hub.keys import partition_of
from evenflow.errors import Corrupt, Misconfigured
from examples.home_security.reports import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYOUT = 1
HOUR_MINUTES = 60
DAY_HOURS = 24
BUCKET_HOMES = 1_600
"""So many numbers in a row are one bucket. Of 16 partitions, each has some 100 of these homes."""
ABOUT = "about"
LOST = "lost"
FOREVER = 1 << 62
"""A minute after all others."""


class Span(Struct, frozen=True, array_like=True, gc=False):
    """Minutes in a row, of one home, that are all alike."""

    minute: int
    """The first one, in minutes since 1970, by the home's own clock."""
    minutes: int
    reports: tuple[int, ...]
    """How many reports each sensor sent in each of these minutes, in the order of SENSORS."""
    active: tuple[int, ...]
    """How many of them reported activity: motion, an open door, ..."""
    states: int
    """A bit for each sensor, the first one the lowest: what it said last in the minute, 1 for active."""
    armed: int
    """An index into ARMED: as the last report of the minute had it."""

    @property
    def end(self) -> int:
        """The first minute after it."""
        return self.minute + self.minutes


class HomeRecent(Struct, frozen=True, array_like=True, gc=False):
    """One home in a recent part."""

    last_ms: int
    """When its last report was made."""
    states: int
    armed: int
    known: int
    """A bit for each sensor that has ever reported: a home without a carbon-monoxide detector lacks that one."""
    spans: tuple[Span, ...] = ()


class Recent(Struct, frozen=True, array_like=True):
    """A partition's recent part: exactly what follows from its events 0 to `upto`, and from no others."""

    layout: int
    partition: str
    epoch: int
    """Of the owner that wrote it."""
    upto: int
    """The sequence of the last event that is counted; -1 for none."""
    watermark_ms: int
    """The latest time that any report up to there has: complete up to when, by the homes' clocks."""
    complete_us: int
    """When the last event was stored in the hub: complete up to when, by the hub's clock."""
    homes: dict[int, msgspec.Raw]
    """By the number of the home; each is a HomeRecent, decoded when it is asked for."""
    until: dict[int, int] = msgspec.field(default_factory=dict)
    """For each bucket that has a day: the `until` that the day had at least when this was written."""

    def home(self, number: int) -> HomeRecent | None:
        raw = self.homes.get(number)
        if raw is None:
            return None
        try:
            return _home_decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"Home {number} in the blob {recent_name(self.partition)} is damaged: {error}.") from error


class Hour(Struct, frozen=True, array_like=True):
    """One hour's roll-up of a bucket, packed: a mapping of homes to spans that do not leave the hour."""

    hour: int
    """In hours since 1970."""
    packed: bytes


class Day(Struct, frozen=True, array_like=True):
    """The last hours of a bucket, the oldest first."""

    layout: int
    partition: str
    bucket: int
    until: int
    """All minutes before this one are in it, as far back as it goes, and none from it on."""
    hours: tuple[Hour, ...]
    since: int = 0
    """Not 0: what was before this minute is lost, since the blob that had it was damaged or removed."""


class Alert(Struct, frozen=True, array_like=True, gc=False):
    """Something that residents must know. Reports of the same kind that follow within minutes belong to one alert."""

    home: int
    kind: str
    """`break-in`, `glass break` or `carbon monoxide`."""
    sensor: str
    """Whose report raised it."""
    at_ms: int
    last_ms: int
    first: int
    """The sequence of the event that raised it: with the partition, the alert's name."""
    last: int
    reports: int


class Alerts(Struct, frozen=True, array_like=True):
    """A bucket's alerts, the oldest first."""

    layout: int
    partition: str
    bucket: int
    alerts: tuple[Alert, ...]


class About(Struct, frozen=True):
    """What a reader has to know before it can find a home."""

    layout: int
    partitions: int
    homes: int


T = TypeVar("T", About, Recent, Day, Alerts)

_encode = msgspec.msgpack.Encoder().encode
_home_decoder = msgspec.msgpack.Decoder(HomeRecent)
_rollup_decoder = msgspec.msgpack.Decoder(dict[int, list[Span]])
_layout_decoder = msgspec.msgpack.Decoder(tuple[int, ...])


# --- names
def partition_of_home(home: int, partitions: int) -> str:
    """The same as the hub's, and as that of Azure Event Hubs."""
    return str(partition_of(key_of(home), partitions))


def bucket_of(home: int) -> int:
    return home // BUCKET_HOMES


def recent_name(partition: str) -> str:
    return f"recent/{partition}"


def day_name(partition: str, bucket: int) -> str:
    return f"days/{partition}/{bucket}"


def lost_name(name: str) -> str:
    return f"{LOST}/{name}"


def alerts_name(partition: str, bucket: int) -> str:
    return f"alerts/{partition}/{bucket}"


# --- contents
def pack(record: About | Recent | Day | Alerts | HomeRecent) -> bytes:
    return msgspec.json.encode(record) if isinstance(record, About) else _encode(record)


def unpack(data: bytes, kind: type[T], name: str) -> T:
    """Corrupt when it is no such thing; Misconfigured when a later version of this program wrote it."""
    decode = msgspec.json.decode if kind is About else msgspec.msgpack.decode
    try:
        record: T = decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The blob {name} is damaged, or not written by this program: {error}.") from error
    if record.layout != LAYOUT:
        raise Misconfigured(f"The blob {name} has layout {record.layout}, and this program knows {LAYOUT}: upgrade it.")
    return record


def pack_hour(hour: int, homes: dict[int, list[Span]]) -> Hour:
    return Hour(hour, zlib.compress(_encode(homes), 1))


def unpack_hour(hour: Hour) -> dict[int, list[Span]]:
    try:
        return _rollup_decoder.decode(zlib.decompress(hour.packed))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise Corrupt(f"The roll-up of hour {hour.hour} is damaged: {error}.") from error


# --- spans
def append(spans: list[Span], span: Span) -> None:
    """One that comes after all of them. Neighbours that are alike are one: the only way to write the same minutes."""
    if spans:
        before = spans[-1]
        if before.minute + before.minutes == span.minute and _alike(before, span):
            spans[-1] = _lasting(before, before.minute, before.minutes + span.minutes)
            return
    spans.append(span)


def joined(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, with neighbours that are alike made one."""
    found: list[Span] = []
    for span in spans:
        append(found, span)
    return found


def within(spans: Iterable[Span], first: int, end: int) -> list[Span]:
    """What of them is in the minutes from `first` up to, and without, `end`."""
    cut = [(span, max(span.minute, first), min(span.end, end)) for span in spans if span.end > first]
    return [
        span if (low, high) == (span.minute, span.end) else _lasting(span, low, high - low)
        for span, low, high in cut
        if low < high
    ]


def _alike(one: Span, other: Span) -> bool:
    return (
        one.states == other.states
        and one.reports == other.reports
        and one.active == other.active
        and one.armed == other.armed
    )


def _lasting(span: Span, minute: int, minutes: int) -> Span:
    return Span(minute, minutes, span.reports, span.active, span.states, span.armed)
