"""Quantities and lists in sentences: 90s, 45m, 30h; 0, 1, 2 and 13 more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS_MOST = 3
UNITS_LEAST = 0.05
"""Smaller amounts would be shown as 0."""
NAMED_MOST = 8
"""The most names in a sentence; the others are counted."""


def show_duration(seconds: float) -> str:
    """In the largest unit that leaves at least two of it: 90s, 45m, 30h, 9d."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def count_of(number: int, word: str) -> str:
    """1 partition, 2 partitions."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def units_of(charges: Mapping[str, float]) -> str:
    """18.0 request units: read feed 15.0, write lease 3.0. Free operations are left out."""
    kinds = ", ".join(f"{kind} {units:,.1f}" for kind, units in sorted(charges.items()) if units >= UNITS_LEAST)
    return f"{sum(charges.values()):,.1f} request units" + (f": {kinds}" if kinds else "")


def most_units(charges: Mapping[str, float]) -> str:
    """read feed 15.0, write lease 3.0, others 0.4: the most expensive operations first."""
    kinds = sorted(charges.items(), key=lambda one: -one[1])
    rest = sum(units for _, units in kinds[KINDS_MOST:])
    shown = [*kinds[:KINDS_MOST], ("others", rest)]
    return ", ".join(f"{kind} {units:,.1f}" for kind, units in shown if units >= UNITS_LEAST)


def with_article(word: str) -> str:
    """A seek, an import."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def what_to_fix(error: str) -> str:
    """What an operator must fix before the event is retried: a damaged event is not the handler's fault."""
    return "the damaged data" if error.startswith("Corrupt: ") else "the handler"


def listed(names: Sequence[str]) -> str:
    """The names as a sentence lists them."""
    if len(names) > NAMED_MOST + 1:
        return f"{', '.join(names[:NAMED_MOST])} and {len(names) - NAMED_MOST} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for display: 2 before 10, consumer-2 before consumer-10."""
    parts: list[tuple[int, int, str]] = []
    rest = name
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = digits or next((at for at, character in enumerate(rest) if character in "0123456789"), len(rest))
        part, rest = rest[:length], rest[length:]
        parts.append((0, int(part), "") if digits else (1, 0, part))
    return tuple(parts)
