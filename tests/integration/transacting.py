"""Processors in this process whose handlers write through `partition.transaction()`, while somebody makes trouble."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from evenflow import Event, Every, Hub, Processor
from evenflow.model import Group
from evenflow.urls import open_store
from tests.integration.scene import TIMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow import OwnedPartition
    from tests.integration.scene import Scene

PARTITIONS = 4
ROUNDS = 40
PATIENCE_S = 60.0
INSERT = "INSERT INTO seen (partition, sequence, epoch) VALUES ($1, $2, $3)"


async def run_fleet(scene: Scene, trouble: Iterator[None]) -> None:
    """Two of them, until all that was sent is in the table."""
    scene.make_hub(PARTITIONS)
    async with Hub(scene.hub) as hub:
        processors = [_processor(hub, scene.store_url, name) for name in ("one", "two")]
        async with processors[0], processors[1]:
            for number in range(ROUNDS):
                await asyncio.gather(
                    *(hub.send([Event(b"x")] * 5, partition=one) for one in range(PARTITIONS)), asyncio.sleep(0.1)
                )
                if number % 5 == 4:
                    await asyncio.to_thread(next, trouble, None)
            await _until_caught_up(hub, scene)


def _processor(hub: Hub, url: str, name: str) -> Processor:
    settings: dict[str, Any] = {"instance_id": name, "checkpoint": Every(seconds=0.5), **TIMES}
    processor = Processor(hub, url, "alerts", **settings)

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        async with partition.transaction() as tx:
            await tx.execute_many(INSERT, [(partition.id, event.sequence, partition.epoch) for event in events])

    return processor


async def _until_caught_up(hub: Hub, scene: Scene) -> None:
    store = open_store(scene.look_url)
    group = Group("local", scene.hub.name, "alerts")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = {one.partition: one.position.sequence for one in await store.checkpoints(group)}  # type: ignore[attr-defined]
                if found == scene.newest():
                    return
                await asyncio.sleep(0.1)
    finally:
        await store.aclose()
