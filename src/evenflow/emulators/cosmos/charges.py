"""Request units: an estimate after the figures that Microsoft publishes, so that programs which add them up have some.

A point read of 1 KB is 1 unit and a write of 1 KB about 5, and both grow with the size. A query and a page of a feed
cost a base and a share for what they bring.
"""

from __future__ import annotations

KILOBYTE = 1024


def point_read(size_bytes: int) -> float:
    return 1.0 + 0.05 * _kilobytes_above(size_bytes)


def write(size_bytes: int, *, is_new: bool) -> float:
    """To replace costs twice as much as to insert."""
    return (5.0 + 1.0 * _kilobytes_above(size_bytes)) * (1 if is_new else 2)


def delete(size_bytes: int) -> float:
    return 5.0 + 1.0 * _kilobytes_above(size_bytes)


def query(looked_at: int, size_bytes: int) -> float:
    return 2.3 + 0.03 * looked_at + 0.05 * (size_bytes // KILOBYTE)


def page(items: int, size_bytes: int) -> float:
    return 1.0 + 0.05 * items + 0.05 * (size_bytes // KILOBYTE)


def _kilobytes_above(size_bytes: int) -> int:
    """How many kilobytes there are beyond the first."""
    return max(0, -(-size_bytes // KILOBYTE) - 1)
