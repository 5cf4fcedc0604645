"""Groups moves for display: an instance that hands over four partitions does one thing, which is one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Move, PartitionId

TOGETHER_S = 2.0
"""Moves between the same two instances within this time are shown as one."""


class MoveGroup(Struct, frozen=True, kw_only=True):
    """Partitions that moved between the same two instances for the same reason."""

    at: float
    before: str | None
    after: str | None
    partitions: tuple[PartitionId, ...]
    reason: str
    moves: tuple[Move, ...] = ()
    """The individual moves, newest first."""

    @property
    def kind(self) -> str:
        return reason_kind(self.reason)


def reason_kind(reason: str) -> str:
    """The first words of a reason: handed over, taken over, claimed."""
    return reason.partition(":")[0]


def group_moves(moves: Sequence[Move]) -> list[MoveGroup]:
    """Groups moves (newest first) with the same owners, the same kind and nearly the same time."""
    groups: list[list[Move]] = []
    ways: dict[tuple[str | None, str | None, str], list[list[Move]]] = {}
    for move in moves:
        alike = ways.setdefault((move.before, move.after, move.kind), [])
        same = next((one for one in alike if _belongs_to(one, move)), None)
        if same is None:
            same = []
            groups.append(same)
            alike.append(same)
        same.append(move)
    return [_move_group(one) for one in groups]


def _belongs_to(group: Sequence[Move], move: Move) -> bool:
    near = group[0].at - move.at <= TOGETHER_S
    return near and all(one.partition != move.partition for one in group)


def _move_group(moves: Sequence[Move]) -> MoveGroup:
    return MoveGroup(
        at=moves[0].at,
        before=moves[0].before,
        after=moves[0].after,
        partitions=tuple(move.partition for move in moves),
        # The reason of the earliest has the numbers of the whole group: "had 6, its share is 4".
        reason=moves[-1].reason,
        moves=tuple(moves),
    )
