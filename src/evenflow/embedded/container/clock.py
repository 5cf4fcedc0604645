"""The wall clock that stamps documents. The container reads the time nowhere else."""

from __future__ import annotations

import time


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000  # noqa: TID251 - documents carry the time of day; no decision compares two machines'
