"""Accepts client sockets and detects their protocol: AMQP, or HTTP for health checks and AMQP over WebSockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec

from evenflow.emulators.eventhubs.connection import OPEN_TIMEOUT_S, AmqpConnection
from evenflow.emulators.eventhubs.limits import write_bytes_high

if TYPE_CHECKING:
    from typing import Protocol

    from evenflow.emulators.eventhubs.service import EventHubsService

    class ByteHandler(Protocol):
        """Handles a socket's bytes once its protocol is known."""

        def feed(self, data: bytes) -> None: ...

        def pause_writing(self) -> None: ...

        def resume_writing(self) -> None: ...

        def on_disconnected(self) -> None: ...


DELAYED_BYTES_MAX = 1024 * 1024
"""The limit for received bytes that an injected delay holds back."""
SOCKETS_MAX = 10_000
HEAD_BYTES_MAX = 16 * 1024
"""The limit for the head of an HTTP request."""

HEALTH_PATH = "/health"
WEBSOCKET_PATH = "/$servicebus/websocket"
_METHODS = (b"GET ", b"HEAD")


class ClientSocket(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, service: EventHubsService) -> None:
        self._service = service
        self._faults = service.faults.options
        self._transport: asyncio.Transport | None = None
        self._handler: ByteHandler | None = None
        self._first_bytes = b""
        self._timer: asyncio.TimerHandle | None = None
        self._socket: SocketTransport | None = None
        self._delayed_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._service.sockets.add(self)
        if len(self._service.sockets) > SOCKETS_MAX:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(write_bytes_high(len(self._service.sockets)))
        self._socket = SocketTransport(self._transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(OPEN_TIMEOUT_S, self._transport.abort)
        if self._faults.drop_s is not None:
            loop.call_later(self._faults.drop_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._faults.delay_s is None:
            self._receive(data)
        else:
            asyncio.get_running_loop().call_later(self._faults.delay_s, self._receive_delayed, data)
            self._count_delayed(len(data))

    def _receive_delayed(self, data: bytes) -> None:
        self._count_delayed(-len(data))
        if self._transport is not None and not self._transport.is_closing():
            self._receive(data)

    def _count_delayed(self, size_bytes: int) -> None:
        """Pause reading while the delayed bytes exceed the limit."""
        was_full, self._delayed_bytes = self._delayed_bytes > DELAYED_BYTES_MAX, self._delayed_bytes + size_bytes
        is_full = self._delayed_bytes > DELAYED_BYTES_MAX
        if self._socket is not None and is_full != was_full:
            (self._socket.pause_reading if is_full else self._socket.resume_reading)()

    def _receive(self, data: bytes) -> None:
        if self._handler is not None:
            self._handler.feed(data)
            return
        self._first_bytes += data
        if not self._first_bytes.startswith(_METHODS) and len(self._first_bytes) >= len(_METHODS[0]):
            assert self._socket is not None
            self._attach_handler(new_connection(self._socket, self._service))
        elif b"\r\n\r\n" in self._first_bytes:
            self._answer_http()
        elif len(self._first_bytes) > HEAD_BYTES_MAX:
            self._say(431, "AmqpRequest Header Fields Too Large", b"")

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._service.sockets.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._handler is not None:
            self._handler.on_disconnected()

    def close(self) -> None:
        """Close because the server stops. AMQP clients have already received a close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _attach_handler(self, handler: ByteHandler) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._handler = handler
        first_bytes, self._first_bytes = self._first_bytes, b""
        handler.feed(first_bytes)

    def _answer_http(self) -> None:
        head = self._first_bytes.split(b"\r\n", 1)[0].split(b" ")
        path = head[1].decode("latin-1").partition("?")[0] if len(head) == 3 else ""
        if path == HEALTH_PATH:
            self._say(200, "OK", msgspec.json.encode(health(self._service)))
        elif path.rstrip("/").lower() == WEBSOCKET_PATH:
            self._open_websocket()
        else:
            self._say(404, "Not Found", b'{"problem":"Not found. This port serves AMQP, and GET /health."}')

    def _open_websocket(self) -> None:
        assert self._socket is not None
        try:
            from evenflow.emulators.eventhubs.websocket import WebSocketHandler
        except ImportError:
            problem = "WebSockets need an extra on the server. Install it with: pip install 'evenflow[serve]'"
            self._say(501, "Not Implemented", msgspec.json.encode({"problem": problem}))
            return
        self._attach_handler(WebSocketHandler(self._socket, self._service))

    def _say(self, status: int, reason: str, body: bytes) -> None:
        assert self._transport is not None
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if self._first_bytes.startswith(b"HEAD") else body))
        self._transport.close()


def new_connection(wire: SocketTransport, service: EventHubsService) -> AmqpConnection:
    connection = AmqpConnection(wire, service, service.connections.discard)
    service.connections.add(connection)
    return connection


def health(service: EventHubsService) -> dict[str, object]:
    return {
        "status": "ready",
        "hubs": [hub.name for hub in service.namespace],
        "connections": len(service.connections),
    }


class SocketTransport:
    """Adapts an asyncio transport to `ByteTransport`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pauses = 0
        self.write = transport.write
        self.buffered_bytes = transport.get_write_buffer_size
        self.close = transport.close
        self.abort = transport.abort

    def pause_reading(self) -> None:
        """Pause reading until every pause is resumed: the connection and an injected delay may both pause it."""
        self._pauses += 1
        if self._pauses == 1 and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._pauses -= 1
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()
