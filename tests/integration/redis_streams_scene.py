"""A scene whose partitions are Redis streams, on a server that counts their entries."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import redis

from tests.integration.programs import PATIENCE_S
from tests.integration.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from evenflow.model import PartitionId
    from tests.integration.scene import Instance
    from tests.servers.redis import RedisServer


class RedisStreamsScene(Scene):
    def __init__(self, folder: Path, server: RedisServer) -> None:
        super().__init__(folder)
        self.server = server
        self.namespace = "redis"
        self._client = redis.Redis(server.place.address, server.port, socket_timeout=PATIENCE_S)

    def close(self) -> None:
        super().close()
        self._client.close()

    def make_hub(self, partitions: int) -> None:
        self.partitions = partitions
        self.source_url = (
            f"redis-streams://{self.server.place.address}:{self.server.port}/homes?partitions={partitions}"
        )

    def send(self, events: Iterable[bytes], partition: int) -> None:
        for body in events:
            self._client.xadd(f"homes:{partition}", {"body": body})

    def send_to_all(self, events: Sequence[bytes]) -> None:
        for partition in range(self.partitions):
            self.send(events, partition)

    @contextmanager
    def load(self, every_s: float = 0.05, events: int = 3) -> Iterator[None]:
        """While the server is away nothing is sent; what it did not acknowledge may be there all the same."""
        end = Event()

        def live() -> None:
            while not end.wait(every_s):
                try:
                    self.send_to_all([b"load"] * events)
                except (redis.ConnectionError, redis.TimeoutError):
                    pass

        thread = Thread(target=live, name="load")
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(2 * PATIENCE_S)

    def wait_for_all_calls(self, instances: Iterable[Instance], after_s: float = 0.0) -> None:
        for instance in instances:
            self.wait_for_calls(instance, after_s)

    def newest(self) -> dict[PartitionId, int]:
        found: dict[PartitionId, int] = {}
        for partition in range(self.partitions):
            told: Any = self._client.xinfo_stream(f"homes:{partition}")
            if told["entries-added"]:
                found[str(partition)] = told["entries-added"] - 1
        return found
