"""A way to a server that can be cut, held up, or made to lose answers; and that counts what goes over it.

It runs on a thread of its own, so that whoever uses it may block, and other processes may use it too.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal, Self

from evenflow.emulators.eventhubs.server import stop_listening
from tests.servers.processes import LOOPBACK, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

Mode = Literal["pass", "hold", "lose answers", "refuse"]
CHUNK_BYTES = 1 << 16


@dataclass
class Count:
    """What went over it since it began."""

    sent_bytes: int = 0
    answered_bytes: int = 0
    round_trips: int = 0
    """How often somebody sent something after an answer, or first of all."""
    connections: int = 0

    def __sub__(self, other: Count) -> Count:
        return Count(
            self.sent_bytes - other.sent_bytes,
            self.answered_bytes - other.answered_bytes,
            self.round_trips - other.round_trips,
            self.connections - other.connections,
        )


class _Pair:
    """One connection from a client, and ours to the server."""

    is_held = False

    def __init__(self, client: asyncio.StreamWriter, task: asyncio.Task[object] | None) -> None:
        assert task is not None
        self.writers = [client]
        self.task = task
        self.was_answered = True

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._mode: Mode = "pass"
        self._pairs: set[_Pair] = set()
        self._count = Count()
        self.port = 0
        self._ready = Event()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._changed: asyncio.Event
        self._thread = Thread(target=self._live, name="proxy", daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def count(self) -> Count:
        return replace(self._count)

    # --- what it does to those who use it
    def cut(self) -> None:
        """End every connection. New ones are welcome."""
        self._on_loop(self._abort)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Nothing gets through, and nobody is told. What was held up is lost with its connections."""
        yield from self._meanwhile("hold")

    @contextmanager
    def holding_old(self) -> Iterator[None]:
        """The same for connections that there are; new ones are fine."""

        def hold() -> None:
            for pair in self._pairs:
                pair.is_held = True

        self._on_loop(hold)
        try:
            yield
        finally:
            self._on_loop(self._abort)

    @contextmanager
    def losing_answers(self) -> Iterator[None]:
        """Requests get through and take effect; answers do not."""
        yield from self._meanwhile("lose answers")

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody is there."""
        self._on_loop(self._abort)
        yield from self._meanwhile("refuse")

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "somebody is still held up"

    def _meanwhile(self, mode: Mode) -> Iterator[None]:
        self._set(mode)
        try:
            yield
        finally:
            self._set("pass")
            self._on_loop(self._abort)

    def _set(self, mode: Mode) -> None:
        def change() -> None:
            self._mode = mode
            self._tell()

        self._on_loop(change)

    # --- on its thread
    def _live(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._changed = asyncio.Event()
        server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        self._mode = "refuse"
        await stop_listening(server)
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            self._abort()
            await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)

    def _on_loop(self, work: Callable[[], None]) -> None:
        done = Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(PATIENCE_S)

    def _abort(self) -> None:
        for pair in list(self._pairs):
            pair.is_held = False
            pair.abort()
        self._tell()

    def _tell(self) -> None:
        """Who is held up looks again whether it still is."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(writer, asyncio.current_task())
        self._pairs.add(pair)
        self._count.connections += 1
        try:
            if self._mode == "refuse":
                return
            there, back = await self._reach(reader, writer)
            pair.writers.append(back)
            ways = [self._pump(reader, back, pair, answers=False), self._pump(there, writer, pair, answers=True)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            pair.abort()

    async def _reach(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(LOOPBACK, self._target_port)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                while self._mode == "hold" or pair.is_held:
                    await self._changed.wait()
                if answers and self._mode == "lose answers":
                    continue
                self._add(pair, len(data), answers=answers)
                writer.write(data)
                await writer.drain()
        while self._mode == "hold" or pair.is_held:  # not even that one side has left gets through
            await self._changed.wait()

    def _add(self, pair: _Pair, size: int, *, answers: bool) -> None:
        if answers:
            self._count.answered_bytes += size
        else:
            self._count.sent_bytes += size
            self._count.round_trips += pair.was_answered
        pair.was_answered = answers


class HttpProxy(Proxy):
    """One that clients know of: they ask it, by HTTP, to be connected to wherever they want to go."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        """What it was asked."""
        super().__init__(0)

    async def _reach(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        host, _, port = head.split(" ")[1].rpartition(":")
        found = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return found
