"""A host of a change feed processor: it writes down every change that it handles, one line each.

python -m tests.integration.feed_host MONITORED LEASES DIARY NAME '{"until": "caught_up"}'
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from evenflow import Every
from evenflow.changefeed import ChangeFeedProcessor
from evenflow.cli import parent_watch
from tests.integration.calls import boot_s

if TYPE_CHECKING:
    from evenflow.changefeed import ChangeContext

TIMES: dict[str, Any] = {"heartbeat_s": 0.3, "ttl_s": 6.0, "margin_s": 0.5, "refresh_s": 0.5}
"""A host of a busy machine stands still for seconds: what then expired would be handled twice."""


def main(monitored: str, leases: str, diary: str, name: str, wishes: str = "{}") -> None:
    logging.basicConfig(level=logging.INFO)
    parent_watch.stop_with_parent()
    wish: dict[str, Any] = json.loads(wishes)
    lines = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    processor = ChangeFeedProcessor(
        monitored,
        leases,
        "mails",
        instance_name=name,
        start="beginning",
        mode="all",
        max_items=20,
        concurrency=2,
        checkpoint=Every(seconds=0.2),
        **TIMES,
    )

    @processor.on_changes
    async def handle(changes: list[dict[str, Any]], context: ChangeContext) -> None:
        for change in changes:
            document, lsn = change["current"], change["metadata"]["lsn"]
            line = f"{boot_s()} {context.lease_token} {lsn} {document['id']} {document['version']}\n"
            os.write(lines, line.encode())

    processor.run(wish.get("until"))


if __name__ == "__main__":
    main(*sys.argv[1:])
