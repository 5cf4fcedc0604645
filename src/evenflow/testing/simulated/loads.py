"""Partitions that keep their handlers busy in different measure, and how even the load can be at best.

In a world with such loads every partition gets its events at an even pace, and each event takes its handler a time in
proportion to the partition's load.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from evenflow.model import PartitionId

PACE_S = 0.5
"""Between two events of a partition."""
PHASES = 4
"""Not all partitions get theirs at the same moment."""
NOTABLE = 0.25
"""So busy is who has something to do."""


class Loads:
    """Zipf's: the n-th heaviest partition has 1/n to the power of `zipf` of the heaviest one's `busiest` share."""

    def __init__(self, seed: int, *, zipf: float, busiest: float, noise: float, most: int) -> None:
        self._rng = random.Random(seed * 104729 + 3)
        self._noise = noise
        places = self._rng.sample(range(most), most)
        self._share: dict[PartitionId, float] = {
            str(number): float(busiest / (place + 1) ** zipf) for number, place in enumerate(places)
        }

    def share(self, partition: PartitionId) -> float:
        """Busy seconds a second."""
        return self._share[partition]

    def call_s(self, partition: PartitionId, events: int) -> float:
        noise = 1.0 + self._rng.uniform(-self._noise, self._noise)
        return self._share[partition] * PACE_S * events * noise

    # --- how even it is
    def carried(self, owners: Mapping[PartitionId, str], names: Collection[str]) -> dict[str, float]:
        found = dict.fromkeys(names, 0.0)
        for partition, owner in owners.items():
            found[owner] = found.get(owner, 0.0) + self._share[partition]
        return found

    def mean(self, partitions: Collection[PartitionId], members: int) -> float:
        return sum(map(self.share, partitions)) / members

    def greedy(self, partitions: Collection[PartitionId], members: int) -> float:
        """The most loaded one when the heaviest come first, each to whoever has least."""
        bins = [0.0] * members
        for share in sorted(map(self.share, partitions), reverse=True):
            bins[bins.index(min(bins))] += share
        return max(bins)

    def bar(self, partitions: Collection[PartitionId], members: int) -> float:
        """What the most loaded one may have: 15% above the mean, the heaviest partition, or what greedy reaches.

        Where all are busy for less than a quarter of their time, 15% of that quarter: less is not worth a move.
        """
        mean, heaviest = self.mean(partitions, members), max(map(self.share, partitions))
        return max(mean + 0.15 * max(mean, NOTABLE), heaviest, self.greedy(partitions, members))
