"""How even the load is with balance="count" and with balance="load", and what moves for it.

In the simulated world: partitions with Zipf-distributed loads (each event takes its handler a time in proportion, with
10% of noise), instances that join, leave and crash, and then a long quiet stretch, judged by the true loads. And once
with real processes on the embedded hub. What evenness can be at best is told by two references: the heaviest single
partition, and a greedy packing of the same loads.
"""

from __future__ import annotations

import logging
from time import perf_counter, sleep
from typing import TYPE_CHECKING, NamedTuple

from benchmarks._fleet import Fleet
from benchmarks.harness import Bar, Figure, Result, at_most, figure, say
from evenflow.core.plan import plan
from evenflow.model import Seat
from evenflow.testing.simulated import Options, World
from evenflow.testing.simulated.loads import Loads

if TYPE_CHECKING:
    from typing import Literal

    from evenflow.model import Lease

SEEDS = 4
CASES = ((32, 1.0), (32, 0.6), (64, 1.3))
"""Partitions, and the power of their loads."""
INSTANCES = 5
BUSIEST = 0.3
NOISE = 0.1
SETTLING_S, QUIET_S = 180.0, 300.0
"""Of virtual time."""

SIZES = ((10_000, 1_000, 100.0), (1_000, 100, 10.0))
"""Partitions, members, and how many milliseconds a plan may take that finds nothing to be moved."""
TURNS = 9

PROCESSES = ("c1", "c2", "c3")
PROCESS_LOAD = Loads(1, zipf=1.0, busiest=0.4, noise=0.0, most=16)
PROCESS_SETTLING_S, PROCESS_QUIET_S = 16.0, 10.0
RATE = 320


class Found(NamedTuple):
    """How a world ended, in parts of the mean load."""

    most: float
    """What the most loaded instance has."""
    bar: float
    heaviest: float
    greedy: float
    moves: int
    quiet_moves: int


def run() -> Result:
    logging.disable(logging.CRITICAL)
    figures: list[Figure] = []
    bars: list[Bar] = []
    for partitions, power in CASES:
        name = f"{partitions} partitions, power {power:g}"
        say(f"{name} ...")
        counted = [live(seed, partitions, power, "count", quiet_s=0.0) for seed in range(SEEDS)]
        loaded = [live(seed, partitions, power, "load") for seed in range(SEEDS)]
        figures += _figures(name, counted, loaded)
        bars += _bars(name, loaded)
    for result in (processes(), planning()):
        figures += result.figures
        bars += result.bars
    return Result(figures, bars)


def _figures(name: str, counted: list[Found], loaded: list[Found]) -> list[Figure]:
    return [
        figure(f"{name}: most / mean by count", [found.most for found in counted]),
        figure(f"{name}: most / mean by load", [found.most for found in loaded]),
        figure(f"{name}: heaviest partition / mean", [found.heaviest for found in loaded]),
        figure(f"{name}: greedy packing / mean", [found.greedy for found in loaded]),
        figure(f"{name}: moves by count", [found.moves for found in counted]),
        figure(f"{name}: moves by load", [found.moves for found in loaded]),
    ]


def _bars(name: str, loaded: list[Found]) -> list[Bar]:
    return [
        at_most(f"{name}: most / what it may be", max(found.most / found.bar for found in loaded), 1.0),
        at_most(f"{name}: moves when quiet", max(found.quiet_moves for found in loaded), 0),
    ]


# --- the simulated world
def live(
    seed: int, partitions: int, power: float, balance: Literal["count", "load"], quiet_s: float = QUIET_S
) -> Found:
    """Some join, one leaves, one crashes; then it is quiet."""
    world = World(
        Options(
            seed=seed,
            partitions=partitions,
            latency_s=0.005,
            balance=balance,
            load_s=30.0,
            zipf=power,
            busiest=BUSIEST,
            noise=NOISE,
            call_s=0.0,
        )
    )
    try:
        return _live(world, quiet_s)
    finally:
        world.dispose()


def _live(world: World, quiet_s: float) -> Found:
    for number in range(INSTANCES - 1):
        world.start(f"i{number}")
    world.produce()
    _go_on(world, world.rng.uniform(60.0, 90.0))
    first = world.rows["swap"]
    world.start("joins")
    _go_on(world, world.rng.uniform(40.0, 60.0))
    world.start("joins too")
    _go_on(world, world.rng.uniform(40.0, 60.0))
    world.retire(world.processes[0])
    _go_on(world, world.rng.uniform(20.0, 40.0))
    world.planned_is_free.calm = False  # a crash repeats what was not committed
    world.kill(world.processes[1])
    world.start("comes for it")
    _go_on(world, SETTLING_S)
    settled = world.rows["swap"]
    _go_on(world, quiet_s)
    return _judged(world, settled - first, world.rows["swap"] - settled)


def _go_on(world: World, for_s: float) -> None:
    world.timeline.run_until(world.timeline.now_s + for_s)
    if world.violation is not None:
        raise world.violation


def _judged(world: World, moves: int, quiet_moves: int) -> Found:
    assert world.loads is not None
    alive = [process.name for process in world.processes if process.is_up and not process.retiring]
    return judged(world.loads, world.leases(), alive, moves, quiet_moves)


def judged(loads: Loads, leases: dict[str, Lease], alive: list[str], moves: int, quiet_moves: int) -> Found:
    owners = {name: lease.owner.id for name, lease in leases.items() if lease.owner is not None}
    assert owners.keys() == leases.keys(), "every partition has an owner"
    assert set(owners.values()) <= set(alive), "who is alive"
    mean = loads.mean(leases, len(alive))
    return Found(
        most=max(loads.carried(owners, alive).values()) / mean,
        bar=loads.bar(leases, len(alive)) / mean,
        heaviest=max(map(loads.share, leases)) / mean,
        greedy=loads.greedy(leases, len(alive)) / mean,
        moves=moves,
        quiet_moves=quiet_moves,
    )


# --- real processes
def processes() -> Result:
    """Three processes, 16 partitions, a handler that sleeps in proportion, and a short time constant."""
    say("three processes ...")
    counted, loaded = _process_run("count"), _process_run("load")
    name = "3 processes"
    return Result(
        [
            figure(f"{name}: most / mean by count", [counted.most]),
            figure(f"{name}: most / mean by load", [loaded.most]),
            figure(f"{name}: heaviest partition / mean", [loaded.heaviest]),
            figure(f"{name}: greedy packing / mean", [loaded.greedy]),
            figure(f"{name}: moves by load", [loaded.moves]),
        ],
        [
            at_most(f"{name}: most / what it may be", loaded.most / loaded.bar, 1.0),
            at_most(f"{name}: moves when quiet", loaded.quiet_moves, 0),
        ],
    )


def _process_run(balance: str) -> Found:
    with Fleet() as fleet:
        pauses = {str(n): PROCESS_LOAD.share(str(n)) * 16 / RATE for n in range(16)}
        settings = {"balance": balance, "load_s": 3.0, "heartbeat_s": 0.5, "ttl_s": 4.0}
        for name in PROCESSES:
            fleet.consume(name, pauses_s=pauses, settings=settings)
        fleet.wait_until_even(*PROCESSES)
        fleet.produce(RATE)
        before = _epochs(fleet)
        sleep(PROCESS_SETTLING_S if balance == "load" else 1.0)
        settled = _epochs(fleet)
        sleep(PROCESS_QUIET_S if balance == "load" else 0.0)
        quiet = _epochs(fleet)
        found = judged(PROCESS_LOAD, fleet.leases(), list(PROCESSES), settled - before, quiet - settled)
        fleet.stop_producing()
        return found


def _epochs(fleet: Fleet) -> int:
    """Each move takes one."""
    return sum(lease.epoch for lease in fleet.leases().values())


# --- the plan itself
def planning() -> Result:
    figures, bars = [], []
    for partitions, members, limit_ms in SIZES:
        loads = {str(number): 1.0 / (number + 1) for number in range(partitions)}
        seats = [Seat(f"instance-{number}") for number in range(members)]
        owners: dict[str, str | None] = {name: seats[int(name) % members].id for name in loads}
        name = f"plan, {partitions:,} partitions x {members:,} members"
        started_s = perf_counter()
        planned = plan(owners, seats, loads)
        figures.append(figure(f"{name}, {len(planned.moves):,} moves", [(perf_counter() - started_s) * 1e3], "ms"))
        samples_ms = []
        for _ in range(TURNS):
            started_s = perf_counter()
            assert plan(planned.owners, seats, loads).moves == ()
            samples_ms.append((perf_counter() - started_s) * 1e3)
        figures.append(figure(f"{name}, no move", samples_ms, "ms"))
        bars.append(at_most(f"{name}, no move, ms", figures[-1].median, limit_ms))
    return Result(figures, bars)
