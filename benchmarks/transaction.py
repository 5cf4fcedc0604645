"""Events counted into a SQLite table through partition.transaction(), by processes that are killed again and again."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple

import apsw

from benchmarks._fleet import wait_for
from benchmarks.harness import Result, at_least, at_most, figure, say
from evenflow import Event, Hub
from evenflow.local.database import lock_holder
from evenflow.model import Group
from evenflow.stores.sqlite.store import SQLiteStore

EVENTS, KILLS = 200_000, 20
PLAIN_EVENTS, PLAIN_KILLS = 600_000, 5
CALM_EVENTS = 50_000
PARTITIONS, KEYS, WORKERS = 8, 1_000, 2
SETTINGS = {"heartbeat_s": 0.2, "ttl_s": 1.0, "margin_s": 0.2, "batch_events": 100}
GROUP = Group("local", "hub", "bench")
JITTER_S = 0.05
"""After the moment that was drawn, so that a kill meets any step of a transaction."""

Mode = Literal["transaction", "plain"]


class Tally(NamedTuple):
    """What the counts say, against what was sent."""

    events: int
    kills: int
    """Those that met work."""
    lost: int
    twice: int
    seconds: float


def run() -> Result:
    exact = tally("transaction", EVENTS, KILLS)
    plain = tally("plain", PLAIN_EVENTS, PLAIN_KILLS)
    calm = tally("transaction", CALM_EVENTS, 0)
    return Result(
        [
            figure("events counted", [exact.events], "events"),
            figure("kills (SIGKILL)", [exact.kills], ""),
            figure("seconds", [exact.seconds], "s"),
            figure("events/s, kills and waits for leases included", [exact.events / exact.seconds], "events/s"),
            figure("events/s without a kill", [calm.events / calm.seconds], "events/s"),
            figure(f"counted twice without transactions, {plain.kills} kills", [plain.twice], "events"),
            figure(f"lost without transactions, {plain.kills} kills", [plain.lost], "events"),
        ],
        [
            at_most("events lost", exact.lost, 0),
            at_most("events counted twice", exact.twice, 0),
            at_least("kills while there was work", exact.kills, KILLS),
            at_most("differences without a kill", calm.lost + calm.twice, 0),
        ],
    )


def tally(mode: Mode, events: int, kills: int) -> Tally:
    """Count so many events, with so many kills at random points on the way."""
    with tempfile.TemporaryDirectory() as name, Counters(Path(name), mode) as counters:
        sent = counters.fill(events)
        began_s = monotonic()
        for _ in range(WORKERS):
            counters.start()
        met = 0
        for number, handled in enumerate(sorted(random.sample(range(events * 9 // 10), kills)), start=1):
            done = counters.kill_at(handled)
            met += done < events
            say(f"{mode}: kill {number} of {kills}, {done:,} of {events:,} events handled")
        wait_for(lambda: counters.handled() >= events, "the last event")
        seconds = monotonic() - began_s
        found = counters.counts()
    return Tally(events, met, sum((sent - found).values()), sum((found - sent).values()), seconds)


class Counters:
    """A hub full of events, and processes that count them; all ended when it is left."""

    def __init__(self, folder: Path, mode: Mode, *, sit_s: float = 0.0) -> None:
        self._hub, self._store, self._own = folder / "hub", folder / "store", folder / "counts.sqlite"
        self._mode = mode
        self._sit_s = sit_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def __enter__(self) -> Counters:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def fill(self, events: int) -> Counter[str]:
        keys = [f"home-{random.randrange(KEYS)}" for _ in range(events)]
        with Hub.create(self._hub, partitions=PARTITIONS) as hub:
            asyncio.run(hub.send([Event(b"door opened", key=key) for key in keys]))
        return Counter(keys)

    def start(self) -> None:
        name, self._started = f"c{self._started}", self._started + 1
        options: dict[str, Any] = {
            "hub": str(self._hub),
            "store": str(self._store),
            "counts": str(self._own),
            "name": name,
            "mode": self._mode,
            "sit_s": self._sit_s,
            "settings": SETTINGS,
        }
        self._processes[name] = subprocess.Popen([sys.executable, "-m", "benchmarks._counter", json.dumps(options)])

    def kill_at(self, handled: int) -> int:
        """kill -9 of one of them, once so many events are handled; another one is started in its place."""
        wait_for(lambda: self.handled() >= handled, f"{handled:,} events")
        sleep(random.uniform(0.0, JITTER_S))
        name = random.choice(sorted(self._processes))
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        done = self.handled()
        self.start()
        return done

    def stop_inside(self) -> tuple[str, int]:
        """SIGSTOP of the process whose transaction is open; its name and id."""
        path = self._store / "progress.sqlite"
        while True:
            holder = lock_holder(path)
            for name, process in self._processes.items():
                if holder is not None and parent_of(holder) == process.pid:
                    process.send_signal(signal.SIGSTOP)
                    sleep(2 * self._sit_s)
                    if lock_holder(path) == holder:
                        return name, process.pid
                    process.send_signal(signal.SIGCONT)

    def owners(self) -> set[str]:
        """The names of all that own partitions."""
        return asyncio.run(self._owners())

    def handled(self) -> int:
        """How many events have a checkpoint."""
        return asyncio.run(self._ordinals()) if (self._store / "progress.sqlite").exists() else 0

    async def _owners(self) -> set[str]:
        store = SQLiteStore(self._store)
        try:
            ledger = await store.peek(GROUP)
            assert ledger is not None
            return {lease.owner.id for lease in ledger.leases if lease.owner is not None}
        finally:
            await store.aclose()

    async def _ordinals(self) -> int:
        store = SQLiteStore(self._store)
        try:
            return sum(record.ordinal for record in await store.checkpoints(GROUP))
        finally:
            await store.aclose()

    def counts(self) -> Counter[str]:
        path = self._store / "progress.sqlite" if self._mode == "transaction" else self._own
        database = apsw.Connection(str(path))
        try:
            return Counter({str(key): int(count) for key, count in database.execute("SELECT key, count FROM counts")})
        finally:
            database.close()


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return None
