"""A Redis replica that lags 0.3 s takes over under load, while partitions move: ten times, there and back."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._failovers import measure_failovers
from tests.servers.processes import wait_until
from tests.servers.redis import Endpoint, RedisServer

if TYPE_CHECKING:
    from benchmarks.harness import Result


class Servers:
    """Clients and the replica each have an address that follows the master."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._master, self._replica = (RedisServer(folder / name).start() for name in ("one", "two"))
        for server in (self._master, self._replica):
            ends.callback(server.stop)
        self._between = ends.enter_context(Endpoint(self._master.port))
        self._endpoint = ends.enter_context(Endpoint(self._master.port))
        self._held = ends.enter_context(ExitStack())
        self.url = f"redis://127.0.0.1:{self._endpoint.port}"
        self._follow()

    def catch_up(self) -> None:
        wait_until(lambda: self._replica.offset == self._master.offset, "the replica to have it all")

    def stop_following(self) -> None:
        self._held.enter_context(self._between.holding())

    def promote(self) -> None:
        self._master.kill()
        self._between.cut()
        self._replica.ask("REPLICAOF", "NO", "ONE")
        self._held.close()
        self._master, self._replica = self._replica, self._master.start()
        for address in (self._endpoint, self._between):
            address.point_to(self._master.port)
        self._follow()

    def _follow(self) -> None:
        self._replica.ask("REPLICAOF", "127.0.0.1", self._between.port)
        wait_until(lambda: self._replica.ask("INFO", "replication")["master_link_status"] == "up", "the first copy")


def measure() -> Result:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        return measure_failovers("replica_redis", Servers(Path(folder), ends))
