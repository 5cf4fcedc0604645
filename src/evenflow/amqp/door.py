"""Where clients come in: a port speaks AMQP, and to those who begin as HTTP does, health and WebSockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from evenflow.amqp.connection import Connection

if TYPE_CHECKING:
    from evenflow.amqp.dialect import EventHubs

WRITE_BYTES_HIGH = 256 * 1024
"""When this much waits for a client, events wait for it too."""


class Door(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, dialect: EventHubs) -> None:
        self._dialect = dialect
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BYTES_HIGH)
        self._connection = Connection(_Socket(self._transport), self._dialect, self._dialect.connections.discard)
        self._dialect.connections.add(self._connection)

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.feed(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._connection is not None:
            self._connection.lost()


class _Socket:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.write = transport.write
        self.buffered_bytes = transport.get_write_buffer_size
        self.close = transport.close
        self.abort = transport.abort

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
