"""What there is to see of a demo at one moment, as plain records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.cli.demo.accounts import Tally
    from evenflow.cli.demo.fleet import Fate
    from evenflow.model import PartitionId
    from evenflow.operate.inspect.move_groups import MoveGroup

RATE_OVER_S = 3.0


class PartitionSight(Struct, frozen=True, kw_only=True):
    id: PartitionId
    owner: str | None
    epoch: int | None
    per_s: float
    lag: int
    reason: str
    status: str
    astray: bool
    """Nobody handles it now: it has no owner, or its owner is gone."""


class ConsumerSight(Struct, frozen=True, kw_only=True):
    name: str
    fate: Fate
    partitions: int
    per_s: float
    silent_s: float | None
    ttl_s: float


class Scene(Struct, frozen=True, kw_only=True):
    elapsed_s: float
    seconds: float | None
    """After how long it ends by itself."""
    sent: int
    sent_per_s: float
    handled_per_s: float
    lag: int
    tally: Tally
    partitions: Sequence[PartitionSight]
    consumers: Sequence[ConsumerSight]
    moves: Sequence[MoveGroup]
    note: str = ""
    """The last thing that was done to it."""


class Rates:
    """Events per second from counts that only grow, over the last few seconds."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._samples: list[tuple[float, Mapping[str, int]]] = []

    def add(self, now_s: float, counts: Mapping[str, int]) -> None:
        self._samples.append((now_s, counts))
        # The first sample is the last one that is old enough: a rate over less than the whole time would jump.
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= self._over_s:
            del self._samples[0]

    def per_s(self, name: str) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return max(0, last.get(name, 0) - first.get(name, 0)) / max(last_s - first_s, 1e-9)
