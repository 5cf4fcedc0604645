"""What there is to see of a demo at one moment, as plain records; and how single moves are told as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.cli.demo.accounts import Tally
    from evenflow.cli.demo.fleet import Fate
    from evenflow.model import Move, PartitionId

RATE_OVER_S = 3.0
TOGETHER_S = 2.0
"""Moves between the same two consumers that are no further apart are told as one."""


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


class MoveSight(Struct, frozen=True, kw_only=True):
    """Some partitions that went the same way for the same reason."""

    at: float
    before: str | None
    after: str | None
    partitions: tuple[PartitionId, ...]
    reason: str


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
    moves: Sequence[MoveSight]
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


def together(moves: Sequence[Move]) -> list[MoveSight]:
    """Moves (the newest first) of the same way, the same kind and nearly the same time, as one."""
    told: list[MoveSight] = []
    for move in moves:
        same = next((one for one in told if _is_same(one, move)), None)
        if same is None:
            told.append(
                MoveSight(
                    at=move.at, before=move.before, after=move.after, partitions=(move.partition,), reason=move.reason
                )
            )
        else:
            at = told.index(same)
            told[at] = MoveSight(
                at=same.at,
                before=same.before,
                after=same.after,
                partitions=(*same.partitions, move.partition),
                # The earliest tells the whole of it: "had 6, its share is 4".
                reason=move.reason,
            )
    return told


def kind(reason: str) -> str:
    """The first words of a reason: handed over, taken over, claimed."""
    return reason.partition(":")[0]


def _is_same(told: MoveSight, move: Move) -> bool:
    same_way = (told.before, told.after, kind(told.reason)) == (move.before, move.after, kind(move.reason))
    return same_way and told.at - move.at <= TOGETHER_S and move.partition not in told.partitions
