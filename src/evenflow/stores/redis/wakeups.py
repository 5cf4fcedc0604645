"""How a Redis store wakes instances: by messages on channels, over a connection of their own.

A message may be lost, with a connection or a server, so that nothing depends on it: the next heartbeat comes anyway.
After every new connection, whoever watches is woken once, for what it may have missed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError
from evenflow.stores.redis.client import connect, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.stores.redis.options import Address

QUIET_S = 5.0
"""After so long without a message the server is asked for a sign of life."""
REST_S = 0.5
"""Between a connection that failed and the next one."""


class Listener:
    """One watch: a task that reads from its own connection until it is ended, and comes back by itself."""

    def __init__(self, address: Address, channels: Sequence[str], wake: Callable[[], None]) -> None:
        self._address = address
        self._channels = channels
        self._wake = wake
        self._ended = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._live(), name="evenflow wakes")

    def end(self) -> None:
        self._ended.set()
        self.task.cancel()

    async def _live(self) -> None:
        while not self._ended.is_set():
            with suppress(EvenflowError), translated(self._address):
                await self._listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_S):
                    await self._ended.wait()

    async def _listen(self) -> None:
        # In a cluster a message reaches every node, whichever it was given to.
        client = connect(self._address, cluster=False)
        messages = client.pubsub()
        try:
            async with asyncio.timeout(self._address.timeout_s):
                await messages.subscribe(*self._channels)
            self._call()
            while True:
                await self._read(messages)
        finally:
            await messages.aclose()
            await client.aclose()

    async def _read(self, messages: Any) -> None:
        message = await messages.get_message(timeout=QUIET_S)
        if message is None:
            await messages.ping()
            message = await messages.get_message(timeout=self._address.timeout_s)
            if message is None:
                raise TimeoutError
        if message["type"] == "message":
            self._call()

    def _call(self) -> None:
        if not self._ended.is_set():
            self._wake()
