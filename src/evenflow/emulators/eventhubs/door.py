"""Where clients come in. A port speaks AMQP; to those who begin as HTTP does it tells its health, or speaks AMQP over a
WebSocket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec

from evenflow.emulators.eventhubs.bounds import write_bytes_high
from evenflow.emulators.eventhubs.connection import GREETING_S, Connection

if TYPE_CHECKING:
    from typing import Protocol

    from evenflow.emulators.eventhubs.dialect import EventHubs

    class Guest(Protocol):
        """Who is let in: it is told what comes from the socket."""

        def feed(self, data: bytes) -> None: ...

        def pause_writing(self) -> None: ...

        def resume_writing(self) -> None: ...

        def lost(self) -> None: ...


LATE_BYTES_MAX = 1024 * 1024
"""What a client has sent and is heard later, where that is asked for."""
SOCKETS_MAX = 10_000
HEAD_BYTES_MAX = 16 * 1024
"""How long the head of an HTTP request may be."""

HEALTH_PATH = "/health"
WEBSOCKET_PATH = "/$servicebus/websocket"
_METHODS = (b"GET ", b"HEAD")


class Door(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, dialect: EventHubs) -> None:
        self._dialect = dialect
        self._faults = dialect.faults.options
        self._transport: asyncio.Transport | None = None
        self._guest: Guest | None = None
        self._greeting = b""
        self._timer: asyncio.TimerHandle | None = None
        self._socket: Socket | None = None
        self._late_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._dialect.doors.add(self)
        if len(self._dialect.doors) > SOCKETS_MAX:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(write_bytes_high(len(self._dialect.doors)))
        self._socket = Socket(self._transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(GREETING_S, self._transport.abort)
        if self._faults.drop_s is not None:
            loop.call_later(self._faults.drop_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._faults.delay_s is None:
            self._hear(data)
        else:
            asyncio.get_running_loop().call_later(self._faults.delay_s, self._hear_late, data)
            self._count_late(len(data))

    def _hear_late(self, data: bytes) -> None:
        self._count_late(-len(data))
        if self._transport is not None and not self._transport.is_closing():
            self._hear(data)

    def _count_late(self, size_bytes: int) -> None:
        """What is on its way has a bound, as on any line: then nothing more is taken from the socket."""
        was_full, self._late_bytes = self._late_bytes > LATE_BYTES_MAX, self._late_bytes + size_bytes
        is_full = self._late_bytes > LATE_BYTES_MAX
        if self._socket is not None and is_full != was_full:
            (self._socket.pause_reading if is_full else self._socket.resume_reading)()

    def _hear(self, data: bytes) -> None:
        if self._guest is not None:
            self._guest.feed(data)
            return
        self._greeting += data
        if not self._greeting.startswith(_METHODS) and len(self._greeting) >= len(_METHODS[0]):
            assert self._socket is not None
            self._let_in(new_connection(self._socket, self._dialect))
        elif b"\r\n\r\n" in self._greeting:
            self._answer_http()
        elif len(self._greeting) > HEAD_BYTES_MAX:
            self._say(431, "Request Header Fields Too Large", b"")

    def pause_writing(self) -> None:
        if self._guest is not None:
            self._guest.pause_writing()

    def resume_writing(self) -> None:
        if self._guest is not None:
            self._guest.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._dialect.doors.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._guest is not None:
            self._guest.lost()

    def close(self) -> None:
        """The server stops. Those who are in were told already."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _let_in(self, guest: Guest) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._guest = guest
        greeting, self._greeting = self._greeting, b""
        guest.feed(greeting)

    def _answer_http(self) -> None:
        head = self._greeting.split(b"\r\n", 1)[0].split(b" ")
        path = head[1].decode("latin-1").partition("?")[0] if len(head) == 3 else ""
        if path == HEALTH_PATH:
            self._say(200, "OK", msgspec.json.encode(health(self._dialect)))
        elif path.rstrip("/").lower() == WEBSOCKET_PATH:
            self._open_websocket()
        else:
            self._say(404, "Not Found", b'{"problem":"There is /health here, and AMQP."}')

    def _open_websocket(self) -> None:
        assert self._socket is not None
        try:
            from evenflow.emulators.eventhubs.websocket import WebSocketGuest
        except ImportError:
            problem = "WebSockets need one more package where the server runs: pip install 'evenflow[serve]'"
            self._say(501, "Not Implemented", msgspec.json.encode({"problem": problem}))
            return
        self._let_in(WebSocketGuest(self._socket, self._dialect))

    def _say(self, status: int, reason: str, body: bytes) -> None:
        assert self._transport is not None
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if self._greeting.startswith(b"HEAD") else body))
        self._transport.close()


def new_connection(wire: Socket, dialect: EventHubs) -> Connection:
    connection = Connection(wire, dialect, dialect.connections.discard)
    dialect.connections.add(connection)
    return connection


def health(dialect: EventHubs) -> dict[str, object]:
    return {
        "status": "ready",
        "hubs": [hub.name for hub in dialect.namespace],
        "connections": len(dialect.connections),
    }


class Socket:
    """A transport as a connection writes to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pauses = 0
        self.write = transport.write
        self.buffered_bytes = transport.get_write_buffer_size
        self.close = transport.close
        self.abort = transport.abort

    def pause_reading(self) -> None:
        """Until everybody who paused it has let it go on: a connection may, and what makes it late."""
        self._pauses += 1
        if self._pauses == 1 and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._pauses -= 1
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()
