"""LISTEN on a connection of its own, which comes back by itself.

What is announced while nobody listens is lost; so whoever listens is told once, with an empty text, whenever listening
begins.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.drivers.postgresql.driver import psycopg, translated
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.drivers.postgresql.pool import Door, Line

AGAIN_S = 0.1
CHECK_EVERY_S = 10.0
CHECK_S = 3.0
"""A connection that does not answer for so long is given up."""


class Listener:
    def __init__(self, door: Door, channel: str, told: Callable[[str], None]) -> None:
        self._door = door
        self._channel = channel
        self._told = told
        self._task: asyncio.Task[None] | None = None
        self._line: Line | None = None
        self.is_listening = False

    def begin(self) -> None:
        """Once is enough; it goes on until it is closed."""
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
        """Whatever goes wrong is told by the next request; here it is only tried again, as often as the door allows."""
        while not self._door.closed.is_set():
            with suppress(EvenflowError, psycopg.Error, OSError):
                await self._listen_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._door.closed.wait()

    async def _listen_once(self) -> None:
        self._line = line = await self._door.open()
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        line.connection.add_notify_handler(lambda notify: self._told(notify.payload))
        try:
            with translated(self._door.address):
                await line.do(lambda connection: connection.execute(f"LISTEN {self._channel}".encode()), CHECK_S)
            self.is_listening = True
            self._told("")
            while line.listen():
                self._tell(line)
                descriptor = line.connection.pgconn.socket
                loop.add_reader(descriptor, news.set)
                try:
                    async with asyncio.timeout(CHECK_EVERY_S):
                        await news.wait()
                except TimeoutError:
                    loop.remove_reader(descriptor)
                    with translated(self._door.address):
                        await line.do(lambda connection: connection.execute(b"SELECT 1"), CHECK_S)
                finally:
                    loop.remove_reader(descriptor)
                news.clear()
        finally:
            self.is_listening = False
            line.drop()
            self._line = None

    def _tell(self, line: Line) -> None:
        while (notify := line.connection.pgconn.notifies()) is not None:
            self._told(notify.extra.decode())
