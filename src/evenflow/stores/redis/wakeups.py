"""Wake-ups of a Redis store: pub/sub messages, received on a separate connection.

Messages may be lost with a connection or a server, so nothing depends on them: the next heartbeat comes anyway. After
every reconnect the watcher is woken once, because it may have missed messages.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError
from evenflow.stores.redis.client import connect, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.stores.redis.options import RedisOptions

PING_AFTER_S = 5.0
"""After this long without a message, the connection is checked with a PING."""
RECONNECT_S = 0.5
"""The pause before reconnecting."""


class ChannelListener:
    """One watch: a task that reads from its own connection until it is ended, and reconnects by itself."""

    def __init__(self, options: RedisOptions, channels: Sequence[str], wake: Callable[[], None]) -> None:
        self._options = options
        self._channels = channels
        self._wake = wake
        self._ended = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(), name="evenflow wakes")

    def end(self) -> None:
        self._ended.set()
        self.task.cancel()

    async def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(EvenflowError), translated(self._options):
                await self._listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(RECONNECT_S):
                    await self._ended.wait()

    async def _listen(self) -> None:
        # In a cluster every node receives every message.
        client = connect(self._options, cluster=False)
        messages = client.pubsub()
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await messages.subscribe(*self._channels)
            self._notify()
            while True:
                await self._read(messages)
        finally:
            await messages.aclose()
            await client.aclose()

    async def _read(self, messages: Any) -> None:
        message = await messages.get_message(timeout=PING_AFTER_S)
        if message is None:
            await messages.ping()
            message = await messages.get_message(timeout=self._options.timeout_s)
            if message is None:
                raise TimeoutError
        if message["type"] == "message":
            self._notify()

    def _notify(self) -> None:
        if not self._ended.is_set():
            self._wake()
