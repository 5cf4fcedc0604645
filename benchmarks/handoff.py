"""Scale 1 -> 4 -> 1 under load with real processes: what is handled twice or lost, and the longest gap."""

from __future__ import annotations

from time import monotonic, sleep

from benchmarks._fleet import Fleet, Times, longest_gap_s
from benchmarks.harness import Result, at_least, at_most, figure, say

RATE = 20_000
STEADY_S = 3.0
TURNS = 3
GAP_S = 0.5
"""Where the store wakes an heir; where it cannot, an heir finds out with its next heartbeat."""


def run(store: str | None = None, times: Times | None = None) -> Result:
    turns = [scale(store, times) for _ in range(TURNS)]
    lost, twice, gaps_s, sent, rates = zip(*turns, strict=True)
    return Result(
        [
            figure("events sent", sent, "events"),
            figure("load", rates, "events/s"),
            figure("events handled twice", twice, "events"),
            figure("events lost", lost, "events"),
            figure("longest gap in a partition", gaps_s, "s"),
        ],
        [
            at_most("events handled twice", max(twice), 0),
            at_most("events lost", max(lost), 0),
            at_most(
                "longest gap in a partition, s", max(gaps_s), GAP_S + (times.heartbeat_s if times is not None else 0.0)
            ),
            at_least("events a second / events meant", min(rates) / RATE, 0.9),
        ],
    )


def scale(store: str | None, times: Times | None) -> tuple[int, int, float, int, float]:
    with Fleet(store, times) as fleet:
        say("one consumer ...")
        fleet.consume("c1")
        fleet.wait_until_even("c1")
        fleet.produce(RATE)
        produced_s = monotonic()
        sleep(STEADY_S)
        since_s = monotonic()
        say("four ...")
        for name in ("c2", "c3", "c4"):
            fleet.consume(name)
        fleet.wait_until_even("c1", "c2", "c3", "c4")
        sleep(STEADY_S)
        say("one again ...")
        for name in ("c2", "c3", "c4"):
            fleet.stop(name)
        fleet.wait_until_even("c1")
        sleep(STEADY_S)
        until_s = monotonic() - 0.5
        fleet.stop_producing()
        produced_s = monotonic() - produced_s
        fleet.wait_until_all_handled()
        fleet.stop("c1")
        lost, repeated = fleet.lost_and_repeated()
        gap_s = longest_gap_s(fleet.handled(), since_s, until_s)
        sent = sum(newest + 1 for newest in fleet.newest().values())
        return lost, repeated, gap_s, sent, sent / produced_s
