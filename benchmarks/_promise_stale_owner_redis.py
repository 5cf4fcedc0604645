"""A group on Redis that is deleted and made again while its owner stands still."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._stale import measure_stale_owner
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from benchmarks.harness import Result


def measure() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            return measure_stale_owner("stale_owner_redis", server.url)
        finally:
            server.stop()
