"""A small proxy on the way to a server, which counts, cuts, holds, and loses answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 1 << 16


class Proxy:
    """`async with Proxy(port_of_the_server) as proxy`; clients go to `proxy.port`."""

    def __init__(self, port: int) -> None:
        self.to = port
        """Where new connections go."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.loses_answers = False
        """What clients ask reaches the server, and no answer comes back."""
        self.connections = 0
        self.reset_counts()

    def reset_counts(self) -> None:
        self.sent_bytes = self.answered_bytes = self.turns = 0
        self._asking = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def refuse(self) -> None:
        """No connection stays, and none is taken."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Every connection there is ends; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def hold(self) -> None:
        """Nothing passes, and nothing ends: as behind a cable that was pulled."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.to)
            self._writers |= {writer, there_writer}
            await asyncio.gather(
                self._pass(reader, there_writer, asks=True), self._pass(there_reader, writer, asks=False)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asks: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._open.wait()
                self._count(len(data), asks=asks)
                if asks or not self.loses_answers:
                    writer.write(data)
                    await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def _count(self, size: int, *, asks: bool) -> None:
        if asks:
            self.turns += not self._asking
            self.sent_bytes += size
        else:
            self.answered_bytes += size
        self._asking = asks
