"""A client of AMQP that sends what a test asks for, valid or not: what official clients cannot be made to do."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Protocol

from evenflow.amqp import types
from evenflow.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, FrameBuffer, framed
from evenflow.amqp.performatives import ATTACH, BEGIN, FLOW, OPEN, SASL_INIT, SOURCE, TARGET, TRANSFER
from evenflow.amqp.types import NULL, Described, decode, described, list_, string, symbol, uint, ushort

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PATIENCE_S = 90.0
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)


class Hung(Exception):
    """The server has closed the connection."""


class Line(Protocol):
    """How a peer reaches the server: a socket, or memory."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size_bytes: int, /) -> bytes:
        """Waits for bytes of the server; none when it has closed the connection."""

    def close(self) -> None: ...


class Client:
    """Speaks AMQP over a line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._inbox = FrameBuffer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.line.close()

    # Words

    def send(self, data: bytes) -> None:
        self.line.sendall(data)

    def say(self, code: int, *fields: bytes, payload: bytes = b"", channel: int = 1) -> None:
        self.send(framed(channel, described(code, list_(fields)) + payload))

    def header(self) -> bytes:
        while (found := self._inbox.header()) is None:
            self._more()
        return found

    def hear(self) -> tuple[int, Any, bytes]:
        """The next frame that is no heartbeat: what it is, its fields, its payload."""
        while True:
            frame = self._inbox.frame()
            if frame is None:
                self._more()
            elif frame.body:
                found, end = decode(frame.body)
                assert isinstance(found, Described)
                return found.descriptor, found.value, frame.body[end:]

    def hear_of(self, code: int) -> Any:
        """The fields of the next frame of this kind; others are passed over."""
        while True:
            found, fields, _ = self.hear()
            if found == code:
                return fields

    def ends(self) -> list[tuple[int, Any]]:
        """All that it still says until it closes the connection, which it must."""
        found = []
        try:
            while True:
                code, fields, _ = self.hear()
                found.append((code, fields))
        except Hung:
            return found

    def _more(self) -> None:
        try:
            data = self.line.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise Hung
        self._inbox.feed(data)

    # Sentences

    def greet(self) -> None:
        """Headers and SASL, up to the header of AMQP."""
        self.send(SASL_HEADER)
        assert self.header() == SASL_HEADER
        self.hear()
        self.send(framed(0, described(SASL_INIT, list_([symbol("ANONYMOUS"), NULL, NULL])), SASL_FRAME))
        self.hear()
        self.send(AMQP_HEADER)
        assert self.header() == AMQP_HEADER

    def open(self, *, frame_bytes: int = 65_536, idle_ms: int | None = None) -> Any:
        self.greet()
        idle = NULL if idle_ms is None else uint(idle_ms)
        self.say(OPEN, string("peer"), NULL, uint(frame_bytes), ushort(100), idle, channel=0)
        return self.hear_of(OPEN)

    def begin(self, *, window: int = 5_000) -> Any:
        self.say(BEGIN, NULL, uint(0), uint(window), uint(5_000), uint(255))
        return self.hear_of(BEGIN)

    def attach_sender(self, address: str, handle: int = 0) -> None:
        source, target = terminus(SOURCE, "here"), terminus(TARGET, address)
        self.say(
            ATTACH, string(f"s{handle}"), uint(handle), types.FALSE, NULL, NULL, source, target, NULL, NULL, uint(0)
        )

    def attach_receiver(self, address: str, handle: int = 0, filters: bytes = NULL, properties: bytes = NULL) -> None:
        nulls = [NULL] * 6
        source = described(SOURCE, list_([string(address), *nulls, filters]))
        fields = [string(f"r{handle}"), uint(handle), types.TRUE, NULL, NULL, source, terminus(TARGET, "here")]
        self.say(ATTACH, *fields, *[NULL] * 6, properties)

    def credit(
        self, count: int, handle: int = 0, *, window: int = 5_000, drain: bool = False, counted: int = 0
    ) -> None:
        session = [uint(0), uint(window), uint(0), uint(5_000)]
        self.say(FLOW, *session, uint(handle), uint(counted), uint(count), NULL, types.boolean(drain))

    def transfer(
        self, payload: bytes, delivery_id: int = 0, handle: int = 0, *, more: bool = False, message_format: int = 0
    ) -> None:
        number = uint(delivery_id)
        tag = types.binary(b"t")
        self.say(
            TRANSFER, uint(handle), number, tag, uint(message_format), types.FALSE, types.boolean(more), payload=payload
        )


class Peer(Client):
    """A client with a real socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        super().__init__(self.socket)


def terminus(code: int, address: str) -> bytes:
    return described(code, list_([string(address)]))


def selector(text: str) -> bytes:
    name = symbol("apache.org:selector-filter:string")
    return types.map_([(name, b"\x00" + name + string(text))])


def condition_of(error: Any) -> str:
    """What an error field of a performative says."""
    return str(error.value[0]) if error is not None else ""
