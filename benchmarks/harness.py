"""The shape that every benchmark has: figures with their spread, bars that hold or not, and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import apsw

if TYPE_CHECKING:
    from collections.abc import Sequence

Direction = Literal["at least", "at most"]


@dataclass(frozen=True)
class Figure:
    """Something that was measured several times: the median, and the lowest and highest."""

    name: str
    median: float
    low: float
    high: float
    samples: int
    unit: str

    def as_json(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "samples": self.samples,
            "unit": self.unit,
        }


def figure(name: str, samples: Sequence[float], unit: str = "") -> Figure:
    return Figure(name, statistics.median(samples), min(samples), max(samples), len(samples), unit)


@dataclass(frozen=True)
class Bar:
    """A promise about one number."""

    name: str
    value: float
    limit: float
    direction: Direction

    @property
    def holds(self) -> bool:
        # Written so that a value which is no number never holds.
        return self.value >= self.limit if self.direction == "at least" else self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "direction": self.direction,
            "holds": self.holds,
        }


def at_least(name: str, value: float, limit: float) -> Bar:
    return Bar(name, value, limit, "at least")


def at_most(name: str, value: float, limit: float) -> Bar:
    return Bar(name, value, limit, "at most")


@dataclass(frozen=True)
class Result:
    """What one benchmark found."""

    figures: Sequence[Figure]
    bars: Sequence[Bar] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)
    """What a reader should know beside the numbers: which test failed, say."""

    @property
    def holds(self) -> bool:
        return all(bar.holds for bar in self.bars)

    def as_json(self, name: str) -> dict[str, Any]:
        return {
            "benchmark": name,
            "figures": {figure.name: figure.as_json() for figure in self.figures},
            "bars": [bar.as_json() for bar in self.bars],
            "notes": list(self.notes),
            "machine": machine(),
        }


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.machine()}",
        "sqlite": apsw.sqlite_lib_version(),
    }


def names() -> list[str]:
    """The benchmarks there are: the modules of this package, by file name."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if not file.stem.startswith("_") and file.stem != "harness")


def table(result: dict[str, Any]) -> str:
    """A result as lines for people."""
    lines = [result["benchmark"]]
    for name, figure in result["figures"].items():
        spread = f"({quantity(figure['low'])} to {quantity(figure['high'])}, {figure['samples']} times)"
        lines.append(f"  {name:<44} {quantity(figure['median']):>12} {figure['unit']:<9} {spread}")
    lines += [f"  {bar_line(bar)}" for bar in result["bars"]]
    lines += [f"  {note}" for note in result["notes"]]
    return "\n".join(lines)


def bar_line(bar: dict[str, Any]) -> str:
    verdict = "holds" if bar["holds"] else "DOES NOT HOLD"
    return f"{bar['name']:<44} {quantity(bar['value']):>12} {bar['direction']} {quantity(bar['limit'])}: {verdict}"


def quantity(value: float) -> str:
    if value == 0 or (1 <= abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def say(text: str) -> None:
    """Progress goes to standard error, so that standard output has the result alone."""
    print(text, file=sys.stderr, flush=True)
