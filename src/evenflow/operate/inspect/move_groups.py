"""Single moves told as one: who hands over four partitions does one thing, and people should read one line of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Move, PartitionId

TOGETHER_S = 2.0
"""Moves between the same two instances that are no further apart are told as one."""


class MoveGroup(Struct, frozen=True, kw_only=True):
    """Some partitions that went the same way for the same reason."""

    at: float
    before: str | None
    after: str | None
    partitions: tuple[PartitionId, ...]
    reason: str
    moves: tuple[Move, ...] = ()
    """The single ones, the newest first."""

    @property
    def kind(self) -> str:
        return reason_kind(self.reason)


def reason_kind(reason: str) -> str:
    """The first words of a reason: handed over, taken over, claimed."""
    return reason.partition(":")[0]


def group_moves(moves: Sequence[Move]) -> list[MoveGroup]:
    """Moves (the newest first) of the same way, the same kind and nearly the same time, as one."""
    told: list[list[Move]] = []
    ways: dict[tuple[str | None, str | None, str], list[list[Move]]] = {}
    for move in moves:
        alike = ways.setdefault((move.before, move.after, move.kind), [])
        same = next((one for one in alike if _is_one_of(one, move)), None)
        if same is None:
            same = []
            told.append(same)
            alike.append(same)
        same.append(move)
    return [_sight(one) for one in told]


def _is_one_of(told: Sequence[Move], move: Move) -> bool:
    near = told[0].at - move.at <= TOGETHER_S
    return near and all(one.partition != move.partition for one in told)


def _sight(told: Sequence[Move]) -> MoveGroup:
    return MoveGroup(
        at=told[0].at,
        before=told[0].before,
        after=told[0].after,
        partitions=tuple(move.partition for move in told),
        # The earliest tells the whole of it: "had 6, its share is 4".
        reason=told[-1].reason,
        moves=tuple(told),
    )
