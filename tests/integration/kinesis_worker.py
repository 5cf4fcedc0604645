"""A process with one processor over a stream of Kinesis, which writes down what it handles.

    python -m tests.integration.kinesis_worker SOURCE STORE NAME DIARY

Each line of DIARY is a time of the machine's own clock, the shard, the key and the body of an event.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow import Processor
from tests.integration.scene import TIMES

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition


def main(source: str, store: str, name: str, diary: Path) -> None:
    times: dict[str, Any] = TIMES
    processor = Processor(source, store, "group", instance_id=name, **times)
    with diary.open("a", buffering=1) as lines:

        @processor.on_event
        async def handle(event: Event, partition: OwnedPartition) -> None:
            lines.write(f"{time.monotonic()} {partition.id} {event.key} {event.body.decode()}\n")

        processor.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
