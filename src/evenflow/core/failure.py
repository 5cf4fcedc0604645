"""What to do when something fails: how long to wait before it is tried again."""

from __future__ import annotations


def pause_s(attempt: int, chance: float, *, first_s: float = 0.1, most_s: float = 30.0) -> float:
    """Before the try after `attempt` failures (1 or more): exponential, with full jitter, never quite zero.

    `chance` is a random number from 0 to 1, so that a fleet that failed together does not come back together.
    """
    limit_s = min(most_s, first_s * 2.0 ** min(attempt - 1, 30))
    return limit_s * (0.1 + 0.9 * chance)
