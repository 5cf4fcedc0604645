"""The server of Event Hubs in this thread: clients reach it without sockets, and time passes only when a test says so.

Everything from the transport upwards is the real program: the first bytes, HTTP, WebSockets, AMQP, hubs in files.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from evenflow.embedded.hub import Hub
from evenflow.emulators.eventhubs.faults import NO_FAULTS, EventHubsFaultOptions
from evenflow.emulators.eventhubs.namespace import ServedHub
from evenflow.emulators.eventhubs.server import EventHubsServer
from tests.integration.amqp_peer import PATIENCE_S, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from evenflow.emulators.eventhubs.listener import ClientSocket

T = TypeVar("T")


class StoppedLoop(asyncio.SelectorEventLoop):
    """Its clock stands still until a test moves it, so that no timer depends on the speed of the machine."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


class MemoryTransport(asyncio.Transport):
    """The server's end of a connection, and its client's end: a `Line`."""

    def __init__(self, loop: StoppedLoop, socket: ClientSocket) -> None:
        super().__init__()
        self._loop = loop
        self._socket = socket
        self._written = bytearray()
        self._high = 1 << 16
        self._closing = False
        self._changed = asyncio.Event()
        self.is_full = False
        """More waits for the client than the server wants to keep for it."""
        self._sent: list[bytes] = []
        self._reading = True

    # The server's end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._written += data
        self._changed.set()
        if len(self._written) > self._high and not self.is_full:
            self.is_full = True
            self._socket.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self._written)

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._sent and self._reading and not self._closing:
            self._socket.data_received(self._sent.pop(0))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._changed.set()
            self._loop.call_soon(self._socket.connection_lost, None)

    def abort(self) -> None:
        self._written.clear()
        self.close()

    # The client's end

    def connect(self) -> None:
        self._loop.call_soon(self._socket.connection_made, self)
        turn(self._loop)

    def sendall(self, data: bytes) -> None:
        self._sent.append(data)
        self._loop.call_soon(self._deliver)
        turn(self._loop)

    def recv(self, size_bytes: int) -> bytes:
        self._loop.run_until_complete(self._something())
        data = bytes(self._written[:size_bytes])
        del self._written[:size_bytes]
        if self.is_full and len(self._written) <= self._high // 4:
            self.is_full = False
            self._loop.call_soon(self._socket.resume_writing)
        return data

    async def _something(self) -> None:
        while not self._written and not self._closing:
            self._changed.clear()
            await self._changed.wait()
        await asyncio.sleep(0)  # what a test has just made due comes before its next word


def turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


class MemoryClient(Client):
    line: MemoryTransport


class MemoryServer:
    def __init__(self, server: EventHubsServer, loop: StoppedLoop) -> None:
        self.server = server
        self.hubs = {served.name: served.hub for served in server.namespace}
        self._loop = loop

    def client(self) -> MemoryClient:
        line = MemoryTransport(self._loop, self.server.accept())
        line.connect()
        return MemoryClient(line)

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self._loop.run_until_complete(work)

    def until(self, look: Callable[[], object]) -> None:
        """Run until this is so. What the server waits for may be in its threads."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not look():
            assert time.monotonic() < deadline_s, "the condition did not become true"
            turn(self._loop)

    def pass_s(self, seconds: float) -> None:
        """Time passes, and the timers that are due then run."""
        self._loop.now_s += seconds
        turn(self._loop)


@contextmanager
def memory_server(
    folder: Path,
    hubs: Mapping[str, int],
    *,
    keys: Mapping[str, str] | None = None,
    faults: EventHubsFaultOptions = NO_FAULTS,
) -> Iterator[MemoryServer]:
    """Serve new hubs with so many partitions each."""
    made = [ServedHub(name, Hub.create(folder / name, partitions)) for name, partitions in hubs.items()]
    with asyncio.Runner(loop_factory=StoppedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, StoppedLoop)
        server = EventHubsServer(made, keys=keys, faults=faults)
        try:
            yield MemoryServer(server, loop)
        finally:
            runner.run(server.aclose())
