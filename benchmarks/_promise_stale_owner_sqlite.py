"""A group in a SQLite store that is deleted and made again while its owner stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._stale import measure_stale_owner

if TYPE_CHECKING:
    from benchmarks.harness import Result


def measure() -> Result:
    return measure_stale_owner("stale_owner_sqlite", None)
