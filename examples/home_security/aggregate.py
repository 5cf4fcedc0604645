"""The group `aggregate`: counts per home and minute, and writes what it has counted every few seconds.

    python -m examples.home_security.aggregate FOLDER NAME

Checkpoints are manual, since a report that is counted in memory alone is not handled yet: one is made after the blobs
that cover it were written (keeping.py).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow import EvenflowError, Manual, PartitionHalted
from examples.home_security.consuming import Consumer, no_events_fault, run_consumer
from examples.home_security.history import HubHistory
from examples.home_security.keeping import Keeper
from examples.home_security.places import AGGREGATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition
    from examples.home_security.places import Place


class Aggregation:
    """One partition in the hands of this instance: counts what comes, and writes when it is time."""

    def __init__(self, consumer: Consumer, partition: OwnedPartition) -> None:
        self._consumer = consumer
        self._partition = partition
        self._keeper = Keeper(consumer.blobs, partition.id, partition.epoch, HubHistory(consumer.place.hub))
        # Held while the counts are read or changed. A write takes time, and no other may overtake it.
        self._turn = asyncio.Lock()
        self._made_ms: list[int] = []
        self._accounted_for = -1
        self._written_s = time.monotonic()
        self._timer: asyncio.Task[None] | None = None
        self._halted: PartitionHalted | None = None

    async def start(self) -> None:
        sequence = self._partition.position.sequence
        self._consumer.began(self._partition)
        try:
            await self._keeper.start(sequence if sequence is not None else -1)
        except PartitionHalted as error:
            # A hook is retried endlessly, so the first call of the handler stops the partition instead.
            self._halted = error
            return
        self._timer = asyncio.create_task(self._write_now_and_then())

    async def handle(self, events: Sequence[Event]) -> None:
        if self._halted is not None:
            raise self._halted
        async with self._turn:
            with no_events_fault():
                self._made_ms += self._keeper.add(events)
                is_due = self._is_due
                if is_due:
                    await self._keep()
            self._account_for(events)
            if is_due:
                await self._checkpoint()

    async def stop(self) -> None:
        """Write the counts up to now, so that a planned move repeats nothing."""
        if self._timer is None:
            return
        self._timer.cancel()
        with suppress(asyncio.CancelledError):
            await self._timer
        async with self._turn:
            await self._write()

    def _account_for(self, events: Sequence[Event]) -> None:
        """Called before the checkpoint: no other instance will handle, or account for, events before it. Each event is
        accounted for once, although a call whose checkpoint fails is repeated."""
        news = [event for event in events if event.sequence is not None and event.sequence > self._accounted_for]
        if news:
            self._consumer.handled(news, self._partition)
            self._accounted_for = news[-1].sequence or 0

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._written_s >= self._consumer.write_s

    async def _write(self) -> None:
        await self._keep()
        await self._checkpoint()

    async def _keep(self) -> None:
        if self._keeper.is_dirty:
            await self._keeper.write()
            self._consumer.delays.note(self._made_ms)
            self._made_ms = []

    async def _checkpoint(self) -> None:
        """Inside a call it covers the events of that call, too; outside, those of all calls that have returned. So
        there may be events to mark although there was nothing to write."""
        await self._partition.checkpoint()
        self._written_s = time.monotonic()

    async def _write_now_and_then(self) -> None:
        """Writes what the last calls have left while no call comes."""
        while True:
            await asyncio.sleep(self._consumer.write_s / 4)
            async with self._turn:
                if self._is_due:
                    # The next call raises the same error where evenflow handles it.
                    with suppress(EvenflowError):
                        await self._write()


def make_consumer(place: Place, name: str) -> Consumer:
    consumer = Consumer(place, AGGREGATE, name, Manual())
    processor = consumer.processor
    owned: dict[tuple[str, int], Aggregation] = {}

    @processor.on_partition_start
    async def start(partition: OwnedPartition) -> None:
        aggregation = Aggregation(consumer, partition)
        await aggregation.start()
        owned[partition.id, partition.epoch] = aggregation

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        await owned[partition.id, partition.epoch].handle(events)

    @processor.on_partition_stop
    async def stop(partition: OwnedPartition, reason: str) -> None:
        await owned.pop((partition.id, partition.epoch)).stop()

    return consumer


if __name__ == "__main__":
    run_consumer(make_consumer)
