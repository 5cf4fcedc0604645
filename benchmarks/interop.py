"""One group of two processors of this project and two of Azure's own, in Azure's own blob layout (on Azurite).

Four processes over one local Event Hubs of 32 partitions, while events are produced. They come one after the other, the
makes in turn, then run on for two minutes, and then one of each make is stopped, so that the other make goes on from
its checkpoints. Every call of a handler is written down, with when it began and ended by the clock that all processes
share; what is counted is what these accounts say.

Azure's processors take a partition from each other without waiting for the loser's call to end, and so overlap now and
then while they move; that is shown, and none of ours has a part in it.
"""

from __future__ import annotations

from time import monotonic, sleep

from benchmarks._mixed import EVENFLOW, OFFICIAL, MixedFleet, Pace
from benchmarks.harness import Figure, Result, at_least, at_most, figure, say

PARTITIONS = 32
RATE = 640.0
SECONDS = 120.0
LOOK_S = 1.0
SHOWN = 10
COMING = (("official-1", OFFICIAL), ("ours-1", EVENFLOW), ("official-2", OFFICIAL), ("ours-2", EVENFLOW))


def run(seconds: float = SECONDS) -> Result:
    with MixedFleet(partitions=PARTITIONS, pace=Pace()) as fleet:
        return measure(fleet, seconds)


def measure(fleet: MixedFleet, seconds: float) -> Result:
    figures: list[Figure] = []
    fleet.produce(RATE)
    for instances, (name, kind) in enumerate(COMING, 1):
        say(f"{name} comes ...")
        fleet.start(name, kind)
        settled_s = fleet.wait_until_settled(instances)
        figures.append(figure(f"settled after {name} came", [settled_s], "s"))
    since_s = monotonic()
    shares = watched(fleet, seconds)
    until_s = monotonic()
    say("one of each make is stopped ...")
    stopped_s: dict[str, float] = {}
    for instances, name in ((3, "official-1"), (2, "ours-1")):
        stopped_s[name] = monotonic()
        fleet.stop(name)
        fleet.wait_until_settled(instances)
    fleet.stop_producing()
    fleet.wait_until_all_called()
    for name in ("official-2", "ours-2"):
        fleet.stop(name)
    return judged(fleet, figures, shares, (since_s, until_s), stopped_s)


def watched(fleet: MixedFleet, seconds: float) -> list[int]:
    """How much the largest share is above the smallest, look by look."""
    say(f"steady for {seconds:.0f} s ...")
    differences = []
    end_s = monotonic() + seconds
    while monotonic() < end_s:
        counts = list(fleet.shares_by_blobs().values())
        differences.append(max(counts) - min(counts) if len(counts) == len(COMING) else PARTITIONS)
        sleep(LOOK_S)
    return differences


def judged(
    fleet: MixedFleet,
    figures: list[Figure],
    differences: list[int],
    steady: tuple[float, float],
    stopped_s: dict[str, float],
) -> Result:
    overlaps, (lost, repeated) = fleet.overlaps(), fleet.lost_and_repeated()
    for overlap in overlaps[:SHOWN]:
        say(f"overlap: {overlap}")
    since_s, until_s = steady
    while_steady = [overlap for overlap in overlaps if since_s <= overlap.second.began_s <= until_s]
    of_ours = [overlap for overlap in overlaps if fleet.is_ours(overlap)]
    calls = sum(map(len, fleet.calls().values()))
    crossings = {}
    for name, at_s in stopped_s.items():
        moves = [move for move in fleet.moves_from(name, at_s) if fleet.kinds[move.heir] != fleet.kinds[name]]
        crossings[name] = moves
        for move in moves:
            say(
                f"{name} -> {move.heir}, partition {move.partition}: last checkpoint "
                f"{' or '.join(map(str, sorted(move.checkpoints)))}, went on with {move.first}"
            )
    figures += [
        figure("calls of handlers", [calls], "calls"),
        figure("events handled twice (moves of Azure's make)", [repeated], "events"),
        figure("moves while steady", [fleet.moves(*steady)], "moves"),
        figure("largest share - smallest, while steady", differences, "partitions"),
        figure("overlaps of two of Azure's, while they move", [len(overlaps) - len(of_ours)], "calls"),
    ]
    bars = [
        at_most("largest share - smallest, at any look", max(differences), 1),
        at_most("calls that overlap, while steady", len(while_steady), 0),
        at_most("calls of ours that overlap, at any time", len(of_ours), 0),
        at_most("lost", lost, 0),
    ]
    for name, what in (("official-1", "from Azure's to ours"), ("ours-1", "from ours to Azure's")):
        moves = crossings[name]
        figures.append(figure(f"partitions that went {what}", [len(moves)], "partitions"))
        bars += [
            at_least(f"partitions that went {what}", len(moves), 1),
            at_most(f"of them not exactly at the checkpoint, {what}", sum(not move.is_exact for move in moves), 0),
        ]
    return Result(figures, bars)
