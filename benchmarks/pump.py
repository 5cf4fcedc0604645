"""Events per second through a processor with one partition, against a bare loop over the same Reader.

The handlers do nothing; checkpoints are written every second. The ways take turns, each reading the whole log from its
beginning, so that whatever else the machine does hits all of them. A turn begins with the first event handled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.harness import Result, at_least, figure, say
from evenflow import Every, Hub, Processor
from evenflow.model import BEGINNING
from evenflow.sources.hub import HubSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow import Event, OwnedPartition

EVENT_BYTES = 200
BATCH_EVENTS = 1_000
EVENTS = 400_000
TURNS = 7
READ_BYTES = 4 * 1024 * 1024
LIMITS = {"on_batch": 0.85, "async on_event": 0.4, "plain on_event": 0.25}


def run() -> Result:
    logging.disable(logging.CRITICAL)
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(measure(Path(folder)))


async def measure(folder: Path) -> Result:
    bodies = [os.urandom(EVENT_BYTES) for _ in range(BATCH_EVENTS)]
    async with Hub.create(folder / "hub", partitions=1) as hub:
        async with hub.producer() as producer:
            for _ in range(EVENTS // BATCH_EVENTS):
                await producer.send(bodies)
        ways: dict[str, Callable[[], Awaitable[float]]] = {
            "bare loop": lambda: bare(hub),
            "on_batch": lambda: through(hub, Batches()),
            "async on_event": lambda: through(hub, AsyncEvents()),
            "plain on_event": lambda: through(hub, PlainEvents()),
        }
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS):
            say(f"turn {turn + 1} of {TURNS} ...")
            for name, way in ways.items():
                samples[name].append(EVENTS / await way())
    figures = [figure(name, rates, "events/s") for name, rates in samples.items()]
    base = median(samples["bare loop"])
    bars = [at_least(f"{name} / bare loop", median(samples[name]) / base, limit) for name, limit in LIMITS.items()]
    return Result(figures, bars)


async def bare(hub: Hub) -> float:
    source = HubSource(hub)
    reader = await source.open("0", BEGINNING, epoch=1)
    seen = 0
    started_s = perf_counter()
    while seen < EVENTS:
        batch = await reader.read(BATCH_EVENTS, READ_BYTES, 1.0)
        seen += len(batch.events)
    taken_s = perf_counter() - started_s
    await reader.aclose()
    await source.aclose()
    return taken_s


class Counting:
    """The smallest handler that knows when it has seen everything."""

    def __init__(self) -> None:
        self.left = EVENTS
        self.started_s = 0.0
        self.taken_s = 0.0
        self.done = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        self.started_s = perf_counter()

    def finish(self) -> None:
        self.taken_s = perf_counter() - self.started_s
        self._loop.call_soon_threadsafe(self.done.set)


class Batches(Counting):
    def give_to(self, processor: Processor) -> None:
        processor.on_batch(self.handle)

    async def handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.left -= len(events)
        if not self.left:
            self.finish()


class AsyncEvents(Counting):
    def give_to(self, processor: Processor) -> None:
        processor.on_event(self.handle)

    async def handle(self, event: Event, partition: OwnedPartition) -> None:
        if event.sequence == EVENTS - 1:
            self.finish()


class PlainEvents(Counting):
    def give_to(self, processor: Processor) -> None:
        processor.on_event(self.handle)

    def handle(self, event: Event, partition: OwnedPartition) -> None:
        if event.sequence == EVENTS - 1:
            self.finish()


async def through(hub: Hub, counting: Batches | AsyncEvents | PlainEvents) -> float:
    with tempfile.TemporaryDirectory() as folder:
        processor = Processor(hub, f"sqlite:{folder}", "bench", checkpoint=Every(seconds=1))
        counting.give_to(processor)
        processor.on_partition_start(lambda partition: counting.begin())
        async with processor:
            await counting.done.wait()
    return counting.taken_s
