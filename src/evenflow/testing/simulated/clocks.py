"""The clocks of a simulated process, and what goes wrong with them.

A process has three. The boot clock runs on while its machine is suspended: the runtime counts deadlines on it. The
loop's clock (asyncio's `loop.time()`, CLOCK_MONOTONIC on Linux) stands still meanwhile, so that timers fire late by
that much. The wall clock is set now and then. In most worlds the first two are the same.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.timeline import Timeline
    from evenflow.testing.simulated.world import World

CLOCKS = ("suspend", "lag", "leap", "set_wall")
"""The machine is suspended; the loop's clock stands still while the process runs, or leaps ahead; the time is set."""
CLOCKS_SHARE = 0.25
LEAP_S = (0.5, 30.0)
WALL_S = 6 * 3600.0
APART_S = 5e5
"""So far apart the two clocks of a process may begin: whatever mixes them up is found at once."""


def draw_clocks(seed: int) -> dict[str, Any]:
    """What happens to clocks in this seed's world. By dice of its own: other worlds stay."""
    rng = random.Random(seed * 7919 + 21)
    if rng.random() >= CLOCKS_SHARE:
        return {}
    kinds = rng.sample(CLOCKS, rng.choice((1, 2, 2, 3)))
    return {"clocks": tuple(kinds), "loop_drift": rng.choice((0.0, 0.02, 0.1))}


class BootClock:
    """An instance's own clock: it starts anywhere, runs a little fast or slow, and never stands still."""

    def __init__(self, timeline: Timeline, *, rate: float = 1.0, start_s: float = 0.0) -> None:
        self._timeline, self.rate, self._start_s = timeline, rate, start_s

    def now(self) -> float:
        return self._start_s + self._timeline.now_s * self.rate


class LoopClock:
    """What a loop's clock shows at a true time. It may stand still for a while, or leap ahead."""

    def __init__(self, *, rate: float = 1.0, start_s: float = 0.0) -> None:
        self.rate = rate
        self._from_s, self._shown_s = 0.0, start_s
        """From this true time on it runs, beginning with what it shows then; until then it stands still."""

    def at(self, true_s: float) -> float:
        return self._shown_s + max(0.0, true_s - self._from_s) * self.rate

    def when(self, shown_s: float) -> float:
        """The true time at which it shows this, as far as is known now; a time in the past if it has shown it."""
        return self._from_s + (shown_s - self._shown_s) / self.rate if shown_s > self._shown_s else 0.0

    def stand_still(self, true_s: float, seconds: float) -> None:
        self._shown_s, self._from_s = self.at(true_s), max(true_s + seconds, self._from_s)

    def leap(self, true_s: float, seconds: float) -> None:
        self._shown_s, self._from_s = self.at(true_s) + seconds, max(true_s, self._from_s)


class Clocks:
    """What happens to the clocks of a world's processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = random.Random(world.options.seed * 7919 + 21)

    def loop_clock(self, boot: BootClock, start_s: float) -> LoopClock:
        """Of a new process. Where nothing happens to clocks it shows the same as the boot clock."""
        options = self._world.options
        if not {*CLOCKS} & {*options.incidents}:
            return LoopClock(rate=boot.rate, start_s=start_s)
        rate = boot.rate * (1.0 + self.rng.uniform(-options.loop_drift, options.loop_drift))
        return LoopClock(rate=rate, start_s=start_s + self.rng.uniform(0.0, APART_S))

    # --- what happens
    def suspend(self, process: Process) -> None:
        """Its machine sleeps, and sometimes all processes are on it."""
        world, seconds = self._world, self._world.stall_s()
        together = world.processes if self.rng.random() < 0.25 else [process]
        for one in together:
            if one.is_up:
                one.loop.suspend(seconds)

    def lag(self, process: Process) -> None:
        """Timers fire late, while answers come and calls go on."""
        process.loop.stand_still(self._world.stall_s())

    def leap(self, process: Process) -> None:
        """Timers fire early."""
        process.loop.leap(self.rng.uniform(*LEAP_S))

    def set_wall(self, process: Process) -> None:
        process.clock.skew_s += self.rng.uniform(-WALL_S, WALL_S)
