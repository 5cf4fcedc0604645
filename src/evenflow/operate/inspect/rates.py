"""How a group changes between snapshots: events per second, the trend of its lag, the time until it has caught up.

Computed from the snapshots so far, on the watcher's own clock. After a single snapshot these are unknown, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Trend: TypeAlias = Literal["grows", "shrinks", "steady"]

OVER_S = 10.0
"""Rates are means over this time, because checkpoints come in steps."""
STALLED_S = 5.0
"""A checkpoint that has not moved for this long although there is lag counts as stalled."""
STEP_S = 1.0
"""Lag counts from the checkpoint, which is up to one commit interval behind: changes below that are no trend."""


class ProgressPoint(NamedTuple):
    """The progress of a partition, or of all partitions together."""

    ordinal: int
    lag: int | None


class ProgressRate(Struct, frozen=True, kw_only=True):
    per_s: float | None = None
    """Events handled, by checkpoints."""
    trend: Trend | None = None
    """Of the lag."""
    catch_up_s: float | None = None
    """How long until there is no lag at this rate; None when unknown, or when lag does not shrink."""
    still_s: float = 0.0
    """How long the checkpoint has not moved although there is lag."""

    @property
    def is_stalled(self) -> bool:
        return self.still_s >= STALLED_S


class RateTracker:
    """Remembers the last snapshots."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[float, ProgressPoint]]] = {}
        self._still_since: dict[str, tuple[int, float]] = {}

    def observe(self, points: Mapping[str, ProgressPoint], now_s: float) -> dict[str, ProgressRate]:
        self._samples = {name: [*self._samples.get(name, ()), (now_s, point)] for name, point in points.items()}
        return {name: rate_of(samples, self._still_s(name, now_s)) for name, samples in self._samples.items()}

    def _still_s(self, name: str, now_s: float) -> float:
        samples = self._samples[name]
        # Drop older samples: the first one kept is the newest that is old enough for the mean.
        while len(samples) > 2 and now_s - samples[1][0] >= OVER_S:
            del samples[0]
        point = samples[-1][1]
        if not point.lag:
            # Start counting at the next snapshot with lag: those events may have arrived just before it.
            self._still_since.pop(name, None)
            return 0.0
        ordinal, since_s = self._still_since.get(name, (point.ordinal, now_s))
        if ordinal != point.ordinal:
            since_s = now_s
        self._still_since[name] = point.ordinal, since_s
        return now_s - since_s


def rate_of(samples: Sequence[tuple[float, ProgressPoint]], still_s: float = 0.0) -> ProgressRate:
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    passed_s = last_s - first_s
    if passed_s <= 0:
        return ProgressRate()
    per_s = max(0, last.ordinal - first.ordinal) / passed_s
    if first.lag is None or last.lag is None:
        return ProgressRate(per_s=per_s, still_s=still_s)
    grown = last.lag - first.lag
    trend = _trend(grown, per_s)
    return ProgressRate(
        per_s=per_s, trend=trend, catch_up_s=_catch_up_s(last.lag, grown / passed_s, trend), still_s=still_s
    )


def _trend(grown: int, per_s: float) -> Trend:
    if abs(grown) <= per_s * STEP_S:
        return "steady"
    return "grows" if grown > 0 else "shrinks"


def _catch_up_s(lag: int, grows_per_s: float, trend: Trend) -> float | None:
    if lag == 0:
        return 0.0
    return lag / -grows_per_s if trend == "shrinks" else None
