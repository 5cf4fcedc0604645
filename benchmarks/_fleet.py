"""Real processes for benchmarks, and the sum of what they wrote down: lost, handled twice, gaps."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from evenflow import Hub
from evenflow.model import Group
from evenflow.ports import Operable
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from evenflow.model import Lease

PARTITIONS = 16
PATIENCE_S = 60.0


class Times(NamedTuple):
    """How often an instance heartbeats, and after what silence it counts as dead; by default the processor's own."""

    heartbeat_s: float = 2.0
    ttl_s: float = 8.0


class Handled(NamedTuple):
    """One batch that one consumer handled."""

    consumer: str
    epoch: int
    first: int
    last: int
    at_s: float


class Fleet:
    """A hub, a store, a producer and consumers, all ended when it is left."""

    def __init__(self, store: str | None = None, times: Times | None = None, *, partitions: int = PARTITIONS) -> None:
        self._settings = (times or Times())._asdict()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self.store = store or f"sqlite:{self.folder / 'store'}"
        self.hub = self.folder / "hub"
        self.partitions, self.group = partitions, Group("local", "hub", "bench")
        Hub.create(self.hub, partitions=partitions).close()
        if store is not None:
            asyncio.run(self._forget())
        self.consumers: dict[str, subprocess.Popen[bytes]] = {}
        self._producer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [*self.consumers.values(), *filter(None, [self._producer])]:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._temporary.cleanup()

    # --- processes
    def produce(self, rate: float, event_bytes: int = 200) -> None:
        self._producer = _start("produce", hub=str(self.hub), rate=rate, bytes=event_bytes)

    def stop_producing(self) -> None:
        assert self._producer is not None
        self._producer.terminate()
        self._producer.wait(PATIENCE_S)

    def consume(self, name: str, **options: Any) -> subprocess.Popen[bytes]:
        account = str(self.folder / f"{name}.account")
        settings = {**self._settings, **options.pop("settings", {})}
        process = _start(
            "consume", hub=str(self.hub), store=self.store, name=name, account=account, settings=settings, **options
        )
        self.consumers[name] = process
        return process

    def stop(self, name: str) -> None:
        process = self.consumers[name]
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
        assert code == 0, f"{name} ended with {code}"

    # --- what is
    def leases(self) -> dict[str, Lease]:
        ledger = asyncio.run(self._peek())
        return {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}

    def shares(self) -> Counter[str]:
        return Counter(lease.owner.id for lease in self.leases().values() if lease.owner is not None)

    def wait_until_even(self, *names: str) -> None:
        wait_for(lambda: self.is_even(names), f"even shares of {', '.join(names)}")

    def is_even(self, names: tuple[str, ...]) -> bool:
        shares = self.shares()
        counts = [shares.get(name, 0) for name in names]
        return sum(counts) == self.partitions == sum(shares.values()) and max(counts) - min(counts) <= 1

    def newest(self) -> dict[str, int]:
        with Hub(self.hub) as hub:
            return {part.id: part.newest if part.newest is not None else -1 for part in hub.info().partitions}

    async def _peek(self) -> Any:
        store = open_store(self.store)
        assert isinstance(store, Operable)
        try:
            return await store.peek(self.group)
        finally:
            await store.aclose()

    async def _forget(self) -> None:
        """A store that is used again remembers the hub of the run before."""
        store = open_store(self.store)
        assert isinstance(store, Operable)
        try:
            await store.delete(self.group)
        finally:
            await store.aclose()

    # --- what was
    def handled(self) -> dict[str, list[Handled]]:
        """For every partition all that was handled, in order of time."""
        batches: dict[str, list[Handled]] = defaultdict(list)
        for path in self.folder.glob("*.account"):
            for line in path.read_text().splitlines():
                partition, epoch, first, last, at_s = line.split()
                batches[partition].append(Handled(path.stem, int(epoch), int(first), int(last), float(at_s)))
        for found in batches.values():
            found.sort(key=lambda one: one.at_s)
        return batches

    def wait_until_all_handled(self) -> None:
        newest = self.newest()

        def is_done() -> bool:
            handled = self.handled()
            return all(max((b.last for b in handled.get(p, ())), default=-1) >= last for p, last in newest.items())

        wait_for(is_done, "everything to be handled")

    def lost_and_repeated(self) -> tuple[int, int]:
        newest, lost, repeated = self.newest(), 0, 0
        handled = self.handled()
        for partition, last in newest.items():
            times = Counter[int]()
            for batch in handled.get(partition, ()):
                times.update(range(batch.first, batch.last + 1))
            lost += last + 1 - len(times)
            repeated += sum(times.values()) - len(times)
        return lost, repeated


def two_owners(handled: dict[str, list[Handled]]) -> int:
    """How many partitions were handled by two consumers in one epoch."""
    owners = defaultdict[tuple[str, int], set[str]](set)
    for partition, batches in handled.items():
        for batch in batches:
            owners[partition, batch.epoch].add(batch.consumer)
    return sum(len(consumers) > 1 for consumers in owners.values())


def longest_gap_s(handled: dict[str, list[Handled]], since_s: float, until_s: float) -> float:
    """The longest time in which a partition stood still, between its batches in this time."""
    longest_s = 0.0
    for batches in handled.values():
        times_s = [since_s, *(batch.at_s for batch in batches if since_s <= batch.at_s <= until_s), until_s]
        longest_s = max(longest_s, *(after - before for before, after in pairwise(times_s)))
    return longest_s


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end_s = monotonic() + PATIENCE_S
    while not condition():
        if monotonic() > end_s:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        sleep(0.05)


def _start(work: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks._worker", work, json.dumps(options)])
