"""How newcomers get their share: rounds, moves and store writes until even, the real runtime in the simulated world.

Every partition has handled an event that is not yet committed, so that every move costs its drain's commit too. What
the Azure SDK needs for the same is quoted from measurements with its own ownership manager.
"""

from __future__ import annotations

import logging
from math import ceil

from benchmarks.harness import Bar, Figure, Result, at_most, figure, say
from evenflow.core.checkpointing import Every
from evenflow.testing.simulated import Options, World
from evenflow.testing.simulated.options import HEARTBEAT_S

CASES = ((32, 1, 2, 16), (32, 1, 4, 8), (32, 4, 8, 4), (1_024, 16, 32, 32))
"""Partitions, instances before and after, and the rounds that the Azure SDK needs."""
SEEDS = 5
STEP_S = 0.02
ROUNDS_MOST = 2.0


def run() -> Result:
    logging.disable(logging.CRITICAL)
    figures: list[Figure] = []
    bars: list[Bar] = []
    for partitions, before, after, azure_rounds in CASES:
        name = f"{partitions:,} partitions {before} -> {after}"
        say(f"{name} ...")
        runs = [settle(seed, partitions, before, after) for seed in range(SEEDS)]
        figures += [figure(f"{name}: {what}", [run[what] for run in runs]) for what in runs[0]]
        figures.append(figure(f"{name}: rounds of the Azure SDK", [azure_rounds]))
        bars += [
            at_most(f"{name}: rounds", max(run["rounds"] for run in runs), ROUNDS_MOST),
            at_most(f"{name}: moves", max(run["moves"] for run in runs), fewest_moves(partitions, before, after)),
            at_most(f"{name}: rows / allowed", max(run["rows"] / run["rows allowed"] for run in runs), 1.0),
        ]
    return Result(figures, bars)


def fewest_moves(partitions: int, before: int, after: int) -> int:
    """What the newcomers must have at least, when the others keep all that an even share allows."""
    kept = sum(sorted(shares(partitions, after), reverse=True)[:before])
    return partitions - kept


def shares(partitions: int, members: int) -> list[int]:
    return [partitions // members + (number < partitions % members) for number in range(members)]


def settle(seed: int, partitions: int, before: int, after: int) -> dict[str, float]:
    world = World(
        Options(
            seed=seed,
            instances=before,
            partitions=partitions,
            latency_s=0.002,
            event_gap_s=1e9,
            call_s=0.01,
            checkpoint=Every(seconds=3600.0),
        )
    )
    try:
        return measure(world, before, after)
    finally:
        world.dispose()


def measure(world: World, before: int, after: int) -> dict[str, float]:
    for number in range(before):
        world.start(f"i{number}")
    until_settled(world)
    world.timeline.run_until(world.timeline.now_s + 2 * HEARTBEAT_S + world.rng.uniform(0.0, HEARTBEAT_S))
    for partition in world.source.partition_ids:
        world.source.append(partition, b"x")
    world.timeline.run_until(world.timeline.now_s + 0.5)
    world.rows.clear()
    world.trips.clear()
    for number in range(before, after):
        world.start(f"i{number}")
    elapsed_s = until_settled(world)
    rounds = elapsed_s / HEARTBEAT_S
    moves, rows = world.rows["swap"], sum(world.rows.values())
    return {
        "rounds": rounds,
        "moves": moves,
        "rows": rows,
        "rows allowed": 3 * moves + 2 * after * ceil(rounds),
        "round trips": sum(world.trips.values()),
    }


def until_settled(world: World) -> float:
    """Even, and every partition sealed by its owner. Returns the seconds that it took."""
    started_s = world.timeline.now_s
    while world.unsettled() is not None or not all_sealed(world):
        world.timeline.run_until(world.timeline.now_s + STEP_S)
        if world.violation is not None:
            raise world.violation
        if world.timeline.now_s - started_s > 60.0:
            raise TimeoutError(world.unsettled())
    return world.timeline.now_s - started_s


def all_sealed(world: World) -> bool:
    leases = world.leases()
    return all((record := world.record(partition)) and record.epoch == leases[partition].epoch for partition in leases)
