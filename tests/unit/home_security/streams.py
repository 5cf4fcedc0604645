"""A small town's events, as a hub would have stored them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.model import Event
from examples.home_security.generator import streets
from examples.home_security.places import Town
from examples.home_security.reports import MINUTE_MS, Report, body_of, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

TOWN = Town(homes=40, seed=7)
BEGIN_MS = 20_000 * 1_440 * MINUTE_MS + 7 * 60 * MINUTE_MS
"""Seven in the morning: people get up and leave."""


def stored(events: Iterable[Event]) -> list[Event]:
    return [
        Event(event.body, event.key, None, sequence, 1_000 * sequence) for sequence, event in enumerate(events, start=0)
    ]


def a_morning(minutes: int = 20, town: Town = TOWN) -> list[Event]:
    """All homes in one partition, in order, with carbon-monoxide detectors from the tenth minute on."""
    street = streets(town, 1)[0]
    return stored(street.events(BEGIN_MS, BEGIN_MS + minutes * MINUTE_MS, BEGIN_MS + 10 * MINUTE_MS))


def report(home: int, at_ms: int, sensor: str = "door", state: str = "open") -> Event:
    return Event(body_of(Report(at_ms, sensor, state, "away")), key_of(home))
