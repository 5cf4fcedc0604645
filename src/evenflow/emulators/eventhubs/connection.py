"""One connection: protocol headers, SASL, open and close, heartbeats, and its sessions.

It does no I/O itself: received bytes are passed to `feed`, and it writes to a `ByteTransport`, which is a socket or a
WebSocket. Its memory for a client is bounded: output that the client has not read, events that are not stored yet, and
incomplete deliveries and responses without credit. The memory of all connections together is bounded too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from evenflow.amqp import performatives
from evenflow.amqp.conditions import (
    DECODE,
    FORCED,
    FRAMING,
    INTERNAL,
    LIMIT_EXCEEDED,
    NOT_ALLOWED,
    AmqpError,
)
from evenflow.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    FRAME_BYTES_LEAST,
    FRAME_BYTES_MAX,
    HEARTBEAT,
    SASL_FRAME,
    SASL_HEADER,
    Frame,
    FrameBuffer,
    framed,
)
from evenflow.amqp.performatives import Begin, Close, Detach, Disposition, End, Open, SaslInit
from evenflow.emulators.eventhubs.session import AmqpSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.amqp.performatives import Attach
    from evenflow.emulators.eventhubs.claims import ConnectionClaims
    from evenflow.emulators.eventhubs.limits import ServerLimits
    from evenflow.emulators.eventhubs.links import AmqpLink

CHANNEL_MAX = 4_999
IDLE_MS = 120_000
"""The idle timeout that the server announces to clients."""
IDLE_TIMEOUT_S = 2 * IDLE_MS / 1000
"""After how much silence a connection is closed: twice the announced timeout."""
OPEN_TIMEOUT_S = 60.0
"""How long a client may take to open the connection."""
CLOSE_TIMEOUT_S = 5.0
"""How long a client may take to respond to a close."""

FLUSH_BYTES = 128 * 1024
"""Output is flushed at the end of an event loop iteration, or when it reaches this size."""
PENDING_BYTES_MAX = 8 * 1024 * 1024
"""While this much waits to be stored, or to be read by the client, the server stops reading from it."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""The limit for incomplete deliveries and responses that wait for credit."""

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
SASL_OK, SASL_AUTH = 0, 1

_log = logging.getLogger(__name__)


class ByteTransport(Protocol):
    """The transport that a connection writes to."""

    def write(self, data: bytes) -> None: ...

    def buffered_bytes(self) -> int:
        """How many written bytes have not been sent yet."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Close after all written bytes are sent."""

    def abort(self) -> None: ...


class AmqpService(Protocol):
    """The service behind a connection, which creates the links that clients attach."""

    name: str
    limits: ServerLimits

    def claims(self) -> ConnectionClaims:
        """Empty claims for a new connection."""

    def link(self, session: AmqpSession, attach: Attach) -> AmqpLink:
        """Create a link, which responds to the attach itself. Raises `AmqpError` to refuse it."""

    def accepts_connections(self) -> bool:
        """Whether the connection limit allows another connection."""


class AmqpConnection:
    def __init__(self, wire: ByteTransport, service: AmqpService, on_closed: Callable[[AmqpConnection], None]) -> None:
        self.service = service
        self.claims = service.claims()
        self.frame_bytes_max = FRAME_BYTES_LEAST
        """The largest frame that the client accepts."""
        self.sessions: dict[int, AmqpSession] = {}
        self.is_open = False
        self.can_write = True
        """Whether the transport accepts more output. Links with much to send wait while it does not."""
        self._wire = wire
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._inbox = FrameBuffer()
        self._next: Callable[[], bool] = self._read_header
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._feeding = False
        self._closing = False
        self._closed = False
        self._authenticated = False
        self._limits = service.limits
        self._pending_bytes = 0
        self._kept_bytes = 0
        self._unread_bytes = 0
        """Output that the client has not read, counted only while it is above the limit."""
        self._reading = True
        self._received_s = self._sent_s = self._loop.time()
        self._heartbeat_s: float | None = None
        self._timer = self._loop.call_later(OPEN_TIMEOUT_S, self._open_timed_out)

    # Input

    def feed(self, data: bytes) -> None:
        """Process bytes from the client."""
        if self._closed:
            return
        self._received_s = self._loop.time()
        self._inbox.feed(data)
        self._feeding = True
        try:
            while not self._closed and self._next():
                pass
        except AmqpError as error:
            self.fail(error)
        except Exception:
            _log.exception("Internal error; closing the client's connection")
            self.fail(AmqpError(INTERNAL, "Internal error. The server's log has details."))
        finally:
            self._feeding = False
        self.flush()

    def _read_header(self) -> bool:
        header = self._inbox.header()
        if header is None:
            return False
        if header == SASL_HEADER and not self._authenticated:
            self._write(SASL_HEADER + framed(0, performatives.sasl_mechanisms(MECHANISMS), SASL_FRAME))
            self._next = self._read_sasl
        elif header == AMQP_HEADER:
            # SASL is optional, as in the service, because tokens authorize clients. The JavaScript client skips it if
            # it has a signature instead of a key.
            self._write(AMQP_HEADER)
            self._next = self._read_frame
        else:
            # The standard requires the server to send the header that it supports, and to close the connection.
            self._write(AMQP_HEADER if self._authenticated else SASL_HEADER)
            self._disconnect()
        return True

    def _read_sasl(self) -> bool:
        frame = self._inbox.frame()
        if frame is None:
            return False
        if frame.kind != SASL_FRAME:
            raise AmqpError(FRAMING, "Expected a SASL frame.")
        init, _ = performatives.parse(frame.body)
        if not isinstance(init, SaslInit):
            raise AmqpError(NOT_ALLOWED, "Expected sasl-init.")
        known = init.mechanism in MECHANISMS
        self._write(framed(0, performatives.sasl_outcome(SASL_OK if known else SASL_AUTH), SASL_FRAME))
        if not known:
            self._disconnect()
        self._authenticated = known
        self._next = self._read_header
        return True

    def _read_frame(self) -> bool:
        frame = self._inbox.frame()
        if frame is None:
            return False
        if frame.kind != AMQP_FRAME:
            raise AmqpError(FRAMING, f"Expected an AMQP frame, not one of type {frame.kind}.")
        if frame.body:
            self._dispatch(frame)
        return True

    def _dispatch(self, frame: Frame) -> None:
        found, payload = performatives.parse(frame.body)
        kind = type(found)
        if kind is Close:
            self._answer_close()
        elif self._closing:
            return
        elif kind is Open:
            self._open(found)
        elif not self.is_open:
            raise AmqpError(NOT_ALLOWED, "The connection is not open yet.")
        elif kind is Begin:
            self._begin(frame.channel, found)
        else:
            session = self.sessions.get(frame.channel)
            if session is None:
                if kind in (Detach, Disposition, End):
                    # Some clients still detach the links of a session that they have already ended.
                    return
                raise AmqpError(NOT_ALLOWED, f"There is no session on channel {frame.channel}.")
            if kind is End:
                self.end_session(session)
            else:
                session.dispatch(found, payload)

    def _open(self, request: Open) -> None:
        if self.is_open:
            raise AmqpError(NOT_ALLOWED, "The connection is open already.")
        if request.max_frame_size is not None and request.max_frame_size < FRAME_BYTES_LEAST:
            raise AmqpError(FRAMING, f"The maximum frame size must be at least {FRAME_BYTES_LEAST} bytes.")
        self.frame_bytes_max = min(request.max_frame_size or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self._send_open()
        self._timer.cancel()
        if not self.service.accepts_connections():
            raise AmqpError(LIMIT_EXCEEDED, "The server has too many connections. Close some, or try again later.")
        if request.idle_timeout_ms:
            # A quarter of the client's timeout, since a busy client reads late.
            self._heartbeat_s = max(0.05, request.idle_timeout_ms / 4000)
        self._check_idle()

    def _send_open(self) -> None:
        self.is_open = True
        opened = performatives.open_(
            self.service.name, frame_bytes=FRAME_BYTES_MAX, channel_max=CHANNEL_MAX, idle_ms=IDLE_MS
        )
        self.send(0, opened)

    def _begin(self, channel: int, request: Begin) -> None:
        if channel > CHANNEL_MAX:
            raise AmqpError(FRAMING, f"Channel {channel} exceeds the agreed maximum of {CHANNEL_MAX}.")
        if channel in self.sessions:
            raise AmqpError(NOT_ALLOWED, f"Channel {channel} already has a session.")
        self._limits.check_session()
        self.sessions[channel] = AmqpSession(self, channel, request)
        self._limits.sessions += 1

    def end_session(self, session: AmqpSession, error: AmqpError | None = None) -> None:
        """End a session for the client, or for an error. After an error, a late end from the client is ignored."""
        if self.sessions.get(session.channel) is session:
            if error is None:
                del self.sessions[session.channel]
                self._limits.sessions -= 1
            if session.end():
                self.send(session.channel, performatives.end(error))

    # Output

    def send(self, channel: int, performative: bytes) -> None:
        self._write(framed(channel, performative))

    def send_frames(self, frames: bytes) -> None:
        """Send complete frames."""
        self._write(frames)

    def _write(self, data: bytes) -> None:
        if self._closed:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= FLUSH_BYTES:
            self.flush()
        elif not self._feeding and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._out and not self._closed:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._sent_s = self._loop.time()
            self._wire.write(data)
            self.update_reading()

    def pause_writing(self) -> None:
        self.can_write = False
        self.update_reading()

    def resume_writing(self) -> None:
        self.can_write = True
        self.update_reading()
        for session in list(self.sessions.values()):
            session.wake_links()

    # ServerLimits

    def add_pending(self, size_bytes: int) -> None:
        """Count bytes that wait to be stored; a negative size releases them."""
        self._pending_bytes += size_bytes
        self._limits.held_bytes += size_bytes
        self.update_reading()

    def reserve_bytes(self, size_bytes: int) -> None:
        """Count bytes that wait for the client to continue. Raises, without counting them, if the limit is reached."""
        if size_bytes and (self._kept_bytes + size_bytes > KEPT_BYTES_MAX or self._limits.is_full):
            raise AmqpError(LIMIT_EXCEEDED, "Incomplete deliveries or responses without credit hold too much memory.")
        self.release_bytes(-size_bytes)

    def release_bytes(self, size_bytes: int) -> None:
        """Release bytes that `reserve_bytes` counted."""
        self._kept_bytes -= size_bytes
        self._limits.held_bytes -= size_bytes

    def update_reading(self) -> None:
        """Pause or resume reading from the client.

        Pause while it exceeds its own limit, and, while all clients together exceed theirs, if it holds a part of that
        memory. Releasing that part calls this again, so no client waits only for other clients.
        """
        if self._closed:
            return
        unread_bytes = self._wire.buffered_bytes()
        self._count_unread(0 if self.can_write else unread_bytes)
        much = max(self._pending_bytes, unread_bytes) > PENDING_BYTES_MAX
        much = much or (self._limits.is_full and (self._pending_bytes > 0 or not self.can_write))
        if much and self._reading:
            self._reading = False
            self._wire.pause_reading()
        elif not much and not self._reading:
            self._reading = True
            self._received_s = self._loop.time()
            self._wire.resume_reading()

    def _count_unread(self, size_bytes: int) -> None:
        self._limits.held_bytes += size_bytes - self._unread_bytes
        self._unread_bytes = size_bytes

    # Closing

    def fail(self, error: AmqpError) -> None:
        """Send the error to the client, if the protocol state allows it, and end the connection."""
        if self._closed or self._closing:
            return
        if self._next == self._read_frame:
            if not self.is_open:
                self._send_open()
            self._closing = True
            self.send(0, performatives.close(error))
        if error.condition in (DECODE, FRAMING, INTERNAL) or not self._closing:
            # Further input cannot be decoded, so do not wait for the client's close.
            self._disconnect()
            return
        self._end_sessions()
        self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._disconnect)

    def shut_down(self) -> None:
        """Close the connection because the server stops."""
        self.fail(AmqpError(FORCED, "The server is shutting down. Connect again later."))
        self._disconnect()

    def _answer_close(self) -> None:
        if not self._closing:
            self.send(0, performatives.close())
        self._disconnect()

    def _open_timed_out(self) -> None:
        self._disconnect()

    def _check_idle(self) -> None:
        """Check periodically whether the client is silent for too long, and whether a heartbeat is due."""
        now_s = self._loop.time()
        limit_s = IDLE_TIMEOUT_S
        if self._pending_bytes and not self._reading:
            # The server itself paused reading, until the client's events are stored.
            self._received_s = now_s
        if now_s - self._received_s >= limit_s:
            self.fail(AmqpError(LIMIT_EXCEEDED, f"No frame was received for {limit_s:.0f} s."))
            self._disconnect()
            return
        wait_s = limit_s / 4
        if self._heartbeat_s is not None:
            wait_s = min(wait_s, self._heartbeat_s)
            if now_s - self._sent_s >= self._heartbeat_s * 0.9 and self.can_write:
                self._write(HEARTBEAT)
        self._timer = self._loop.call_later(wait_s, self._check_idle)

    def _disconnect(self) -> None:
        self.flush()
        self.on_disconnected()
        self._wire.close()
        # Do not wait longer for a client that does not read the last output.
        self._loop.call_later(CLOSE_TIMEOUT_S, self._wire.abort)

    def on_disconnected(self) -> None:
        """Release everything after the connection ended. Idempotent."""
        if not self._closed:
            self._closed = True
            self._timer.cancel()
            self._end_sessions()
            self._count_unread(0)
            self._on_closed(self)

    def _end_sessions(self) -> None:
        for session in list(self.sessions.values()):
            session.end()
        self._limits.sessions -= len(self.sessions)
        self.sessions.clear()

    def links(self) -> list[Any]:
        return [link for session in self.sessions.values() for link in session.links.values()]
