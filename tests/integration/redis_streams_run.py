"""A processor in this process, on streams of a real Redis server."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from evenflow import Event, Processor
from evenflow.sources.redis_streams.source import RedisStreamsServer, RedisStreamsSource
from evenflow.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow import OwnedPartition
    from evenflow.signals import Signal
    from tests.servers.redis import RedisServer

LONG_S = 60.0
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 5.0, "margin_s": 0.5, "refresh_s": 0.5}
SAFE = ("--appendonly", "yes", "--appendfsync", "always")
_numbers = count(1)


def opened(
    server: RedisServer, partitions: int | None = 1, name: str | None = None, **options: Any
) -> RedisStreamsSource:
    fresh = name or f"homes{next(_numbers)}"
    return RedisStreamsSource(
        RedisStreamsServer(server.place.address, server.port), fresh, partitions=partitions, **options
    )


def key(source: RedisStreamsSource, partition: int = 0) -> str:
    return source._key(str(partition))


async def until(look: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(LONG_S):
            while not look():  # noqa: ASYNC110 - what it waits for comes from many sides
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


class Run:
    def __init__(self, source: RedisStreamsSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.handled: list[tuple[str, bytes]] = []
        self.keys: dict[str, str] = {}
        self.signals: list[Signal] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.store = store or MemoryStore()
        self.processor = Processor(source, self.store, "group", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.signals.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        await self.may_go_on.wait()
        self.handled += [(partition.id, event.body) for event in events]
        self.keys |= {event.key: partition.id for event in events if event.key is not None}

    def bodies(self, partition: int = 0) -> list[bytes]:
        return [body for name, body in self.handled if name == str(partition)]

    def told(self, kind: type[Signal]) -> list[Any]:
        return [one for one in self.signals if isinstance(one, kind)]


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def events(start: int, stop: int) -> list[Event]:
    return [Event(body) for body in texts(start, stop)]
