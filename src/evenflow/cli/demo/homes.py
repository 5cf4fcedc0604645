"""Simulated reports of motion, door, window and glass-break sensors, keyed by home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json

from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Callable

HOMES = 100_000

REPORTS = (
    (0.55, "motion", "still"),
    (0.80, "motion", "moving"),
    (0.87, "door", "closed"),
    (0.92, "door", "open"),
    (0.96, "window", "closed"),
    (0.98, "window", "open"),
    (0.9999, "glass", "whole"),
    (1.00, "glass", "broken"),
)
"""Up to which chance, which sensor reports what."""


def report(chance: Callable[[], float]) -> Event:
    """What some home's sensor reports now."""
    home, which = int(chance() * HOMES), chance()
    sensor, state = next((sensor, state) for limit, sensor, state in REPORTS if which < limit)
    return Event(json.encode({"home": home, "sensor": sensor, "state": state}), key=f"home-{home}")
