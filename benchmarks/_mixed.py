"""A group that processors of this project and of Azure's make share in Azurite, and the judge of what they did."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

from benchmarks._served import ServedFleet
from tests.servers.azurite import Azurite

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from azure.storage.blob import ContainerClient

NODE = Path(__file__).parents[1] / "tests" / "node"
EVENFLOW, OFFICIAL, JAVASCRIPT = "evenflow", "official", "javascript"


class Pace(NamedTuple):
    """How often Azure's processors look at the store, and for how dead they take whom; and the same of ours."""

    interval_s: float = 3.0
    expiry_s: float = 18.0
    heartbeat_s: float = 2.0
    ttl_s: float = 12.0
    work_s: float = 0.02
    """How long each call of a handler takes."""
    patience_s: float = 240.0


class Call(NamedTuple):
    instance: str
    first: int
    last: int
    began_s: float
    ended_s: float
    whole: bool
    """Azure's processor cuts a handler short when it stops, or has lost its partition."""


class Overlap(NamedTuple):
    """Two calls of one partition that ran at the same time."""

    partition: str
    first: Call
    second: Call


class Mark(NamedTuple):
    instance: str
    sequence: int
    at_s: float
    done: bool


class Move(NamedTuple):
    """How a partition went on after its instance had been stopped."""

    partition: str
    heir: str
    checkpoints: frozenset[int]
    """The last checkpoint; two when the last one's answer was not waited for."""
    first: int

    @property
    def is_exact(self) -> bool:
        return self.first - 1 in self.checkpoints


class MixedFleet(ServedFleet):
    def __init__(self, *, partitions: int, pace: Pace, host: str | None = None) -> None:
        """A host of its own is for JavaScript's processor, which leaves a port out of the names of blobs: only where
        no port is named do these and Python's mean the same group."""
        super().__init__(partitions=partitions, host=host)
        self._pace = pace
        self._ends = ExitStack()
        self.kinds: dict[str, str] = {}
        self._azurite = Azurite(self.folder / "azurite.log")
        self._azurite.start()
        self._ends.callback(self._azurite.stop)
        self._container = self._azurite.make_container()
        self._blobs: ContainerClient = self._ends.enter_context(self._azurite.container(self._container))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._ends:
            super().__exit__(kind, error, trace)

    def start(self, name: str, kind: str) -> None:
        options = {
            **self._pace._asdict(),
            "name": name,
            "account": str(self.folder / f"{name}.calls"),
            "blobs": self._azurite.connection_string,
            "container": self._container,
            "store": self._azurite.url(self._container, more=f"&peer_expiry_s={self._pace.expiry_s}"),
        }
        program = [sys.executable, "-m", "benchmarks._interop", kind]
        if kind == JAVASCRIPT:
            program = [shutil.which("node") or "node", str(NODE / "processor.mjs")]
        self.kinds[name] = kind
        self.load(name, [*program, json.dumps(options)])
        self.go(name)

    # --- what is
    def owners(self) -> dict[str, str]:
        """As the blobs have it, which both makes write. Azure's processors make up names for themselves."""
        found = self._blobs.list_blobs(include=["metadata"])
        return {
            blob.name.rpartition("/")[2]: (blob.metadata or {}).get("ownerid") or ""
            for blob in found
            if "/ownership/" in blob.name and not blob.size and "evenflow/" not in blob.name
        }

    def shares_by_blobs(self) -> Counter[str]:
        return Counter(owner for owner in self.owners().values() if owner)

    def is_even_by_blobs(self, instances: int) -> bool:
        counts = self.shares_by_blobs().values()
        return len(counts) == instances and sum(counts) == self.partitions and max(counts) - min(counts) <= 1

    def wait_until_settled(self, instances: int) -> float:
        """Until shares are even, and everybody handles what it has, and nothing else. How long that took."""
        began_s = monotonic()
        self.wait(lambda: self.is_even_by_blobs(instances), f"even shares of {instances}")
        self.wait(self._is_handled_by_owners, "owners to handle what they have")
        return monotonic() - began_s

    def _is_handled_by_owners(self) -> bool:
        last = Counter(calls[-1].instance for calls in self.calls().values())
        return sorted(last.values()) == sorted(self.shares_by_blobs().values())

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end_s = monotonic() + self._pace.patience_s
        while not condition():
            if monotonic() > end_s:
                raise TimeoutError(f"waited {self._pace.patience_s:.0f} s for {what}: {self.shares_by_blobs()}")
            sleep(0.2)

    def wait_until_all_called(self) -> None:
        newest = self.newest()

        def is_done() -> bool:
            calls = self.calls()
            return all(
                max((call.last for call in calls.get(p, ()) if call.whole), default=-1) >= n for p, n in newest.items()
            )

        self.wait(is_done, "everything to be handled")

    # --- what was
    def calls(self) -> dict[str, list[Call]]:
        """Of every partition, in order of when they began."""
        found: dict[str, list[Call]] = defaultdict(list)
        for name, (what, partition, *rest) in self._lines():
            if what in "cx":
                first, last, began_s, ended_s = rest
                found[partition].append(Call(name, int(first), int(last), float(began_s), float(ended_s), what == "c"))
        for calls in found.values():
            calls.sort(key=lambda call: call.began_s)
        return found

    def marks(self) -> dict[str, list[Mark]]:
        found: dict[str, list[Mark]] = defaultdict(list)
        for name, (what, partition, *rest) in self._lines():
            if what in "ad":
                sequence, at_s = rest
                found[partition].append(Mark(name, int(sequence), float(at_s), what == "d"))
        for marks in found.values():
            marks.sort(key=lambda mark: mark.at_s)
        return found

    def _lines(self) -> list[tuple[str, list[str]]]:
        return [
            (path.stem, line.split())
            for path in self.folder.glob("*.calls")
            for line in path.read_text().splitlines()
            if line
        ]

    def overlaps(self) -> list[Overlap]:
        """Calls of one partition that ran at the same time, whoever's they were, in order of time."""
        found = []
        for partition, calls in self.calls().items():
            running = calls[0]
            for call in calls[1:]:
                if call.began_s < running.ended_s:
                    found.append(Overlap(partition, running, call))
                running = max(running, call, key=lambda one: one.ended_s)
        return sorted(found, key=lambda overlap: overlap.second.began_s)

    def is_ours(self, overlap: Overlap) -> bool:
        """Whether a call of ours has a part in it."""
        return EVENFLOW in (self.kinds[overlap.first.instance], self.kinds[overlap.second.instance])

    def moves(self, since_s: float, until_s: float) -> int:
        """How often a partition went from one to another in this time."""
        count = 0
        for calls in self.calls().values():
            within = [call for call in calls if since_s <= call.began_s <= until_s]
            count += sum(before.instance != after.instance for before, after in pairwise(within))
        return count

    def moves_from(self, name: str, stopped_s: float) -> list[Move]:
        """How what this one had when it was asked to stop was taken up."""
        marks, found = self.marks(), []
        for partition, calls in self.calls().items():
            before = [call for call in calls if call.began_s < stopped_s]
            own_end_s = max((call.ended_s for call in calls if call.instance == name), default=0.0)
            heirs = [call for call in calls if call.instance != name and call.began_s >= own_end_s]
            if before and before[-1].instance == name and heirs:
                known = [mark for mark in marks[partition] if mark.at_s < heirs[0].began_s]
                found.append(Move(partition, heirs[0].instance, last_checkpoints(known), heirs[0].first))
        return found

    def lost_and_repeated(self) -> tuple[int, int]:
        calls, lost, repeated = self.calls(), 0, 0
        for partition, newest in self.newest().items():
            times = Counter[int]()
            for call in calls.get(partition, ()):
                if call.whole:
                    times.update(range(call.first, call.last + 1))
            lost += newest + 1 - len(times)
            repeated += times.total() - len(times)
        return lost, repeated


def last_checkpoints(marks: list[Mark]) -> frozenset[int]:
    """The last one that was answered, and any that was asked for later and may have taken effect."""
    last_done = max((place for place, mark in enumerate(marks) if mark.done), default=None)
    if last_done is None:
        return frozenset({-1, *(mark.sequence for mark in marks)})
    return frozenset({marks[last_done].sequence, *(mark.sequence for mark in marks[last_done + 1 :])})
