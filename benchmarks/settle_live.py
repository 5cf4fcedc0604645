"""How newcomers get their share over a local Event Hubs: this project against Azure's own Python processor.

Real processes, one hub under load, and a store in SQLite for both: Azure's processor has it through its checkpoint
store (`evenflow.compat.checkpointstore`). It has settled when shares are even, and every partition has been handled by
the one that has it then. Time counts from when the newcomers, ready to run, were told to.
"""

from __future__ import annotations

import json
import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks._fleet import longest_gap_s, wait_for
from benchmarks._served import ServedFleet
from benchmarks.harness import Bar, Figure, Result, at_least, at_most, figure, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks._fleet import Handled

PARTITIONS = 32
RATE = 640
STEADY_S = 3.0
TURNS = 2
CASES = ((2, 5.0), (4, 3.0))
"""Instances in the end, and how many times as fast it has to be."""
KINDS = ("evenflow", "official")


def run() -> Result:
    figures: list[Figure] = []
    bars: list[Bar] = []
    for instances, faster in CASES:
        case = f"1 -> {instances}"
        runs = {kind: [settle(kind, instances) for _ in range(TURNS)] for kind in KINDS}
        for kind, turns in runs.items():
            figures += [
                figure(f"{case}, {kind}: {what}", [turn[what] for turn in turns], unit(what)) for what in turns[0]
            ]
        ours, theirs = ([turn["until settled"] for turn in runs[kind]] for kind in KINDS)
        bars += [
            at_least(f"{case}: times as fast", min(theirs) / max(ours), faster),
            at_most(f"{case}: handled twice", max(turn["handled twice"] for turn in runs["evenflow"]), 0),
            at_most(f"{case}: lost", max(turn["lost"] for turn in runs["evenflow"]), 0),
        ]
    return Result(figures, bars)


def unit(what: str) -> str:
    return "events" if what in ("handled twice", "lost") else "s"


def settle(kind: str, instances: int) -> dict[str, float]:
    say(f"{kind}, 1 -> {instances} ...")
    with LiveFleet(kind) as fleet:
        newcomers = [f"c{number}" for number in range(2, instances + 1)]
        fleet.prepare("c1")
        fleet.go("c1")
        fleet.produce(RATE)
        wait_for(lambda: len(fleet.handled()) == PARTITIONS, "events of all partitions")
        for name in newcomers:
            fleet.prepare(name)
        sleep(STEADY_S)
        since_s = monotonic()
        fleet.go(*newcomers)
        fleet.wait_until_even_by_count(instances)
        fleet.wait_until_handled_by_owners()
        sleep(STEADY_S)
        until_s = monotonic() - 0.5
        fleet.stop_producing()
        fleet.wait_until_all_handled()
        handled = fleet.handled()
        for name in ("c1", *newcomers):
            fleet.stop(name)
        lost, twice = fleet.lost_and_repeated()
        return {
            "until settled": settled_s(handled, since_s) - since_s,
            "longest gap": longest_gap_s(handled, since_s, until_s),
            "handled twice": twice,
            "lost": lost,
        }


def settled_s(handled: dict[str, list[Handled]], since_s: float) -> float:
    """When the last partition was first handled by the one that has it in the end."""
    return max([since_s, *(first_s(batches) for batches in handled.values())])


def first_s(batches: Sequence[Handled]) -> float:
    """When its last owner's last stretch began."""
    began_s = batches[-1].at_s
    for batch in reversed(batches):
        if batch.consumer != batches[-1].consumer:
            break
        began_s = batch.at_s
    return began_s


class LiveFleet(ServedFleet):
    """A hub behind the local Event Hubs, and instances of one kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(partitions=PARTITIONS)
        self._kind = kind

    def prepare(self, name: str) -> None:
        options = {"hub": "hub", "store": self.store, "name": name, "account": str(self.folder / f"{name}.account")}
        self.load(name, [sys.executable, "-m", "benchmarks._live", self._kind, json.dumps(options)])

    def wait_until_even_by_count(self, instances: int) -> None:
        """Whatever their names are: Azure's owners make up their own."""

        def is_even() -> bool:
            counts = list(self.shares().values())
            return len(counts) == instances and sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

        wait_for(is_even, "even shares")

    def wait_until_handled_by_owners(self) -> None:
        """As many as each has are handled by each: nobody handles what another one has any more."""

        def is_so() -> bool:
            last = [batches[-1].consumer for batches in self.handled().values()]
            return sorted(map(last.count, set(last))) == sorted(self.shares().values())

        wait_for(is_so, "owners to handle what they have")
