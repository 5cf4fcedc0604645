"""How far a position is behind the end of its log, in events and in seconds. Pure; unknown is None, never 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Bounds, Position

LAG_LEAST_S = 0.001
"""Lag in seconds is 0 only when there is no lag; events that were enqueued at the same time still count this much."""


def lag_of(position: Position | None, bounds: Bounds | None, pieces: Sequence[int] = ()) -> int | None:
    """How many events come after the position, counted from the oldest available one; None when unknown.

    A position in several logs at once has `pieces`, the sequence in each. Then the result is an upper bound, since
    only one common end is known.
    """
    if position is None or position.sequence is None:
        return None
    if bounds is None or bounds.newest is None or bounds.newest.sequence is None:
        return None
    oldest = bounds.oldest.sequence if bounds.oldest is not None else None
    newest = bounds.newest.sequence
    after = [one if oldest is None else max(one, oldest - 1) for one in pieces or (position.sequence,)]
    return sum(max(0, newest - one) for one in after)


def lag_s_of(lag: int | None, since_at: float | None, wall_s: float | None) -> float | None:
    """How long events have waited; None when unknown, 0 only when none wait. It grows while nothing is handled."""
    if lag == 0:
        return 0.0
    if lag is None or since_at is None or wall_s is None:
        return None
    return max(LAG_LEAST_S, wall_s - since_at)
