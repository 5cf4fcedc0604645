"""A process of the benchmark `transaction`: counts events by their key, in a table.

    python -m benchmarks._counter '{"hub": ..., "store": ..., "name": ..., "mode": "transaction", "counts": ...}'

With the mode "transaction", counts and checkpoint are one transaction of the store, which stays open for `sit_s`. With
"plain" the counts are in a database of their own, written batch by batch, and the checkpoint follows by its policy:
what most programs do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from evenflow import Every, Processor
from evenflow.local.database import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow import Event, OwnedPartition

TABLE = "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID"
COUNT = "INSERT INTO counts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET count = count + excluded.count"


def main(options: dict[str, Any]) -> None:
    processor = Processor(
        f"hub:{options['hub']}",
        f"sqlite:{options['store']}",
        "bench",
        instance_id=options["name"],
        checkpoint=Every(seconds=0.5),
        **options["settings"],
    )
    if options["mode"] == "transaction":
        count_in_transactions(processor, options["sit_s"])
    else:
        count_plainly(processor, options["counts"])
    processor.run()


def count_in_transactions(processor: Processor, sit_s: float) -> None:
    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        counts = Counter(event.key for event in events)
        async with partition.transaction() as tx:
            await tx.execute(TABLE)
            await tx.execute_many(COUNT, counts.items())
            await asyncio.sleep(sit_s)


def count_plainly(processor: Processor, path: str) -> None:
    database = connect(path, busy_timeout_s=5.0, full_sync=False)
    database.execute(TABLE)

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        counts = Counter(event.key for event in events)
        database.execute("BEGIN IMMEDIATE")
        database.executemany(COUNT, counts.items()).fetchall()
        database.execute("COMMIT")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
