"""Connections to one database: a bounded number, opened when they are needed, given up when they fail or hang.

A request has its time. When that has passed, or whoever asked has left, the connection is cut on this side and
another one takes its place; what was on its way may still take effect, as the contract of stores allows.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.drivers.postgresql.driver import is_to_be_repeated, psycopg, translated
from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.drivers.postgresql.driver import Address, Connection, Purpose

T = TypeVar("T")

REQUEST_S = 5.0
"""An instance by default asks again sooner, by itself."""
CONNECT_S = 4.0
BACKOFF_S, BACKOFF_MOST_S = 0.05, 1.0
TRIES = 10
"""Of what was rolled back only because of others: in a database whose isolation level is stricter, whoever waited for
a lock begins anew."""


class Line:
    """One connection, for one user at a time."""

    def __init__(self, connection: Connection, purpose: Purpose) -> None:
        self.connection = connection
        self._purpose = purpose
        self._is_cut = False
        self._running: asyncio.Future[Any] | None = None

    @property
    def is_free(self) -> bool:
        """Nothing is under way on it, no transaction is open, and the server has not said farewell."""
        if self._is_cut or self.connection.closed or self.status != psycopg.pq.TransactionStatus.IDLE:
            return False
        return not _has_news(self.connection.pgconn.socket)

    def listen(self) -> bool:
        """Take in what came without being asked for; False when the server is gone."""
        if self._is_cut or self.connection.closed:
            return False
        try:
            self.connection.pgconn.consume_input()
        except psycopg.Error:
            return False
        return self.connection.pgconn.status == psycopg.pq.ConnStatus.OK

    @property
    def status(self) -> int:
        return self.connection.pgconn.transaction_status

    async def do(self, work: Callable[[Connection], Awaitable[T]], within_s: float) -> T:
        """The work is a task of its own, so that nothing of the driver is ever cancelled half-way."""
        task = asyncio.ensure_future(work(self.connection))
        self._running = task
        try:
            await asyncio.wait([task], timeout=max(0.0, within_s))
        finally:
            if not task.done():
                self.cut()
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not task.done():
            raise self._purpose.away(
                f"The {self._purpose.what} has not answered for {within_s:.1f} s; its connection is given up."
            )
        return task.result()

    def cut(self) -> None:
        """Whoever waits for an answer on it is told at once that there will be none."""
        self._is_cut = True
        if self.connection.closed:
            return
        try:
            with socket.socket(fileno=os.dup(self.connection.pgconn.socket)) as end:
                end.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            pass  # the other side was faster

    def drop(self) -> None:
        """Close it, once nobody waits on it any more."""
        if self._running is None or self._running.done():
            self.connection.pgconn.finish()
        else:
            self.cut()
            self._running.add_done_callback(lambda _: self.connection.pgconn.finish())


def _has_news(descriptor: int) -> bool:
    """A server that was not asked for anything says only that it ends the connection, or that it has."""
    look = select.poll()
    look.register(descriptor, select.POLLIN)
    return bool(look.poll(0))


class Door:
    """Opens connections, not more often than makes sense."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.closed = asyncio.Event()
        self._failures = 0
        self._not_before_s = 0.0

    async def open(self) -> Line:
        await self._rest()
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self.address.connect()
        except (EvenflowError, TimeoutError) as error:
            self._failures += 1
            pause_s = min(BACKOFF_MOST_S, BACKOFF_S * 2**self._failures)
            self._not_before_s = asyncio.get_running_loop().time() + pause_s
            if isinstance(error, TimeoutError):
                raise self.address.purpose.away(
                    f"{self.address} has not answered for {CONNECT_S:.0f} s. See whether it is PostgreSQL that"
                    f" listens at {self.address.place}, and whether it is overloaded or cut off."
                ) from error
            raise
        self._failures = 0
        line = Line(connection, self.address.purpose)
        if self.closed.is_set():
            line.drop()
        return line

    def is_closed(self) -> EvenflowError:
        """What to say to whoever comes later."""
        return self.address.purpose.away(f"The {self.address.purpose.what} at {self.address} was closed.")

    async def _rest(self) -> None:
        left_s = self._not_before_s - asyncio.get_running_loop().time()
        if self._failures and left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self.closed.wait()
            except TimeoutError:
                pass
        if self.closed.is_set():
            raise self.is_closed()


class Lines:
    """At most so many connections, for one purpose."""

    def __init__(self, door: Door, most: int) -> None:
        self._door = door
        self._room = asyncio.Semaphore(most)
        self._free: list[Line] = []
        self._taken: set[Line] = set()

    async def run(self, work: Callable[[Connection], Awaitable[T]], within_s: float = REQUEST_S) -> T:
        """One request on any of them."""
        for attempt in range(1, TRIES + 1):
            line, left_s = await self.take(within_s)
            try:
                with translated(self._door.address):
                    return await self._once(line, work, left_s, is_last=attempt == TRIES)
            except _Again:
                continue
            finally:
                self.give_back(line)
        raise AssertionError("the last try raises")

    async def _once(
        self, line: Line, work: Callable[[Connection], Awaitable[T]], within_s: float, *, is_last: bool
    ) -> T:
        try:
            return await line.do(work, within_s)
        except psycopg.Error as error:
            if is_to_be_repeated(error) and not is_last:
                raise _Again from error
            raise

    async def take(self, within_s: float) -> tuple[Line, float]:
        """A connection to be given back, and how much of the time is left."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + within_s
        try:
            async with asyncio.timeout_at(ends_s):
                line = await self._take()
        except TimeoutError as error:
            raise self._door.address.purpose.away(
                f"No connection to {self._door.address} was free for {within_s:.1f} s."
            ) from error
        return line, ends_s - loop.time()

    async def _take(self) -> Line:
        await self._room.acquire()
        try:
            line = self._spare() or await self._door.open()
        except BaseException:
            self._room.release()
            raise
        self._taken.add(line)
        return line

    def _spare(self) -> Line | None:
        while self._free:
            line = self._free.pop()
            if line.is_free:
                return line
            line.drop()
        return None

    def give_back(self, line: Line) -> None:
        self._taken.discard(line)
        if line.is_free and not self._door.closed.is_set():
            self._free.append(line)
        else:
            line.drop()
        self._room.release()

    def close(self) -> None:
        for line in self._taken:
            line.cut()
        while self._free:
            self._free.pop().drop()


class _Again(Exception):
    """It was rolled back because of others."""
