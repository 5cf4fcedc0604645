"""An instance on a feed of all versions: it writes down every change that it handles, one line each."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from evenflow import Every, Processor
from evenflow.cli import parent_watch
from tests.integration.calls import boot_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event
    from evenflow.runtime.partition import OwnedPartition


def main(source: str, store: str, diary: str) -> None:
    logging.basicConfig(level=logging.INFO)
    parent_watch.stop_with_parent()
    lines = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    times: dict[str, Any] = {"heartbeat_s": 0.3, "ttl_s": 2.0, "margin_s": 0.5, "refresh_s": 0.5}
    processor = Processor(source, store, "alerts", checkpoint=Every(seconds=0.3), start="earliest", **times)

    @processor.on_batch
    async def handle(events: Sequence[Event], partition: OwnedPartition) -> None:
        for event in events:
            row = json.loads(event.body)["current"]
            os.write(lines, f"{boot_s()} {partition.id} {row['id']} {row['version']}\n".encode())

    processor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
