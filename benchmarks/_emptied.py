"""A store that is emptied under load, with everything that instances agreed on in it. The rows of several stores share
this."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

from benchmarks._fleet import Fleet, Times, longest_gap_s
from benchmarks.harness import Result, at_most, figure, say

if TYPE_CHECKING:
    from collections.abc import Callable

RATE = 2_000
CHECKPOINT_S = 1.0
NAMES = "c0", "c1", "c2"
STARTS = "latest", "earliest"
STEADY_S = 5.0


class Loss(NamedTuple):
    """What one loss has cost."""

    lost: int
    repeated: int
    gap_s: float


def measure_emptied(row: str, store: str | None, empty: Callable[[Fleet], None], times: Times | None = None) -> Result:
    """Three instances, once for each start; `empty` takes everything from the store, and leaves it usable."""
    times = times or Times()
    found = {start: _lose(store, start, empty, times) for start in STARTS}
    for start, loss in found.items():
        say(f"{row}, {start}: {loss.lost} lost, {loss.repeated} repeated, longest gap {loss.gap_s:.1f} s")
    bearable_s = 2 * (times.ttl_s + times.heartbeat_s)
    bars = [
        bar
        for start, loss in found.items()
        for bar in (
            at_most(f"{row}, {start}: events lost", loss.lost, 0),
            at_most(f"{row}, {start}: repeated / checkpoint interval", loss.repeated / (RATE * CHECKPOINT_S), 1.0),
            at_most(f"{row}, {start}: longest gap / 2 (ttl + heartbeat)", loss.gap_s / bearable_s, 1.0),
        )
    ]
    gaps_s = [loss.gap_s for loss in found.values()]
    return Result([figure(f"{row}: longest gap of a partition", gaps_s, "s")], bars)


def _lose(store: str | None, start: str, empty: Callable[[Fleet], None], times: Times) -> Loss:
    with Fleet(store, times) as fleet:
        for name in NAMES:
            fleet.consume(name, settings={"start": start})
        fleet.wait_until_even(*NAMES)
        fleet.produce(RATE)
        sleep(STEADY_S)
        emptied_s = monotonic()
        empty(fleet)
        sleep(3 * (times.ttl_s + times.heartbeat_s))
        until_s = monotonic()
        fleet.stop_producing()
        fleet.wait_until_all_handled()
        lost, repeated = fleet.lost_and_repeated()
        return Loss(lost, repeated, longest_gap_s(fleet.handled(), emptied_s, until_s))
