"""Resident memory of a processor whose handler is ten times slower than the stream."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep

from benchmarks._fleet import PARTITIONS, Fleet
from benchmarks.harness import Result, at_least, at_most, figure, say

RATE = 8_000
SLOWER = 10
EVENT_BYTES = 1_000
SECONDS = 60.0
PAGE_BYTES = 4_096
MB = 1_000_000


def run(store: str | None = None) -> Result:
    """Growth counts from when it holds its partitions and nothing has been sent yet."""
    with Fleet(store) as fleet:
        process = fleet.consume("slow", pause_s=PARTITIONS * SLOWER / RATE)
        fleet.wait_until_even("slow")
        sleep(1.0)
        start = resident_bytes(process.pid)
        fleet.produce(RATE, EVENT_BYTES)
        samples = []
        began_s = monotonic()
        while monotonic() - began_s < SECONDS:
            sleep(0.5)
            samples.append((resident_bytes(process.pid) - start) / MB)
        sent = sum(newest + 1 for newest in fleet.newest().values())
        say(f"{sent:,} events of {EVENT_BYTES} bytes sent in {SECONDS:.0f} s")
    return Result(
        [
            figure("resident before", [start / MB], "MB"),
            figure("growth", samples, "MB"),
            figure("sent", [sent * EVENT_BYTES / MB], "MB"),
        ],
        [
            at_most("highest growth, MB", max(samples), 50.0),
            at_least("events sent / events meant", sent / (RATE * SECONDS), 0.9),
        ],
    )


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
