"""kill -9 of the owner of half of 16 partitions under load, until the last of them is handled again."""

from __future__ import annotations

import random
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks._fleet import Fleet, Handled, Times, wait_for
from benchmarks.harness import Result, at_most, figure, say

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = 5_000
CHECKPOINT_S = 1.0
KILLS = 4
STEADY_S = (2.0, 6.0)
"""Drawn anew before each kill, so that kills meet heartbeats and checkpoints at different moments."""


def run(store: str | None = None, times: Times | None = None) -> Result:
    times = times or Times()
    taken_s, again = [], []
    with Fleet(store, times) as fleet:
        fleet.consume("c0")
        fleet.wait_until_even("c0")
        fleet.produce(RATE)
        for number in range(1, KILLS + 1):
            survivor, victim = "c0", f"c{number}"
            fleet.consume(victim)
            fleet.wait_until_even(survivor, victim)
            sleep(random.uniform(*STEADY_S))
            seconds, repeated = kill(fleet, victim)
            say(f"kill {number} of {KILLS}: handled again after {seconds:.2f} s, {repeated} events repeated")
            taken_s.append(seconds)
            again.append(float(repeated))
        fleet.stop_producing()
        fleet.wait_until_all_handled()
        lost, _ = fleet.lost_and_repeated()
        fleet.stop("c0")
    interval_events = RATE / 2 * CHECKPOINT_S
    return Result(
        [
            figure("until the last partition is handled again", taken_s, "s"),
            figure("events handled again, a kill", again, "events"),
            figure("events of one checkpoint interval", [interval_events], "events"),
            figure("events lost", [lost], "events"),
        ],
        [
            at_most("until handled again / (ttl + heartbeat)", max(taken_s) / (times.ttl_s + times.heartbeat_s), 1.1),
            at_most("events lost", lost, 0),
            at_most("events handled again / checkpoint interval", max(again) / interval_events, 1.0),
        ],
    )


def kill(fleet: Fleet, victim: str) -> tuple[float, int]:
    """How long until its last partition is handled again, and how many events were handled a second time."""
    orphans = {partition for partition, lease in fleet.leases().items() if lease.owner and lease.owner.id == victim}
    wait_for(lambda: _has_handled(fleet, orphans, victim), "the victim to handle what it owns")
    process = fleet.consumers[victim]
    process.kill()
    killed_s = monotonic()
    process.wait()
    wait_for(lambda: _heirs(fleet, orphans, victim, killed_s) is not None, "the takeover")
    heirs = _heirs(fleet, orphans, victim, killed_s)
    assert heirs is not None
    last = {p: max(b.last for b in batches if b.consumer == victim) for p, batches in _of(fleet, orphans).items()}
    repeated = sum(max(0, last[partition] - batch.first + 1) for partition, batch in heirs.items())
    return max(batch.at_s for batch in heirs.values()) - killed_s, repeated


def _has_handled(fleet: Fleet, partitions: set[str], consumer: str) -> bool:
    """A batch of each: otherwise nothing of it could be handled again."""
    return all(any(batch.consumer == consumer for batch in batches) for batches in _of(fleet, partitions).values())


def _heirs(fleet: Fleet, orphans: set[str], victim: str, since_s: float) -> dict[str, Handled] | None:
    """The first batch that somebody else handled in each partition; None until there is one everywhere."""
    found = {}
    for partition, batches in _of(fleet, orphans).items():
        after = next((batch for batch in batches if batch.consumer != victim and batch.at_s > since_s), None)
        if after is None:
            return None
        found[partition] = after
    return found


def _of(fleet: Fleet, partitions: set[str]) -> dict[str, Sequence[Handled]]:
    handled = fleet.handled()
    return {partition: handled[partition] for partition in partitions}
