"""What the looks of the last minutes showed, within bounds: lag over time, shares over time, the closest shaves.

A group of a few hundred partitions is remembered partition by partition. Of one that has more, only how lags are
spread is kept: nobody reads ten thousand lines in one plot.
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
"""More partitions than this are shown as a crowd."""
CELLS = 40_000
"""So many values are kept of each quantity."""
SAMPLES_MOST, SAMPLES_LEAST = 600, 100
SPREAD = (0.5, 0.95, 1.0)
"""The middle one, one of twenty, the furthest behind."""


class GroupHistory:
    """Remembers, for one group."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque()
        self._samples: deque[dict[PartitionId, tuple[int | None, float | None]]] = deque()
        self._spreads: deque[tuple[int | None, ...]] = deque()
        self._shares: deque[dict[str, int]] = deque()
        self._shaves: dict[str, deque[tuple[float, float]]] = {}

    def note(self, look: GroupSnapshot) -> None:
        self._shave(look)
        if self._times and look.wall_s - self._times[-1] < self.step_s(len(look.open)) * 0.9:
            return
        self._times.append(look.wall_s)
        self._samples.append({row.partition: (row.lag, row.lag_s) for row in look.open} if not is_large(look) else {})
        self._spreads.append(spread([row.lag for row in look.open if row.lag is not None]))
        self._shares.append(_shares(look))
        while self._times[0] < look.wall_s - self._window_s:
            for series in (self._times, self._samples, self._spreads, self._shares):
                series.popleft()

    def step_s(self, partitions: int) -> float:
        """How far apart samples are: a large group gets fewer of them."""
        return self._window_s / min(SAMPLES_MOST, max(SAMPLES_LEAST, CELLS // max(1, partitions)))

    def longest_silence_s(self, member: str) -> float | None:
        """How long a heartbeat of this instance was waited for, at most: what is left of its time-to-live is the
        margin.
        """
        seen = self._shaves.get(member)
        return max(silent_s for _, silent_s in seen) if seen else None

    def series(self, large: bool, owners: Sequence[str]) -> dict[str, Any]:
        """For a plot: a value for each time, or null where it was unknown."""
        told: dict[str, Any] = {"at": [round(at, 2) for at in self._times]}
        if large:
            told["spread"] = [list(values) for values in zip(*self._spreads, strict=True)] if self._spreads else []
            told["shares"] = [[shares.get(name, 0) for shares in self._shares] for name in (*owners, "")]
            return told
        # Also those that have ended meanwhile: what was, was.
        names = dict.fromkeys(name for sample in reversed(self._samples) for name in sample)
        nothing = (None, None)
        told["lag"] = {name: [sample.get(name, nothing)[0] for sample in self._samples] for name in names}
        told["lag_s"] = {name: [_brief(sample.get(name, nothing)[1]) for sample in self._samples] for name in names}
        return told

    def _shave(self, look: GroupSnapshot) -> None:
        """A heartbeat is as late as the longest silence before it."""
        there = {member.id for member in look.members}
        self._shaves = {name: seen for name, seen in self._shaves.items() if name in there}
        for member in look.members:
            if member.silent_s is not None and not member.by_wall_clock:
                seen = self._shaves.setdefault(member.id, deque())
                while seen and (seen[0][0] < look.wall_s - self._window_s):
                    seen.popleft()
                # Only what may be the longest at some time is kept.
                while seen and seen[-1][1] <= member.silent_s:
                    seen.pop()
                seen.append((look.wall_s, member.silent_s))


def is_large(look: GroupSnapshot) -> bool:
    """Its partitions are shown as a crowd. Those that have ended do not make it one."""
    return len(look.open) > LARGE


def spread(lags: list[int]) -> tuple[int | None, ...]:
    """The lags at which so much of all partitions is not further behind."""
    if not lags:
        return (None,) * len(SPREAD)
    in_order = sorted(lags)
    return tuple(in_order[min(len(in_order) - 1, int(part * len(in_order)))] for part in SPREAD)


def _shares(look: GroupSnapshot) -> dict[str, int]:
    """How many partitions each has; those that nobody has are under the empty name."""
    counts: dict[str, int] = {}
    for row in look.open:
        name = row.owner or ""
        counts[name] = counts.get(name, 0) + 1
    return counts


def _brief(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
