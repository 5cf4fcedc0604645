"""One instance of a group that processors of more than one make share, in Azure's own blobs.

    python -m benchmarks._interop evenflow|official '{"name": ..., "account": ..., "blobs": ..., ...}'

It writes down when each call of its handler began and ended, by the clock that all processes of a machine share, and
which checkpoints it asked for and got. `tests/node/processor.mjs` does the same in JavaScript.
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
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from benchmarks._served import GROUP, VARIABLE
from evenflow import Every, Processor
from evenflow.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition

MARK_S = 1.0


class Account:
    """`c PARTITION FIRST LAST BEGAN ENDED`: a call. `x ...`: one that was cut short. `a` and `d PARTITION SEQUENCE AT`:
    a checkpoint that was asked for, and that is done."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def call(self, partition: str, first: object, last: object, work_s: float) -> None:
        began_s, what = monotonic(), "x"
        try:
            await asyncio.sleep(work_s)
            what = "c"
        finally:
            self._write(f"{what} {partition} {first} {last} {began_s:.6f} {monotonic():.6f}")

    def asked(self, partition: str, sequence: object) -> None:
        self._write(f"a {partition} {sequence} {monotonic():.6f}")

    def done(self, partition: str, sequence: object) -> None:
        self._write(f"d {partition} {sequence} {monotonic():.6f}")

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def evenflow(options: dict[str, Any], account: Account) -> None:
    store = open_store(options["store"])
    commit = store.commit

    async def written_down(group: Any, checkpoints: Sequence[Any]) -> Any:
        for record in checkpoints:
            account.asked(record.partition, record.position.sequence)
        outcomes = await commit(group, checkpoints)
        for record, outcome in zip(checkpoints, outcomes, strict=True):
            if outcome.ok:
                account.done(record.partition, record.position.sequence)
        return outcomes

    store.commit = written_down  # type: ignore[method-assign]
    processor = Processor(
        f"eventhubs:///hub?connection_string_env={VARIABLE}",
        store,
        GROUP,
        instance_id=options["name"],
        checkpoint=Every(seconds=MARK_S),
        heartbeat_s=options["heartbeat_s"],
        ttl_s=options["ttl_s"],
    )

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        await account.call(partition.id, events[0].sequence, events[-1].sequence, options["work_s"])

    wait_for_go()
    processor.run()


async def official(options: dict[str, Any], account: Account) -> None:
    marked_s: dict[str, float] = {}

    async def handle(context: Any, events: list[Any]) -> None:
        name, last = context.partition_id, events[-1].sequence_number
        await account.call(name, events[0].sequence_number, last, options["work_s"])
        if monotonic() - marked_s.get(name, 0.0) >= MARK_S:
            marked_s[name] = monotonic()
            account.asked(name, last)
            await context.update_checkpoint(events[-1])
            account.done(name, last)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    blobs = BlobCheckpointStore.from_connection_string(options["blobs"], options["container"])
    client = EventHubConsumerClient.from_connection_string(
        os.environ[VARIABLE],
        GROUP,
        checkpoint_store=blobs,
        load_balancing_interval=options["interval_s"],
        partition_ownership_expiration_interval=options["expiry_s"],
    )
    wait_for_go()
    async with blobs, client:
        receiving = asyncio.create_task(client.receive_batch(handle, starting_position="-1"))
        await stop.wait()
        await client.close()
        await receiving


def wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    kind, given = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(filename=f"{given['account']}.log", level=logging.INFO)
    logging.getLogger("azure").setLevel(logging.ERROR)
    if kind == "evenflow":
        evenflow(given, Account(given["account"]))
    else:
        asyncio.run(official(given, Account(given["account"])))
