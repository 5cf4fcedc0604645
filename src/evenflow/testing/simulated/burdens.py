"""What makes some worlds hard beside their faults: a store that takes checkpoints one by one, many partitions, and
loops that are blocked in the middle of the runtime's own steps. By dice of their own: other worlds stay as they are.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from evenflow.testing.simulated.checkers import Violation
from evenflow.testing.simulated.timeline import TimeStandsStill

if TYPE_CHECKING:
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.signals import Signal
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

SLOW_EVERY, SLOW_AT = 9, 6
BLOCKED_EVERY, BLOCKED_AT = 5, 3
CROWDED = ((36, 24), (48, 29))
"""Every so many worlds, at which of them: the first are calm and slow, the others have faults."""
EACH_MOST_S = 0.25
MANY = (50, 100, 200)


def is_crowded(seed: int) -> bool:
    return any(seed % every == at for every, at in CROWDED)


def draw_crowd(seed: int) -> dict[str, Any]:
    """Many partitions, most of them idle for most of the time."""
    if not is_crowded(seed):
        return {}
    rng = random.Random(seed * 7919 + 8)
    return {
        "partitions": rng.choice(MANY),
        "instances": rng.choice((1, 2, 3)),
        "faulty_s": 40.0,
        "event_gap_s": rng.choice((0.03, 0.1)),
        "call_s": rng.choice((0.0, 0.01)),
        "balance": "count",
        "zipf": None,
    }


def draw_slow_store(seed: int, partitions: int) -> dict[str, Any]:
    """How long the store takes for a checkpoint: so that a round of all partitions takes a moment, or much too long for
    one request."""
    if seed % SLOW_EVERY != SLOW_AT and not is_crowded(seed):
        return {}
    rng = random.Random(seed * 7919 + 9)
    return {"each_s": min(EACH_MOST_S, rng.choice((0.5, 2.0, 5.0)) / partitions)}


def draw_blocked(seed: int, *, calm: bool) -> dict[str, float]:
    """How likely a loop is blocked at a step."""
    rng = random.Random(seed * 7919 + 10)
    return {"blocked": rng.choice((0.01, 0.03))} if seed % BLOCKED_EVERY == BLOCKED_AT and not calm else {}


class Desk:
    """Where a store takes checkpoints one after the other, also those that no caller waits for any more."""

    def __init__(self, each_s: float) -> None:
        self._each_s = each_s
        self._free_s = 0.0

    def done_s(self, now_s: float, checkpoints: int) -> float:
        """When these, which have just come, are written."""
        if not checkpoints * self._each_s:
            return now_s
        self._free_s = max(now_s, self._free_s) + checkpoints * self._each_s
        return self._free_s


def watch_steps(world: World, process: Process) -> None:
    """Listeners and hooks run inside the runtime's own steps: there a loop may be blocked, while the world goes on."""

    def block() -> None:
        if world.chance("blocked"):
            try:
                process.loop.freeze(world.stall_s(), loop_alone=True)
            except TimeStandsStill as still:
                world.found(Violation(f"something spins without waiting, {still}"))

    def listen(signal: Signal) -> None:
        block()

    async def on_start(partition: OwnedPartition) -> None:
        world.hook_begins(process, partition)
        block()

    def on_start_plain(partition: OwnedPartition) -> None:
        world.hook_begins(process, partition)
        process.threads.linger()

    process.processor.listen(listen)
    process.processor.on_partition_start(on_start_plain if world.options.plain else on_start)
