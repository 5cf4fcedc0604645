"""Async handlers that run beyond `handler_timeout_s`: some let themselves be cancelled, some complete all the same."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.harness import Result, at_least, at_most, figure
from evenflow import Event, Every, Hub, OwnedPartition, Processor, Retry

EVENTS, PARTITIONS, ATTEMPTS = 60, 4, 3
LIMIT_S, HANG_S = 0.05, 0.15


class Calls:
    """What became of the calls, by event: a third hang, a third hang and complete although cancelled."""

    def __init__(self) -> None:
        self.starts: Counter[int] = Counter()
        self.completed: Counter[int] = Counter()
        self.cancelled: Counter[int] = Counter()

    async def handle(self, event: Event, partition: OwnedPartition) -> None:
        number = int(event.body)
        self.starts[number] += 1
        if number % 3 == 0:
            return
        try:
            await asyncio.sleep(HANG_S)
        except asyncio.CancelledError:
            self.cancelled[number] += 1
            if number % 3 == 1:
                raise
        self.completed[number] += 1


def measure() -> Result:
    calls = Calls()
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_serve(Path(folder), calls))
    finally:
        logging.disable(logging.NOTSET)
    hanging = [number for number in range(EVENTS) if number % 3 == 1]
    late = [number for number in range(EVENTS) if number % 3 == 2]
    uncancelled = sum(calls.starts[number] - calls.cancelled[number] for number in (*hanging, *late))
    return Result(
        [
            figure("handler_timeout: calls started", [calls.starts.total()], "calls"),
            figure("handler_timeout: calls cancelled", [calls.cancelled.total()], "calls"),
        ],
        [
            at_least("handler_timeout: events started", len(calls.starts), EVENTS),
            at_most("handler_timeout: calls that were not cancelled", uncancelled, 0),
            at_most("handler_timeout: most starts of an event", max(calls.starts.values()), ATTEMPTS),
            at_least(
                "handler_timeout: fewest starts of a hanging one", min(calls.starts[n] for n in hanging), ATTEMPTS
            ),
            at_most("handler_timeout: completions counted as failures", sum(calls.starts[n] - 1 for n in late), 0),
        ],
    )


async def _serve(folder: Path, calls: Calls) -> None:
    async with Hub.create(folder / "hub", partitions=PARTITIONS) as hub:
        async with hub.producer() as producer:
            for number in range(EVENTS):
                await producer.send([str(number).encode()], partition=str(number % PARTITIONS))
        processor = Processor(
            hub,
            f"sqlite:{folder / 'leases'}",
            "bench",
            checkpoint=Every(seconds=0.2),
            handler_timeout_s=LIMIT_S,
            retry=Retry(attempts=ATTEMPTS, first_s=0.01, most_s=0.02),
            on_poison="skip",
            breaker=None,
        )
        processor.on_event(calls.handle)
        await processor.serve(until="caught_up", give_up_s=30.0)
