"""A bounded pool of connections to one database, opened on demand and closed when they fail or hang.

Every request has a deadline. When it passes, or the caller is cancelled, the connection is cut on this side and
replaced. A request in flight may still take effect, as the contract of stores allows.
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

    from evenflow.drivers.postgresql.driver import Connection, PostgreSQLOptions, PostgreSQLUse

T = TypeVar("T")

REQUEST_S = 5.0
"""By default an instance retries sooner by itself."""
CONNECT_S = 4.0
BACKOFF_S, BACKOFF_MOST_S = 0.05, 1.0
TRIES = 10
"""Attempts for requests that were rolled back because of concurrent transactions, which is common at stricter isolation
levels."""


class PooledConnection:
    """One connection, for one user at a time."""

    def __init__(self, connection: Connection, purpose: PostgreSQLUse) -> None:
        self.connection = connection
        self._purpose = purpose
        self._is_cut = False
        self._running: asyncio.Future[Any] | None = None

    @property
    def is_free(self) -> bool:
        """Whether it is idle, no transaction is open, and the server has not closed it."""
        if self._is_cut or self.connection.closed or self.status != psycopg.pq.TransactionStatus.IDLE:
            return False
        return not _has_news(self.connection.pgconn.socket)

    def listen(self) -> bool:
        """Reads pending notifications; returns False if the server is gone."""
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
        """Runs the work as a separate task, so that the driver is never cancelled halfway."""
        task = asyncio.ensure_future(work(self.connection))
        self._running = task
        try:
            await asyncio.wait([task], timeout=max(0.0, within_s))
        finally:
            if not task.done():
                self.cut()
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not task.done():
            raise self._purpose.unreachable(
                f"The {self._purpose.what} has not answered for {within_s:.1f} s; its connection was closed."
            )
        return task.result()

    def cut(self) -> None:
        """Shuts the socket down, so that a pending request fails at once."""
        self._is_cut = True
        if self.connection.closed:
            return
        try:
            with socket.socket(fileno=os.dup(self.connection.pgconn.socket)) as end:
                end.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            pass  # the server closed it first

    def drop(self) -> None:
        """Closes it as soon as no request is running."""
        if self._running is None or self._running.done():
            self.connection.pgconn.finish()
        else:
            self.cut()
            self._running.add_done_callback(lambda _: self.connection.pgconn.finish())


def _has_news(descriptor: int) -> bool:
    """Whether data arrived on an idle connection, which means that the server is closing it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class ConnectionFactory:
    """Opens connections, with a backoff after failures."""

    def __init__(self, address: PostgreSQLOptions) -> None:
        self.address = address
        self.closed = asyncio.Event()
        self._failures = 0
        self._not_before_s = 0.0

    async def open(self) -> PooledConnection:
        await self._back_off()
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self.address.connect()
        except (EvenflowError, TimeoutError) as error:
            self._failures += 1
            pause_s = min(BACKOFF_MOST_S, BACKOFF_S * 2**self._failures)
            self._not_before_s = asyncio.get_running_loop().time() + pause_s
            if isinstance(error, TimeoutError):
                raise self.address.purpose.unreachable(
                    f"{self.address} has not answered for {CONNECT_S:.0f} s. Check that PostgreSQL listens at"
                    f" {self.address.hosts}, and whether it is overloaded or unreachable."
                ) from error
            raise
        self._failures = 0
        line = PooledConnection(connection, self.address.purpose)
        if self.closed.is_set():
            line.drop()
        return line

    def is_closed(self) -> EvenflowError:
        """The error for requests after closing."""
        return self.address.purpose.unreachable(f"The {self.address.purpose.what} at {self.address} was closed.")

    async def _back_off(self) -> None:
        left_s = self._not_before_s - asyncio.get_running_loop().time()
        if self._failures and left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self.closed.wait()
            except TimeoutError:
                pass
        if self.closed.is_set():
            raise self.is_closed()


class ConnectionPool:
    """A limited number of connections for one use."""

    def __init__(self, factory: ConnectionFactory, most: int) -> None:
        self._factory = factory
        self._slots = asyncio.Semaphore(most)
        self._free: list[PooledConnection] = []
        self._taken: set[PooledConnection] = set()

    async def run(self, work: Callable[[Connection], Awaitable[T]], within_s: float = REQUEST_S) -> T:
        """Runs one request on any connection."""
        for attempt in range(1, TRIES + 1):
            line, left_s = await self.take(within_s)
            try:
                with translated(self._factory.address):
                    return await self._once(line, work, left_s, is_last=attempt == TRIES)
            except _RolledBackByOthers:
                continue
            finally:
                self.give_back(line)
        raise AssertionError("the last attempt raises")

    async def _once(
        self, line: PooledConnection, work: Callable[[Connection], Awaitable[T]], within_s: float, *, is_last: bool
    ) -> T:
        try:
            return await line.do(work, within_s)
        except psycopg.Error as error:
            if is_to_be_repeated(error) and not is_last:
                raise _RolledBackByOthers from error
            raise

    async def take(self, within_s: float) -> tuple[PooledConnection, float]:
        """Returns a connection, to be given back, and the remaining time."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + within_s
        try:
            async with asyncio.timeout_at(ends_s):
                line = await self._take()
        except TimeoutError as error:
            raise self._factory.address.purpose.unreachable(
                f"No connection to {self._factory.address} was free for {within_s:.1f} s."
            ) from error
        return line, ends_s - loop.time()

    async def _take(self) -> PooledConnection:
        await self._slots.acquire()
        try:
            line = self._spare() or await self._factory.open()
        except BaseException:
            self._slots.release()
            raise
        self._taken.add(line)
        return line

    def _spare(self) -> PooledConnection | None:
        while self._free:
            line = self._free.pop()
            if line.is_free:
                return line
            line.drop()
        return None

    def give_back(self, line: PooledConnection) -> None:
        self._taken.discard(line)
        if line.is_free and not self._factory.closed.is_set():
            self._free.append(line)
        else:
            line.drop()
        self._slots.release()

    def close(self) -> None:
        for line in self._taken:
            line.cut()
        while self._free:
            self._free.pop().drop()


class _RolledBackByOthers(Exception):
    """The request was rolled back because of concurrent transactions."""
