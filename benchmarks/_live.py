"""An instance over a local Event Hubs, of this project or Azure's own processor, that writes down what it handled.

    python -m benchmarks._live evenflow|official '{"hub": ..., "store": ..., "name": ..., "account": ...}'

The connection string is in the environment. It says `ready` when everything is loaded, and begins when it is sent a
line, so that how long Python takes to start is in no figure. Both mark progress once a second, and look at the store
once a second; an owner that falls silent is dead after six.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

from azure.eventhub.aio import EventHubConsumerClient

from benchmarks._served import GROUP, VARIABLE
from evenflow import Every, Processor
from evenflow.compat.checkpointstore.aio import EvenflowCheckpointStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition

INTERVAL_S = 1.0
EXPIRY_S = 6.0
MARK_S = 1.0


class Account:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, partition: str, epoch: int, first: object, last: object) -> None:
        os.write(self._file, f"{partition} {epoch} {first} {last} {monotonic():.6f}\n".encode())


def evenflow(options: dict[str, Any], account: Account) -> None:
    processor = Processor(
        f"eventhubs:///{options['hub']}?connection_string_env={VARIABLE}",
        options["store"],
        GROUP,
        instance_id=options["name"],
        checkpoint=Every(seconds=MARK_S),
        heartbeat_s=INTERVAL_S,
        ttl_s=EXPIRY_S,
    )

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        account.write(partition.id, partition.epoch, events[0].sequence, events[-1].sequence)

    wait_for_go()
    processor.run()


async def official(options: dict[str, Any], account: Account) -> None:
    marked_s: dict[str, float] = {}

    async def handle(context: Any, events: list[Any]) -> None:
        account.write(context.partition_id, 0, events[0].sequence_number, events[-1].sequence_number)
        if monotonic() - marked_s.get(context.partition_id, 0.0) >= MARK_S:
            marked_s[context.partition_id] = monotonic()
            await context.update_checkpoint(events[-1])

    pace: dict[str, Any] = {
        "load_balancing_interval": INTERVAL_S,
        "partition_ownership_expiration_interval": EXPIRY_S,
    }
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with EvenflowCheckpointStore(options["store"], **pace) as store:
        client = EventHubConsumerClient.from_connection_string(
            os.environ[VARIABLE], GROUP, checkpoint_store=store, **pace
        )
        wait_for_go()
        async with client:
            receiving = asyncio.create_task(client.receive_batch(handle, starting_position="-1"))
            await stop.wait()
        await receiving


def wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    kind, given = sys.argv[1], json.loads(sys.argv[2])
    if kind == "evenflow":
        evenflow(given, Account(given["account"]))
    else:
        asyncio.run(official(given, Account(given["account"])))
