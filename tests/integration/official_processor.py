"""azure-eventhub's own processor as its users write it, in a process of its own: one line of JSON for each call.

    python -m tests.integration.official_processor CONTAINER SECONDS

Connection strings come from the environment (HUB, BLOBS). A line is [partition, began_s, ended_s, sequence], on the
monotonic clock that all processes share. SIGTERM ends it properly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

CALL_S = 0.002


async def run(container: str, round_s: float) -> None:
    store = BlobCheckpointStore.from_connection_string(os.environ["BLOBS"], container)
    client = EventHubConsumerClient.from_connection_string(
        os.environ["HUB"], "$Default", checkpoint_store=store, load_balancing_interval=round_s
    )

    async def on_event(context: Any, event: Any) -> None:
        began_s = monotonic()
        await asyncio.sleep(CALL_S)
        print(json.dumps([context.partition_id, began_s, monotonic(), event.sequence_number]), flush=True)
        await context.update_checkpoint(event)

    async with store, client:
        receiving = asyncio.create_task(client.receive(on_event, starting_position="-1"))
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()
        await client.close()
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], float(sys.argv[2])))
