"""LISTEN on a connection of its own, which reconnects by itself.

Notifications that are sent while the connection is down are lost. So the callback is also called once, with an empty
payload, whenever listening starts.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.drivers.postgresql.driver import psycopg, translated
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.drivers.postgresql.pool import ConnectionFactory, PooledConnection

RECONNECT_S = 0.1
CHECK_EVERY_S = 10.0
CHECK_S = 3.0
"""A connection that does not answer within this time is closed."""


class NotificationListener:
    def __init__(self, factory: ConnectionFactory, channel: str, notified: Callable[[str], None]) -> None:
        self._factory = factory
        self._channel = channel
        self._notified = notified
        self._task: asyncio.Task[None] | None = None
        self._line: PooledConnection | None = None
        self.is_listening = False

    def begin(self) -> None:
        """Starts listening, until `aclose`. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="evenflow-listen")

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            if self._line is not None:
                self._line.cut()
            await asyncio.wait([task])

    async def _listen(self) -> None:
        """Reconnects after errors, as often as the factory allows. The next request reports a lasting problem."""
        while not self._factory.closed.is_set():
            with suppress(EvenflowError, psycopg.Error, OSError):
                await self._listen_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(RECONNECT_S):
                    await self._factory.closed.wait()

    async def _listen_once(self) -> None:
        self._line = line = await self._factory.open()
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        line.connection.add_notify_handler(lambda notify: self._notified(notify.payload))
        try:
            with translated(self._factory.address):
                await line.do(lambda connection: connection.execute(f"LISTEN {self._channel}".encode()), CHECK_S)
            self.is_listening = True
            self._notified("")
            while line.listen():
                self._dispatch(line)
                descriptor = line.connection.pgconn.socket
                loop.add_reader(descriptor, news.set)
                try:
                    async with asyncio.timeout(CHECK_EVERY_S):
                        await news.wait()
                except TimeoutError:
                    loop.remove_reader(descriptor)
                    with translated(self._factory.address):
                        await line.do(lambda connection: connection.execute(b"SELECT 1"), CHECK_S)
                finally:
                    loop.remove_reader(descriptor)
                news.clear()
        finally:
            self.is_listening = False
            line.drop()
            self._line = None

    def _dispatch(self, line: PooledConnection) -> None:
        while (notify := line.connection.pgconn.notifies()) is not None:
            self._notified(notify.extra.decode())
