"""A PostgreSQL server that is stopped for twice the time-to-live, under load: its instances go on as they were."""

from __future__ import annotations

from time import sleep

from benchmarks._fleet import Fleet, Times
from benchmarks.harness import Result, at_most, figure, say
from tests.servers.postgres import Postgres

TIMES = Times(heartbeat_s=1.0, ttl_s=4.0)
RATE = 2_000
OUTAGES = 3
STEADY_S = 4.0
NAMES = "c0", "c1", "c2"


def measure() -> Result:
    server = Postgres()
    try:
        return _measure(server)
    finally:
        server.remove()


def _measure(server: Postgres) -> Result:
    moved: list[float] = []
    repeats: list[float] = []
    with Fleet(server.url(), TIMES) as fleet:
        for name in NAMES:
            fleet.consume(name)
        fleet.wait_until_even(*NAMES)
        fleet.produce(RATE)
        for number in range(1, OUTAGES + 1):
            sleep(STEADY_S)
            before = _owners(fleet)
            server.stop()
            sleep(2 * TIMES.ttl_s)
            server.start()
            fleet.wait_until_even(*NAMES)
            sleep(2 * TIMES.ttl_s)
            after = _owners(fleet)
            moved.append(float(sum(after.get(partition) != owner for partition, owner in before.items())))
            _, repeated = fleet.lost_and_repeated()
            repeats.append(repeated - sum(repeats))
            say(f"outage {number} of {OUTAGES}: {moved[-1]:.0f} partitions moved, {repeats[-1]:.0f} events repeated")
        fleet.stop_producing()
        fleet.wait_until_all_handled()
        lost, repeated = fleet.lost_and_repeated()
    return Result(
        [
            figure("postgresql_stopped: partitions that moved, an outage", moved, "partitions"),
            figure("postgresql_stopped: events repeated, an outage", repeats, "events"),
        ],
        [
            at_most("postgresql_stopped: events lost", lost, 0),
            at_most("postgresql_stopped: events repeated", repeated, 0),
        ],
    )


def _owners(fleet: Fleet) -> dict[str, str]:
    return {partition: lease.owner.id for partition, lease in fleet.leases().items() if lease.owner is not None}
