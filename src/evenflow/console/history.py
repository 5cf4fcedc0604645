"""The recent history of a group, in bounded memory: lag over time, shares over time, the longest silences.

For a group of a few hundred partitions it is kept for each partition. For a larger one only the distribution of lags
is kept: ten thousand lines in one plot are unreadable.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import PartitionId
    from evenflow.operate.inspect.watcher import GroupSnapshot

WINDOW_S = 600.0
LARGE = 400
"""Groups with more partitions are shown in an aggregated form."""
CELLS = 40_000
"""The most values that are kept of each quantity."""
SAMPLES_MOST, SAMPLES_LEAST = 600, 100
SPREAD = (0.5, 0.95, 1.0)
"""Quantiles of lag: median, 95th percentile, maximum."""


class GroupHistory:
    """Of one group."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque()
        self._samples: deque[dict[PartitionId, tuple[int | None, float | None]]] = deque()
        self._spreads: deque[tuple[int | None, ...]] = deque()
        self._shares: deque[dict[str, int]] = deque()
        self._silences: dict[str, deque[tuple[float, float]]] = {}

    def note(self, snapshot: GroupSnapshot) -> None:
        self._note_silences(snapshot)
        if self._times and snapshot.wall_s - self._times[-1] < self.step_s(len(snapshot.open)) * 0.9:
            return
        self._times.append(snapshot.wall_s)
        self._samples.append(
            {row.partition: (row.lag, row.lag_s) for row in snapshot.open} if not is_large(snapshot) else {}
        )
        self._spreads.append(spread([row.lag for row in snapshot.open if row.lag is not None]))
        self._shares.append(_shares(snapshot))
        while self._times[0] < snapshot.wall_s - self._window_s:
            for series in (self._times, self._samples, self._spreads, self._shares):
                series.popleft()

    def step_s(self, partitions: int) -> float:
        """The time between samples: longer for large groups."""
        return self._window_s / min(SAMPLES_MOST, max(SAMPLES_LEAST, CELLS // max(1, partitions)))

    def longest_silence_s(self, member: str) -> float | None:
        """The longest silence of this instance; what is left of its time-to-live is the margin."""
        seen = self._silences.get(member)
        return max(silent_s for _, silent_s in seen) if seen else None

    def series(self, large: bool, owners: Sequence[str]) -> dict[str, Any]:
        """For a plot: a value for each time, or null where it was unknown."""
        series: dict[str, Any] = {"at": [round(at, 2) for at in self._times]}
        if large:
            series["spread"] = [list(values) for values in zip(*self._spreads, strict=True)] if self._spreads else []
            series["shares"] = [[shares.get(name, 0) for shares in self._shares] for name in (*owners, "")]
            return series
        # Also partitions that have ended meanwhile: they are part of the history.
        names = dict.fromkeys(name for sample in reversed(self._samples) for name in sample)
        nothing = (None, None)
        series["lag"] = {name: [sample.get(name, nothing)[0] for sample in self._samples] for name in names}
        series["lag_s"] = {name: [_brief(sample.get(name, nothing)[1]) for sample in self._samples] for name in names}
        return series

    def _note_silences(self, snapshot: GroupSnapshot) -> None:
        """A heartbeat is as late as the longest silence before it."""
        there = {member.id for member in snapshot.members}
        self._silences = {name: seen for name, seen in self._silences.items() if name in there}
        for member in snapshot.members:
            if member.silent_s is not None and not member.by_wall_clock:
                seen = self._silences.setdefault(member.id, deque())
                while seen and (seen[0][0] < snapshot.wall_s - self._window_s):
                    seen.popleft()
                # Keep only silences that can become the longest of the window.
                while seen and seen[-1][1] <= member.silent_s:
                    seen.pop()
                seen.append((snapshot.wall_s, member.silent_s))


def is_large(snapshot: GroupSnapshot) -> bool:
    """Whether its partitions are shown in aggregated form; ended ones do not count."""
    return len(snapshot.open) > LARGE


def spread(lags: list[int]) -> tuple[int | None, ...]:
    """The quantiles `SPREAD` of these lags."""
    if not lags:
        return (None,) * len(SPREAD)
    in_order = sorted(lags)
    return tuple(in_order[min(len(in_order) - 1, int(part * len(in_order)))] for part in SPREAD)


def _shares(snapshot: GroupSnapshot) -> dict[str, int]:
    """How many partitions each instance has; unowned ones count under the empty name."""
    counts: dict[str, int] = {}
    for row in snapshot.open:
        name = row.owner or ""
        counts[name] = counts.get(name, 0) + 1
    return counts


def _brief(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
