"""Events per second through a processor with one partition, against a bare loop over the same Reader.

The handlers do nothing; checkpoints are written ten times a second. The ways take turns, each reading the whole log
from its beginning, so that whatever else the machine does hits all of them.
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
from evenflow.sources.hub.source import HubSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow import Event, OwnedPartition

EVENT_BYTES = 200
BATCH_EVENTS = 1_000
EVENTS = 2_000_000
TURNS = 7
READ_BYTES = 4 * 1024 * 1024
LOOK_S = 0.001
CHECKPOINT_S = 0.1
"""Ten times as often as one would, so that a turn of some tenths of a second has checkpoints in it."""
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
            "on_batch": lambda: through(hub, lambda processor: processor.on_batch(batches)),
            "async on_event": lambda: through(hub, lambda processor: processor.on_event(async_events)),
            "plain on_event": lambda: through(hub, lambda processor: processor.on_event(plain_events)),
        }
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(TURNS):
            say(f"turn {turn + 1} of {TURNS} ...")
            for name, way in ways.items():
                samples[name].append(EVENTS / await way())
    figures = [figure(name, rates, "events/s") for name, rates in samples.items()]
    bars = []
    for name, limit in LIMITS.items():
        # Turn by turn, since what else the machine does changes from one turn to the next.
        ratios = [rate / base for rate, base in zip(samples[name], samples["bare loop"], strict=True)]
        figures.append(figure(f"{name} / bare loop, a turn", ratios, "x"))
        bars.append(at_least(f"{name} / bare loop", median(ratios), limit))
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


async def batches(events: Sequence[Event], partition: OwnedPartition) -> None:
    pass


async def async_events(event: Event, partition: OwnedPartition) -> None:
    pass


def plain_events(event: Event, partition: OwnedPartition) -> None:
    pass


async def through(hub: Hub, give_to: Callable[[Processor], object]) -> float:
    """From when the partition starts until its last event was handled, as the processor's own progress tells."""
    with tempfile.TemporaryDirectory() as folder:
        processor = Processor(hub, f"sqlite:{folder}", "bench", checkpoint=Every(seconds=CHECKPOINT_S))
        give_to(processor)
        started = asyncio.Event()

        async def start(partition: OwnedPartition) -> None:
            started.set()

        processor.on_partition_start(start)
        async with processor:
            await started.wait()
            started_s = perf_counter()
            assert processor._engine is not None
            hold = processor._engine.coordinator.holds["0"]
            while hold.handled < EVENTS:  # noqa: ASYNC110 - an event would be work in the handler
                await asyncio.sleep(LOOK_S)
            return perf_counter() - started_s
