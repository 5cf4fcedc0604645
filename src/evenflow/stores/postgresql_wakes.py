"""Wake-ups of a PostgreSQL store: LISTEN on a connection of its own, which comes back by itself.

What is announced while nobody listens is lost; so everybody is woken once whenever listening begins.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import EvenflowError
from evenflow.stores.postgresql_driver import psycopg, translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import Group
    from evenflow.stores.postgresql_lines import Door, Line

AGAIN_S = 0.1
CHECK_EVERY_S = 10.0
CHECK_S = 3.0
"""A connection that does not answer for so long is given up."""


class _Watch(NamedTuple):
    group: str
    instance: str
    wake: Callable[[], None]


def group_key(group: Group) -> str:
    """As the function `wake` of the schema says it."""
    text = f"{group.namespace}\n{group.hub}\n{group.name}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class Wakes:
    def __init__(self, door: Door, channel: str) -> None:
        self._door = door
        self._channel = channel
        self._watches: list[_Watch] = []
        self._task: asyncio.Task[None] | None = None
        self._line: Line | None = None

    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        watch = _Watch(group_key(group), instance, wake)
        self._watches.append(watch)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="evenflow-listen")

        def end() -> None:
            # By identity: two watches may be equal.
            self._watches[:] = [one for one in self._watches if one is not watch]

        return end

    async def aclose(self) -> None:
        self._watches.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            if self._line is not None:
                self._line.cut()
            await asyncio.wait([task])

    async def _listen(self) -> None:
        """Whatever goes wrong is told by the next beat; here it is only tried again, as often as the door allows."""
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
            self._ring("", "")
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
            line.drop()
            self._line = None

    def _tell(self, line: Line) -> None:
        while (notify := line.connection.pgconn.notifies()) is not None:
            self._told(notify.extra.decode())

    def _told(self, payload: str) -> None:
        group, _, instance = payload.partition(" ")
        self._ring(group, instance)

    def _ring(self, group: str, instance: str) -> None:
        """Without a group all are meant, without an instance all of the group."""
        for watch in list(self._watches):
            if group in ("", watch.group) and instance in ("", watch.instance):
                watch.wake()
