"""A replica that lags takes over under load, while instances come and go. The rows of several stores share this.

Every other time all instances stand still meanwhile, so that one which has seen nothing of what was lost comes first.
"""

from __future__ import annotations

import random
import signal
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol

from benchmarks._fleet import PATIENCE_S, Fleet, Times, longest_gap_s, two_owners, wait_for
from benchmarks.harness import Result, at_most, figure, say

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMOTIONS = 10
LAG_S = 0.3
RATE, PARTITIONS = 2_000, 12
TIMES = Times(heartbeat_s=0.5, ttl_s=2.0)
LONGEST_S = 4.0
"""Of the group's times-to-live, as its instances are told: so long wait those who do not remember a partition."""
STEADY_S = 2.0
JOINS_S = 0.5, 1.5
"""So long before the last writes are lost a new instance is started; another one leaves meanwhile."""


class Servers(Protocol):
    """One that is written to, and its replica."""

    @property
    def url(self) -> str:
        """Of the one that is written to, whichever it is."""
        ...

    def catch_up(self) -> None:
        """Wait until the replica has everything."""
        ...

    def stop_following(self) -> None:
        """What is written from now on is lost."""
        ...

    def promote(self) -> None:
        """The replica takes over, and gets a replica of its own."""
        ...


def measure_failovers(row: str, servers: Servers) -> Result:
    settings = {"longest_ttl_s": LONGEST_S}
    gaps_s = []
    with Fleet(servers.url, TIMES, partitions=PARTITIONS) as fleet:
        names = ["c0", "c1", "c2"]
        for name in names:
            fleet.consume(name, settings=settings)
        fleet.wait_until_even(*names)
        fleet.produce(RATE)
        for number in range(1, PROMOTIONS + 1):
            sleep(STEADY_S)
            leaves, joins, stays = names[0], f"c{number + 2}", names[1:]
            names = [*stays, joins]
            servers.catch_up()
            is_first = number % 2 == 0
            if not is_first:
                fleet.consume(joins, settings=settings)
                sleep(random.uniform(*JOINS_S))
            servers.stop_following()
            fleet.consumers[leaves].terminate()
            sleep(LAG_S)
            stopped_s = monotonic()
            if is_first:
                with _standing_still(fleet, stays):
                    servers.promote()
                    fleet.consume(joins, settings=settings)
                    wait_for(lambda: fleet.shares()[joins] > 0, "the newcomer to get something")  # noqa: B023
            else:
                servers.promote()
            fleet.consumers[leaves].wait(PATIENCE_S)
            fleet.wait_until_even(*names)
            gaps_s.append(longest_gap_s(fleet.handled(), stopped_s, monotonic()))
            say(f"promotion {number} of {PROMOTIONS}: longest gap {gaps_s[-1]:.1f} s")
        fleet.stop_producing()
        fleet.wait_until_all_handled()
        lost, repeated = fleet.lost_and_repeated()
        twice = two_owners(fleet.handled())
    return Result(
        [
            figure(f"{row}: longest gap of a partition", gaps_s, "s"),
            figure(f"{row}: events repeated, a promotion", [repeated / PROMOTIONS], "events"),
        ],
        [
            at_most(f"{row}: partitions with two owners in one epoch", twice, 0),
            at_most(f"{row}: events lost", lost, 0),
        ],
    )


@contextmanager
def _standing_still(fleet: Fleet, names: list[str]) -> Iterator[None]:
    for name in names:
        fleet.consumers[name].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for name in names:
            fleet.consumers[name].send_signal(signal.SIGCONT)
