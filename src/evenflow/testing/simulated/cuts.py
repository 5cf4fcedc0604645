"""A cut between one process and the store: requests do not get there, answers do not get back, or neither does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random

    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

CUTS_EVERY = 5
CUT_S = (3.0, 25.0)


def draw_cuts(seed: int) -> tuple[str, ...]:
    """Whether processes are cut off in this seed's world."""
    return ("cut",) if seed % CUTS_EVERY == 2 else ()


class Line:
    """Whether anything passes between a process and the store now."""

    def __init__(self) -> None:
        self.there = self.back = 0

    def cut(self, world: World, process: Process) -> None:
        rng: random.Random = world.cut_rng
        way: Literal["there", "back", "both"] = rng.choice(("there", "back", "both"))
        seconds = rng.uniform(*CUT_S)
        world.tell(f"cut {process} {way} for {seconds:.1f} s")
        there, back = way in ("there", "both"), way in ("back", "both")
        self.there, self.back = self.there + there, self.back + back

        def heal() -> None:
            self.there, self.back = self.there - there, self.back - back

        world.later(seconds, heal)
