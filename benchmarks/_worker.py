"""A process of a benchmark: a consumer that writes down what it handled and when, or a producer at an even rate.

    python -m benchmarks._worker consume '{"hub": ..., "store": ..., "name": ..., "account": ...}'
    python -m benchmarks._worker produce '{"hub": ..., "rate": ..., "bytes": ...}'

Times are of the clock that all processes of the machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from evenflow import Every, Hub, Processor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition

TICK_S = 0.02


def consume(options: dict[str, Any]) -> None:
    processor = Processor(
        f"hub:{options['hub']}",
        options["store"],
        "bench",
        instance_id=options["name"],
        checkpoint=Every(seconds=1),
        **options.get("settings", {}),
    )
    account = os.open(options["account"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    pause_s, batch_s = options.get("pause_s", 0.0), options.get("batch_s", 0.0)
    pauses_s: dict[str, float] = options.get("pauses_s", {})

    if pauses_s:

        @processor.on_event
        async def handle_by_load(event: Event, partition: OwnedPartition) -> None:
            await asyncio.sleep(pauses_s[partition.id])

    elif pause_s:

        @processor.on_event
        def handle_slowly(event: Event, partition: OwnedPartition) -> None:
            sleep(pause_s)

    else:

        @processor.on_batch
        async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
            first, last = events[0].sequence, events[-1].sequence
            os.write(account, f"{partition.id} {partition.epoch} {first} {last} {monotonic():.6f}\n".encode())
            if batch_s:
                await asyncio.sleep(batch_s)

    processor.run()


async def produce(options: dict[str, Any]) -> None:
    """Every partition gets its part at every tick. What a stall held up is sent afterwards."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    body = os.urandom(options["bytes"])
    async with Hub(options["hub"]) as hub, hub.producer() as producer:
        partitions = [partition.id for partition in hub.info().partitions]
        started_s, sent = monotonic(), 0
        while not stop.is_set():
            due = int((monotonic() - started_s) * options["rate"] / len(partitions)) - sent
            if due > 0:
                batch = [body] * due
                await asyncio.gather(*(producer.send(batch, partition=partition) for partition in partitions))
                sent += due
            await asyncio.sleep(TICK_S)


if __name__ == "__main__":
    work, given = sys.argv[1], json.loads(sys.argv[2])
    if work == "consume":
        consume(given)
    else:
        asyncio.run(produce(given))
