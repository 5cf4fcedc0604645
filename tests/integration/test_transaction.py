"""Effects happen exactly once, with processes that are killed for real: a small run of the benchmark `transaction`."""

from __future__ import annotations

import pytest

from benchmarks.transaction import tally

pytestmark = pytest.mark.process


def test_counts_are_exact_whatever_is_killed() -> None:
    found = tally("transaction", 40_000, 4)
    assert (found.lost, found.twice) == (0, 0)
