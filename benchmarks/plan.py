"""The cost of one plan: a newcomer joins a group that was even."""

from __future__ import annotations

from time import perf_counter

from benchmarks.harness import Result, at_most, figure
from evenflow.core.plan import plan
from evenflow.core.seats import rank
from evenflow.model import Seat

TURNS = 15
SIZES = ((10_000, 1_000, 100.0), (1_000, 100, 10.0))
"""Partitions, members, and how many milliseconds a plan may take."""


def run() -> Result:
    figures, bars = [], []
    for partitions, members, limit_ms in SIZES:
        names = [f"instance-{number}" for number in range(members)]
        owners: dict[str, str | None] = {str(n): names[n % (members - 1)] for n in range(partitions)}
        seats = [Seat(name) for name in names]
        samples_ms = []
        for _ in range(TURNS):
            rank.cache_clear()  # as for an instance that has just started
            started_s = perf_counter()
            planned = plan(owners, seats)
            samples_ms.append((perf_counter() - started_s) * 1e3)
        assert len(planned.moves) == partitions // members, "the newcomer gets its share, and nothing else moves"
        name = f"{partitions:,} partitions x {members:,} members"
        figures.append(figure(name, samples_ms, "ms"))
        bars.append(at_most(f"one plan, {name}, ms", figures[-1].median, limit_ms))
    return Result(figures, bars)
