"""Simulated worlds with every fault that there is: no invariant may break in any of them.

The seeds are new ones in each run, so that a run says more than the last one did; a violation names its seed.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.harness import Result, at_least, at_most, figure, say
from evenflow.testing.simulated.options import BY_LEASE, ENDINGS, FAULTS, PLANNED, RATES, STEPS, draw
from evenflow.testing.simulated.run import run_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evenflow.testing.simulated.options import Options

WORLDS = 2_000
EACH_LEAST = 50
"""Worlds in which each fault has to be: otherwise a run says nothing of it."""
LOSSES = ("empty", "delete_group", "lose_quietly", "cut", "suspend", "lag", "leap", "set_wall")
WANTED = (*FAULTS, *RATES, *STEPS, *PLANNED, *ENDINGS, *BY_LEASE, *LOSSES)
CROWD = 50


def measure() -> Result:
    first = secrets.randbelow(10_000_000)
    seeds = range(first, first + WORLDS)
    say(f"seeds {first} to {first + WORLDS - 1}")
    seen = Counter(name for seed in seeds for name in faults(draw(seed)))
    broken = [found for chunk in run_seeds(seeds) for found in chunk if found is not None]
    rarest = min(faults_wanted(), key=lambda name: seen[name])
    return Result(
        [figure("worlds: faults of different kinds", [len(seen)], "kinds")],
        [
            at_least("worlds: run", WORLDS, 2_000),
            at_most("worlds: violations", len(broken), 0),
            at_least(f"worlds: with the rarest fault ({rarest})", seen[rarest], EACH_LEAST),
        ],
        [f"seed {found.seed}: {found.violation} ({found.command})" for found in broken],
    )


def faults_wanted() -> Iterable[str]:
    return (
        *dict.fromkeys(WANTED),
        "latest",
        "by lease",
        "slow store",
        "crowd",
        "bad events",
        "threads",
        "transactions",
    )


def faults(options: Options) -> Iterable[str]:
    yield from {*options.incidents, *(name for name, rate in options.rates.items() if rate)}
    kinds = {
        "latest": options.start == "latest",
        "by lease": options.store == "by_lease",
        "slow store": options.each_s > 0,
        "crowd": options.partitions >= CROWD,
        "bad events": options.failing is not None,
        "threads": options.plain,
        "transactions": options.effects,
    }
    yield from (name for name, is_so in kinds.items() if is_so)
