"""Events per second over a local Event Hubs: Azure's own client, a processor over `eventhubs://`, and one on the hub.

The server, and each client, is a process of its own. A turn sends so many events with the official producer, and reads
as many from the beginning: with the official client's `receive_batch`, with a processor over the source with the same
prefetch, and with a processor on the same embedded hub. The ways take turns, and ratios are those of a turn, so that
whatever else the machine does hits all of them. What a million events cost is CPU time, of the client and of the
server that it is served by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks._served import VARIABLE
from benchmarks.harness import Bar, Figure, Result, at_least, at_most, figure, say

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = ((200, 4), (200, 16), (1_024, 4), (1_024, 16))
"""Bytes of an event, and partitions."""
EVENTS = 30_000
TURNS = 5
PREFETCH = 300
"""As the official client has it, and of both."""
WAYS = ("send", "official", "source", "direct")
NAMES = {
    "send": "sent by the official producer",
    "official": "received by the official client",
    "source": "received over the source",
    "direct": "received directly",
}
SERVED = ("send", "official", "source")
LEAST_OF_SOURCE = 0.95
LEAST_OF_DIRECT = 20.0


class Measured(NamedTuple):
    rate: float
    client_cpu_s: float
    """Of a million events, as the next."""
    server_cpu_s: float


def run() -> Result:
    figures: list[Figure] = []
    bars: list[Bar] = []
    for size, partitions in CASES:
        with tempfile.TemporaryDirectory() as folder, Served(Path(folder), partitions) as served:
            more, judged = measure(served, size, partitions)
            figures += more
            bars += judged
            if (size, partitions) == CASES[0]:
                profile = list(profiled(served, size, partitions))
    return Result([*figures, *profile], bars)


def measure(served: Served, size: int, partitions: int) -> tuple[list[Figure], list[Bar]]:
    case = f"{size} B x {partitions}"
    turns: list[dict[str, Measured]] = []
    for turn in range(TURNS):
        say(f"{case}, turn {turn + 1} of {TURNS} ...")
        turns.append({way: served.measure(way, size) for way in WAYS})
    figures = [figure(f"{case}, {NAMES[way]}", [turn[way].rate for turn in turns], "events/s") for way in WAYS]
    over = [turn["source"].rate / turn["official"].rate for turn in turns]
    directly = [turn["direct"].rate / turn["official"].rate for turn in turns]
    figures += [figure(f"{case}, source / official", over, "x"), figure(f"{case}, directly / official", directly, "x")]
    bars = [
        at_least(f"{case}, source / official", median(over), LEAST_OF_SOURCE),
        at_least(f"{case}, directly / official", median(directly), LEAST_OF_DIRECT),
    ]
    for way in SERVED:
        found = [turn[way] for turn in turns]
        name = f"{case}, {NAMES[way]}"
        ratios = [one.server_cpu_s / one.client_cpu_s for one in found]
        figures += [
            figure(f"{name}: client's CPU", [one.client_cpu_s for one in found], "s/million"),
            figure(f"{name}: server's CPU", [one.server_cpu_s for one in found], "s/million"),
        ]
        bars.append(at_most(f"{name}: server / client", median(ratios), 1.0))
    return figures, bars


def profiled(served: Served, size: int, partitions: int) -> Iterator[Figure]:
    """Not a measure of anything else: the profiler makes it slow."""
    say("profile of the official client ...")
    found, _ = served.run("profile", size)
    for name, share in found["modules"].items():
        yield figure(f"the official client's time, {name}", [share], "%")
    for name, share in found["functions"].items():
        yield figure(f"of it {name}", [share], "%")


class Served:
    """One hub and its server, in another process."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._options = {
            "hub": "hub",
            "folder": str(folder / "hub"),
            "partitions": partitions,
            "events": EVENTS,
            "prefetch": PREFETCH,
        }
        self._server = subprocess.Popen(
            [
                *(sys.executable, "-m", "evenflow.cli", "hub", "serve", str(folder), "--port", "0", "--json"),
                *("--hub", f"hub:{partitions}"),
            ],
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        ready = json.loads(self._server.stdout.readline())
        self._environment = {**os.environ, VARIABLE: ready["connection_string"]}

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()

    def measure(self, way: str, size: int) -> Measured:
        found, server_s = self.run(way, size)
        millions = found["events"] / 1e6
        return Measured(found["rate"], found["cpu_s"] / millions, server_s / millions)

    def run(self, way: str, size: int) -> tuple[dict[str, Any], float]:
        """What a client answers, and how much CPU the server had meanwhile."""
        options = dict(self._options, bytes=size)
        client = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._eventhubs", way, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            if client.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{way} did not get ready")
            before_s = self._cpu_s()
            client.stdin.write(b"go\n")
            client.stdin.close()
            found = json.loads(client.stdout.readline())
            return found, self._cpu_s() - before_s
        finally:
            client.kill()
            client.wait()

    def _cpu_s(self) -> float:
        """Of its threads, too. (Linux only, like the other benchmarks of more than one process.)"""
        after_name = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")
