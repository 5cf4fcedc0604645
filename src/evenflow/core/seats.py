"""What every plan agrees on: one fixed order, and how far a published weight is believed."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

WEIGHT_LEAST, WEIGHT_MOST = 0.001, 1_000.0
"""What others publish is taken with care: no member's row may break the plan of its peers."""


@lru_cache(maxsize=1 << 17)
def rank(name: str) -> tuple[int, str]:
    """A fixed order that has nothing to do with how names were given."""
    return crc32(name.encode()), name


def bounded(weight: float) -> float:
    return max(WEIGHT_LEAST, min(WEIGHT_MOST, weight)) if weight == weight else 1.0  # nan is not equal to itself
