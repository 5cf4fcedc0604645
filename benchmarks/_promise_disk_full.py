"""The disk of a SQLite store is full for twice the time-to-live, under load: its instances go on as they were."""

from __future__ import annotations

import tempfile
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep

import apsw

from benchmarks._fleet import Fleet, Times, wait_for
from benchmarks.harness import Result, at_least, at_most, figure, say
from evenflow.local.database import connect
from tests.servers.processes import fill, small_disk

TIMES = Times(heartbeat_s=1.0, ttl_s=4.0)
RATE = 2_000
OUTAGES = 3
STEADY_S = 4.0
NAMES = "c0", "c1", "c2"
FILES = "leases.sqlite", "progress.sqlite"
BALLAST = "ballast"


def measure() -> Result:
    with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "small", "8m") as disk:
        return _measure(disk)


def _measure(disk: Path) -> Result:
    moved, repeats, stopped_s = [], list[float](), []
    with Fleet(f"sqlite:{disk / 'store'}", TIMES) as fleet:
        for name in NAMES:
            fleet.consume(name)
        fleet.wait_until_even(*NAMES)
        fleet.produce(RATE)
        for number in range(1, OUTAGES + 1):
            sleep(STEADY_S)
            before = _owners(fleet)
            began_s = monotonic()
            _fill_up(disk)
            sleep(2 * TIMES.ttl_s)
            stopped_s.append(_shortest_stop_s(fleet, began_s))
            (disk / BALLAST).unlink()
            _wait_until_all_go_on(fleet)
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
            figure("disk_full: partitions that moved, an outage", moved, "partitions"),
            figure("disk_full: events repeated, an outage", repeats, "events"),
        ],
        [
            at_most("disk_full: events lost", lost, 0),
            at_most("disk_full: events repeated", repeated, 0),
            at_most("disk_full: partitions that moved", max(moved), 0),
            at_least("disk_full: shortest stop of a partition", min(stopped_s), TIMES.ttl_s / 2),
        ],
    )


def _fill_up(disk: Path) -> None:
    """With nothing left of the room that the logs have, either: what is written next needs some."""
    fill(disk / BALLAST)
    for name in FILES:
        with closing(connect(disk / "store" / name, busy_timeout_s=5.0)) as file, suppress(apsw.Error):
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (disk / BALLAST).open("ab", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def _owners(fleet: Fleet) -> dict[str, str]:
    return {partition: lease.owner.id for partition, lease in fleet.leases().items() if lease.owner is not None}


def _shortest_stop_s(fleet: Fleet, since_s: float) -> float:
    """How long the partition has stood still that stopped last."""
    now_s = monotonic()
    return min(now_s - max(since_s, batches[-1].at_s) for batches in fleet.handled().values())


def _wait_until_all_go_on(fleet: Fleet) -> None:
    since_s = monotonic()

    def is_so() -> bool:
        return min(batches[-1].at_s for batches in fleet.handled().values()) > since_s

    wait_for(is_so, "all partitions to go on")
