"""The application of these deployments; the environment names its source, its store and its group."""

from __future__ import annotations

import os

from evenflow import Event, OwnedPartition, Processor

processor = Processor(os.environ["SOURCE_URL"], os.environ["STORE_URL"], os.environ.get("GROUP", "alerts"), stop_s=30.0)


@processor.on_event
async def handle(event: Event, partition: OwnedPartition) -> None:
    print(f"partition {partition.id}, event {event.sequence}: {event.key}", flush=True)
