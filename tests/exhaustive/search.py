"""Breadth-first search over the states of a model, tick by tick, and the shortest way to the first violation.

All states of one tick are explored before time passes, so a state that comes again at a later tick has nothing new to
offer: from its first visit on there was more time left. A violation is an error of the model's own, with the step that
raised it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

S = TypeVar("S", bound="Hashable")


class Violation(Exception):
    """An invariant does not hold."""


class Model(Protocol[S]):
    def initial(self) -> S: ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Every step but time, each with what it is called. Raises Violation inside of `name` for the step that breaks
        an invariant: see `attempted`."""
        ...

    @property
    def attempted(self) -> str:
        """The step that was being made when a Violation was raised."""
        ...

    def tick(self, state: S) -> S | None:
        """The state after time has passed; None where it must not."""
        ...


class Found(NamedTuple):
    states: int
    steps: int
    ticks: int
    """How many ticks were explored."""
    violation: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.violation:
            return f"{self.states:,} states, {self.steps:,} steps, {self.ticks} ticks: no invariant was broken"
        lines = [f"{number:3}  {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([f"{self.violation}, after {len(lines)} steps:", *lines])


def explore(model: Model[S], *, ticks: int, most: int | None = None) -> Found:
    """All that can be reached while time passes `ticks` times; ends at the first violation, or after `most` states."""
    first = model.initial()
    origins: dict[S, tuple[S, str] | None] = {first: None}
    layer, steps = [first], 0
    for tick in range(ticks + 1):
        for state in layer:  # grows while it is walked
            if most is not None and len(origins) > most:
                return Found(len(origins), steps, tick)
            try:
                for name, after in model.steps(state):
                    steps += 1
                    if after not in origins:
                        origins[after] = state, name
                        layer.append(after)
            except Violation as violation:
                trace = (*_way(origins, state), model.attempted)
                return Found(len(origins), steps, tick, str(violation), trace)
        if tick == ticks:
            break
        later: list[S] = []
        for state in layer:
            aged = model.tick(state)
            if aged is not None:
                steps += 1
                if aged not in origins:
                    origins[aged] = state, "time passes"
                    later.append(aged)
        layer = later
    return Found(len(origins), steps, ticks)


def _way(origins: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    way: list[str] = []
    while (origin := origins[state]) is not None:
        state, name = origin
        way.append(name)
    return way[::-1]
