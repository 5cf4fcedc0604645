"""The reports of sensors: their values, and how a report is encoded as an event and decoded.

A report says whether the home's alarm was set, so that a reader needs no earlier report to know what it means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

Sensor: TypeAlias = Literal["motion", "door", "window", "glass", "co"]
Armed: TypeAlias = Literal["off", "night", "away"]
"""How the alarm is set. night: residents sleep at home; away: the home is empty."""

SENSORS: tuple[Sensor, ...] = ("motion", "door", "window", "glass", "co")
"""Everywhere in this order: in counts, in bits, on the page."""
ARMED: tuple[Armed, ...] = ("off", "night", "away")
QUIET = ("still", "closed", "closed", "whole", "clear")
"""The state of each sensor without activity."""
ACTIVE = ("moving", "open", "open", "broken", "high")
"""And when there is."""

MEANING: dict[tuple[str, str], tuple[int, bool]] = {
    (sensor, state): (index, is_active)
    for is_active, states in ((False, QUIET), (True, ACTIVE))
    for index, (sensor, state) in enumerate(zip(SENSORS, states, strict=True))
}
"""What sensor and state say: see `meanings_of`."""

MINUTE_MS = 60_000


class NotUnderstood(ValueError):
    """A report that no sensor sends. It will not be better the next time."""


class Report(Struct, frozen=True, gc=False):
    """One event's body, as JSON. `at` is the home's own time, in milliseconds since 1970."""

    at: int
    sensor: str
    state: str
    armed: Armed = "off"


_decoder = msgspec.json.Decoder(list[Report])
_encode = msgspec.json.Encoder().encode


def body_of(report: Report) -> bytes:
    return _encode(report)


def reports_of(bodies: Iterable[bytes]) -> list[Report]:
    """All of them in one step, which costs a fraction of decoding each."""
    try:
        return _decoder.decode(b"[" + b",".join(bodies) + b"]")
    except msgspec.MsgspecError as error:
        raise NotUnderstood(f"This is no report: {error}") from error


def meanings_of(reports: Iterable[Report]) -> list[tuple[int, bool]]:
    """Of each, the sensor's place in SENSORS, and whether it is active."""
    try:
        return [MEANING[report.sensor, report.state] for report in reports]
    except KeyError as error:
        raise NotUnderstood(f"No sensor says {' '.join(error.args[0])}.") from error


def key_of(home: int) -> str:
    """What an event is keyed by, so that all reports of a home stay in one partition, in order."""
    return f"home-{home}"


def home_of(key: str | None) -> int:
    if key is None or not (number := key.removeprefix("home-")).isdecimal() or key_of(int(number)) != key:
        raise NotUnderstood(f"A report is keyed by its home, as home-42; this one by {key!r}.")
    return int(number)
