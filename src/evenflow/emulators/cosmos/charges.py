"""Estimates request units from the figures that Microsoft publishes, for programs that add them up.

A point read of 1 KB costs 1 unit and a write of 1 KB about 5; both grow with the size. Queries and feed pages cost a
base charge plus a charge for their results.
"""

from __future__ import annotations

KILOBYTE = 1024


def point_read(size_bytes: int) -> float:
    return 1.0 + 0.05 * _kilobytes_above(size_bytes)


def write(size_bytes: int, *, is_new: bool) -> float:
    """A replace costs twice as much as an insert."""
    return (5.0 + 1.0 * _kilobytes_above(size_bytes)) * (1 if is_new else 2)


def delete(size_bytes: int) -> float:
    return 5.0 + 1.0 * _kilobytes_above(size_bytes)


def query(scanned: int, size_bytes: int) -> float:
    return 2.3 + 0.03 * scanned + 0.05 * (size_bytes // KILOBYTE)


def page(items: int, size_bytes: int) -> float:
    return 1.0 + 0.05 * items + 0.05 * (size_bytes // KILOBYTE)


def _kilobytes_above(size_bytes: int) -> int:
    """The number of kilobytes beyond the first."""
    return max(0, -(-size_bytes // KILOBYTE) - 1)
