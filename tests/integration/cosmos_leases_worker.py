"""A process with one processor over a change feed, with its leases in Cosmos DB, which writes down what it handles.

    python -m tests.integration.cosmos_leases_worker SOURCE STORE NAME DIARY

Each line of DIARY is the partition and the id of a document.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow import Processor

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition

GROUP, HEARTBEAT_S, TTL_S = "feed", 0.5, 4.0


def main(source: str, store: str, name: str, diary: Path) -> None:
    processor = Processor(source, store, GROUP, instance_id=name, heartbeat_s=HEARTBEAT_S, ttl_s=TTL_S)
    with diary.open("a", buffering=1) as lines:

        @processor.on_event
        async def handle(event: Event, partition: OwnedPartition) -> None:
            lines.write(f"{partition.id} {json.loads(event.body)['id']}\n")

        processor.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
