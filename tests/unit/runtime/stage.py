"""A stage for tests of the runtime: virtual time, and a store and a source in memory.

Whatever waits for a time is over at once, so a test may let hours pass. Threads do not know of virtual time: what
needs them runs on a real loop.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow import Event, Processor, Signal, StoreUnavailable
from evenflow.model import Checkpoint, Group, Lease, Position
from evenflow.runtime.parts import Handlers, Parts
from evenflow.runtime.settings import Settings
from evenflow.runtime.threads import Threads
from evenflow.signals import Announcer
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from evenflow.testing.simulated.process import SimulatedClock
from evenflow.testing.simulated.threads import SimulatedThreads
from evenflow.testing.simulated.timeline import ProcessLoop, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from evenflow import OwnedPartition
    from evenflow.model import Change, Cursor, Ledger, Member, Outcome
    from evenflow.ports import Clock, Source, Store

T = TypeVar("T")
Kind = TypeVar("Kind", bound=Signal)

GROUP = Group("fake", "fake", "group")
LOOK_S = 0.01
PATIENCE_S = 600.0
WALL_S = 1_000_000_000.0


class PatchyStore(MemoryStore):
    """A store in memory that is away for some kinds of requests, as long as one says so."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.away: set[str] = set()
        self.asked: Counter[str] = Counter()

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> Ledger:
        self._ask("heartbeat")
        return await super().heartbeat(group, member, since)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        self._ask("swap")
        return await super().swap(group, changes)

    async def seal(
        self, group: Group, partition: str, epoch: int, default: Checkpoint, *, unplanned: bool = False
    ) -> Checkpoint:
        self._ask("seal")
        return await super().seal(group, partition, epoch, default, unplanned=unplanned)

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint]) -> Sequence[Outcome]:
        self._ask("commit")
        return await super().commit(group, checkpoints)

    def _ask(self, kind: str) -> None:
        self.asked[kind] += 1
        if kind in self.away:
            raise StoreUnavailable(f"no {kind} for now")


EVERYTHING = {"heartbeat", "swap", "seal", "commit"}


class Stage:
    def __init__(self) -> None:
        self.timeline = Timeline()
        self.store = PatchyStore(wall=lambda: WALL_S + self.timeline.now_s)
        self.source = FakeSource(2)
        self.happened: list[Signal] = []
        self._loops: list[ProcessLoop] = []
        self._rng = random.Random(1)
        self.threads: list[SimulatedThreads] = []
        """Of each clock that was given out, in turn."""
        self.loop = self.new_process()

    # --- time
    def new_process(self) -> ProcessLoop:
        """A loop of its own, which can be stalled and killed."""
        loop = ProcessLoop(self.timeline)  # type: ignore[abstract]
        self._loops.append(loop)
        return loop

    def clock(self, loop: ProcessLoop | None = None, now: Callable[[], float] | None = None) -> Clock:
        threads = SimulatedThreads(self.timeline, loop or self.loop, self._rng, calm=True)
        self.threads.append(threads)
        return SimulatedClock(now or (loop or self.loop).time, self._rng, threads, skew_s=0.0)

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    def play(self, scene: Coroutine[Any, Any, T]) -> T:
        task = self.loop.start(scene)
        end_s = self.now_s + 100 * PATIENCE_S
        while not task.done():
            assert not self.timeline.is_empty, "the scene waits for something that never comes"
            assert self.now_s < end_s, "the scene never ends"
            self.timeline.run_until(self.timeline._heap[0][0])
        return task.result()

    def close(self) -> None:
        """Nothing stays behind, and nothing failed unnoticed."""
        for threads in self.threads:
            threads.end()
        for loop in self._loops:
            loop.dead = False
            while loop.stalled:
                loop.resume()
        for _ in range(100):
            if not sum(loop.cancel_all() for loop in self._loops):
                break
            self.timeline.run_until(self.now_s + 0.1)
        assert [error for loop in self._loops for error in loop.errors] == []

    # --- what is on it
    def processor(
        self, handler: Any = None, *, loop: ProcessLoop | None = None, batch: bool = False, **options: Any
    ) -> Processor:
        processor = Processor(
            **{
                "source": self.source,
                "store": self.store,
                "group": "group",
                "clock": self.clock(loop),
                **options,
            }
        )
        processor.listen(self.happened.append)
        if handler is not None:
            (processor.on_batch if batch else processor.on_event)(handler)
        return processor

    def parts(self, store: Store | None = None, source: Source | None = None, **options: Any) -> Parts:
        announce = Announcer(lambda: WALL_S + self.now_s)
        announce.listen(self.happened.append)
        settings = Settings(group="group", **options)
        return Parts(
            GROUP,
            "made-0",
            source or self.source,
            store or self.store,
            self.clock(),
            settings,
            Handlers(),
            announce,
            Threads("test"),
            asyncio.Event(),
        )

    def fill(self, count: int, *partitions: str) -> None:
        """So many events into each of these, or of all partitions."""
        for partition in partitions or self.source.partition_ids:
            for _ in range(count):
                self.source.append(partition, b"x")

    def told(self, kind: type[Kind]) -> list[Kind]:
        return [one for one in self.happened if isinstance(one, kind)]

    # --- what the store knows
    async def records(self) -> dict[str, Checkpoint]:
        return {record.partition: record for record in await self.store.checkpoints(GROUP)}

    async def positions(self) -> dict[str, int | None]:
        return {partition: record.position.sequence for partition, record in (await self.records()).items()}

    async def leases(self) -> dict[str, Lease]:
        ledger = await self.store.peek(GROUP)
        return {} if ledger is None else {lease.partition: lease for lease in ledger.leases}


class Seen(list[tuple[str, int]]):
    """A handler that keeps what it was called with: (partition, sequence)."""

    async def __call__(self, event: Event, partition: OwnedPartition) -> None:
        self.append((partition.id, event.sequence or 0))

    def of(self, partition: str) -> list[int]:
        return [sequence for name, sequence in self if name == partition]


async def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Look again and again, in virtual or real time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not condition():
        assert loop.time() < end_s, f"not so within {within_s} s"
        await asyncio.sleep(LOOK_S)


def at(sequence: int) -> Position:
    return Position(str(sequence), sequence)


def events(count: int, first: int = 0) -> Sequence[Event]:
    return [Event(b"x", sequence=number) for number in range(first, first + count)]
