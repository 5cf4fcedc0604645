"""Parses and formats durations, sizes and times: 90s, 12h, 7d; 500MB, 2GiB; 2026-02-03T04:05."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import typer

from evenflow.text import show_duration

__all__ = ["parse_bytes", "parse_duration_s", "parse_moment", "parse_past", "show_bytes", "show_duration"]

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
BYTES = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1_000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1_024**power for power, prefix in enumerate("kmgt", 1)},
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_duration_s(text: str) -> float:
    """The duration in seconds; a number without a unit is seconds."""
    number, unit = _parts(text)
    if number is None or (unit or "s") not in SECONDS:
        raise typer.BadParameter(f"{text!r} is not a duration; write it as 90s, 30m, 12h or 7d.")
    return number * SECONDS[unit or "s"]


def parse_bytes(text: str) -> int:
    number, unit = _parts(text)
    if number is None or unit not in BYTES:
        raise typer.BadParameter(f"{text!r} is not a size; write it as 500MB, 2GB or 1GiB.")
    return int(number * BYTES[unit])


def parse_moment(text: str) -> datetime | None:
    """A time in ISO 8601, local time if it names no zone; None if it is not a valid time."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.astimezone()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parse_past(text: str, now_s: float) -> datetime | None:
    """A time, or a duration before now: 90m or -90m. None for anything else, also for a number without a unit."""
    moment = parse_moment(text)
    if moment is not None:
        return moment
    number, unit = _parts(text.removeprefix("-"))
    if number is None or unit not in SECONDS:
        return None
    return datetime.fromtimestamp(now_s - number * SECONDS[unit], UTC)


def show_bytes(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1_000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1_000
    return f"{size_bytes:.1f} TB"


def _parts(text: str) -> tuple[float | None, str]:
    found = _QUANTITY.fullmatch(text)
    return (float(found[1]), found[2].lower()) if found else (None, "")
