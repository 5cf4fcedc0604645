"""A Redis server forgets everything while three instances handle 2,000 events/s: FLUSHALL, and a restart without
persistence."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._emptied import measure_emptied
from benchmarks.harness import Result
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from benchmarks._fleet import Fleet


def measure() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            flushed = measure_emptied("emptied_redis (FLUSHALL)", server.url, partial(_flush, server))
            restarted = measure_emptied("emptied_redis (restart)", server.url, partial(_restart, server))
        finally:
            server.stop()
    return Result([*flushed.figures, *restarted.figures], [*flushed.bars, *restarted.bars])


def _flush(server: RedisServer, _: Fleet) -> None:
    server.ask("FLUSHALL")


def _restart(server: RedisServer, _: Fleet) -> None:
    server.kill()
    server.start()
