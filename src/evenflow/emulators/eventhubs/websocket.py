"""AMQP over WebSockets: a connection whose bytes travel in binary messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from evenflow.emulators.eventhubs.connection import AmqpConnection

if TYPE_CHECKING:
    from evenflow.emulators.eventhubs.listener import SocketTransport
    from evenflow.emulators.eventhubs.service import EventHubsService

SUBPROTOCOL = Subprotocol("AMQPWSB10")
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
_CARRIES = (Opcode.BINARY, Opcode.CONT)


class WebSocketHandler:
    """Handles a WebSocket's bytes, and is the `ByteTransport` of its connection."""

    def __init__(self, socket: SocketTransport, service: EventHubsService) -> None:
        self._socket = socket
        self._protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL], select_subprotocol=_chosen, max_size=MESSAGE_BYTES_MAX
        )
        self._connection = AmqpConnection(self, service, service.connections.discard)
        service.connections.add(self._connection)
        self.buffered_bytes = socket.buffered_bytes
        self.pause_reading = socket.pause_reading
        self.resume_reading = socket.resume_reading
        self.abort = socket.abort
        self.pause_writing = self._connection.pause_writing
        self.resume_writing = self._connection.resume_writing
        self.on_disconnected = self._connection.on_disconnected

    def feed(self, data: bytes) -> None:
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                protocol.send_response(protocol.accept(event))
            elif isinstance(event, Frame) and event.opcode in _CARRIES:
                self._connection.feed(bytes(event.data))
        self._pass_on()
        if protocol.close_expected():
            self._connection.on_disconnected()

    def write(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._pass_on()

    def close(self) -> None:
        try:
            self._protocol.send_close(1000)
            self._pass_on()
        except InvalidState:
            pass
        self._socket.close()

    def _pass_on(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.write(data)
            else:
                self._socket.close()
        # The protocol itself writes pongs, which count towards the buffer too.
        self._connection.update_reading()


def _chosen(protocol: ServerProtocol, offered: object) -> Subprotocol | None:
    """The AMQP subprotocol if the client offers it. Clients that offer none are accepted too."""
    return SUBPROTOCOL if isinstance(offered, (list, tuple)) and SUBPROTOCOL in offered else None
