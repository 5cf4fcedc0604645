"""A processor in this process, on a stream of a real nats-server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import nats

from evenflow import Event, Processor
from evenflow.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from nats.js.manager import JetStreamManager

    from evenflow import OwnedPartition
    from evenflow.signals import Signal
    from evenflow.sources.nats.source import NatsSource
    from tests.servers.nats import NatsServer

LONG_S = 60.0
TIMES: dict[str, Any] = {"heartbeat_s": 0.2, "ttl_s": 5.0, "margin_s": 0.5, "refresh_s": 0.5}


@asynccontextmanager
async def managing(server: NatsServer) -> AsyncIterator[JetStreamManager]:
    client = await nats.connect(f"nats://{server.address}")
    try:
        yield client.jsm()
    finally:
        await client.close()


async def until(look: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(LONG_S):
            while not look():  # noqa: ASYNC110 - what it waits for comes from many sides
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


class Run:
    def __init__(self, source: NatsSource, store: MemoryStore | None = None, **options: Any) -> None:
        self.handled: list[tuple[str, bytes, str | None]] = []
        self.signals: list[Signal] = []
        self.store = store or MemoryStore()
        self.processor = Processor(source, self.store, "group", **{**TIMES, **options})
        self.processor.on_batch(self._handle)
        self.processor.listen(self.signals.append)

    async def _handle(self, events: Sequence[Event], partition: OwnedPartition) -> None:
        self.handled += [(partition.id, event.body, event.key) for event in events]

    def bodies(self, partition: str) -> list[bytes]:
        return [body for name, body, _ in self.handled if name == partition]


def texts(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]
