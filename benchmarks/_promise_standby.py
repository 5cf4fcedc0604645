"""A PostgreSQL standby that lags 0.3 s is promoted under load, while partitions move: ten times, there and back.

Every other time all instances stand still meanwhile, so that one which has seen nothing of what was lost comes first.
"""

from __future__ import annotations

import random
import signal
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks._fleet import PATIENCE_S, Fleet, Times, longest_gap_s, two_owners, wait_for
from benchmarks.harness import Result, at_most, figure, say
from tests.servers.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMOTIONS = 10
LAG_S = 0.3
RATE, PARTITIONS = 2_000, 12
TIMES = Times(beat_s=0.5, ttl_s=2.0)
LONGEST_S = 4.0
"""Of the group's times-to-live, as its instances are told: so long wait those who do not remember a partition."""
STEADY_S = 2.0
JOINS_S = 0.5, 1.5
"""So long before the primary's last writes are lost a new instance is started; another one leaves meanwhile."""


def measure() -> Result:
    primary = Postgres()
    servers = [primary, Postgres(primary=primary)]
    try:
        return _measure(servers)
    finally:
        for server in servers:
            server.remove()


def _measure(servers: list[Postgres]) -> Result:
    """`servers`: the primary and its standby, in this order; after each promotion the other way round."""
    url = servers[0].url_of_both(servers[1])
    settings = {"longest_ttl_s": LONGEST_S}
    gaps_s = []
    with Fleet(url, TIMES, partitions=PARTITIONS) as fleet:
        names = ["c0", "c1", "c2"]
        for name in names:
            fleet.consume(name, settings=settings)
        fleet.wait_until_even(*names)
        fleet.produce(RATE)
        for number in range(1, PROMOTIONS + 1):
            sleep(STEADY_S)
            leaves, joins, stays = names[0], f"c{number + 2}", names[1:]
            names = [*stays, joins]
            servers[1].catch_up(servers[0])
            is_first = number % 2 == 0
            if not is_first:
                fleet.consume(joins, settings=settings)
                sleep(random.uniform(*JOINS_S))
            servers[1].stop_following()
            fleet.consumers[leaves].terminate()
            sleep(LAG_S)
            stopped_s = monotonic()
            if is_first:
                with _standing_still(fleet, stays):
                    _promote(servers)
                    fleet.consume(joins, settings=settings)
                    wait_for(lambda: fleet.shares()[joins] > 0, "the newcomer to get something")  # noqa: B023
            else:
                _promote(servers)
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
            figure("standby: longest gap of a partition", gaps_s, "s"),
            figure("standby: events repeated, a promotion", [repeated / PROMOTIONS], "events"),
        ],
        [
            at_most("standby: partitions with two owners in one epoch", twice, 0),
            at_most("standby: events lost", lost, 0),
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


def _promote(servers: list[Postgres]) -> None:
    """The standby takes over, and a new one follows it at the place of the former primary."""
    former, promoted = servers
    former.stop()
    promoted.promote()
    former.remove()
    servers[:] = promoted, Postgres(primary=promoted, port=former.port)
