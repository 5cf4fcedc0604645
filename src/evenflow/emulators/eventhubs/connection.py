"""One connection: protocol headers, SASL, open and close, heartbeats, and the sessions on it.

It does no input or output itself: bytes are fed to it, and it writes to a `ByteTransport`, which may be a socket or a
WebSocket. What it keeps for a client is bounded: what is written and not yet taken by the client, what was sent and is
not yet stored, and what waits for the client to go on; and so is what all connections keep together.
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
from evenflow.emulators.eventhubs.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.amqp.performatives import Attach
    from evenflow.emulators.eventhubs.claims import Claims
    from evenflow.emulators.eventhubs.limits import ServerLimits
    from evenflow.emulators.eventhubs.links import AmqpLink

CHANNEL_MAX = 4_999
IDLE_MS = 120_000
"""How often we ask to hear from a client."""
IDLE_TIMEOUT_S = 2 * IDLE_MS / 1000
"""How long a client may be silent: twice as long as we asked for."""
OPEN_TIMEOUT_S = 60.0
"""How long a client may take until it has opened the connection."""
CLOSE_TIMEOUT_S = 5.0
"""How long a client may take to answer our close."""

FLUSH_BYTES = 128 * 1024
"""What is written goes out at the end of a turn of the loop, or when it is this much."""
PENDING_BYTES_MAX = 8 * 1024 * 1024
"""When this much waits to be stored, or to be taken by the client, nothing more is read from it."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""What deliveries that have begun and not ended, and answers that wait for credit, may hold together."""

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
SASL_OK, SASL_AUTH = 0, 1

_log = logging.getLogger(__name__)


class ByteTransport(Protocol):
    """Where a connection's bytes go."""

    def write(self, data: bytes) -> None: ...

    def buffered_bytes(self) -> int:
        """What was written and has not left yet."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """After what was written has left."""

    def abort(self) -> None: ...


class AmqpService(Protocol):
    """What is behind a connection: it decides what a link is for."""

    name: str
    limits: ServerLimits

    def claims(self) -> Claims:
        """For a new connection, which has none yet."""

    def link(self, session: Session, attach: Attach) -> AmqpLink:
        """The link that was asked for, which answers by itself. Raises `AmqpError` to refuse it."""

    def accepts_connections(self) -> bool:
        """Whether a connection may be opened now."""


class Connection:
    def __init__(self, wire: ByteTransport, service: AmqpService, on_closed: Callable[[Connection], None]) -> None:
        self.service = service
        self.claims = service.claims()
        self.frame_bytes_max = FRAME_BYTES_LEAST
        """What the client takes."""
        self.sessions: dict[int, Session] = {}
        self.is_open = False
        self.can_write = True
        """Whether the client takes what is written; those who have much to performatives wait until it does."""
        self._wire = wire
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._inbox = FrameBuffer()
        self._next: Callable[[], bool] = self._take_header
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
        """What the client does not take, as far as it is counted: while it is too much."""
        self._reading = True
        self._received_s = self._sent_s = self._loop.time()
        self._heartbeat_s: float | None = None
        self._timer = self._loop.call_later(OPEN_TIMEOUT_S, self._open_timed_out)

    # What comes in

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
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
            _log.exception("A mistake of ours ends the connection of a client.")
            self.fail(AmqpError(INTERNAL, "The server made a mistake; its log has more."))
        finally:
            self._feeding = False
        self.flush()

    def _take_header(self) -> bool:
        header = self._inbox.header()
        if header is None:
            return False
        if header == SASL_HEADER and not self._authenticated:
            self._write(SASL_HEADER + framed(0, performatives.sasl_mechanisms(MECHANISMS), SASL_FRAME))
            self._next = self._take_sasl
        elif header == AMQP_HEADER:
            # With SASL before it or without, as the service has it: what counts are tokens. The JavaScript client that
            # has a signature in place of a key begins so.
            self._write(AMQP_HEADER)
            self._next = self._take_frame
        else:
            # As the standard says: our own header tells what we would have liked, and then the connection ends.
            self._write(AMQP_HEADER if self._authenticated else SASL_HEADER)
            self._disconnect()
        return True

    def _take_sasl(self) -> bool:
        frame = self._inbox.frame()
        if frame is None:
            return False
        if frame.kind != SASL_FRAME:
            raise AmqpError(FRAMING, "A frame of SASL is expected.")
        init, _ = performatives.parse(frame.body)
        if not isinstance(init, SaslInit):
            raise AmqpError(NOT_ALLOWED, "A choice of a mechanism is expected.")
        known = init.mechanism in MECHANISMS
        self._write(framed(0, performatives.sasl_outcome(SASL_OK if known else SASL_AUTH), SASL_FRAME))
        if not known:
            self._disconnect()
        self._authenticated = known
        self._next = self._take_header
        return True

    def _take_frame(self) -> bool:
        frame = self._inbox.frame()
        if frame is None:
            return False
        if frame.kind != AMQP_FRAME:
            raise AmqpError(FRAMING, f"A frame of type {frame.kind} is none of AMQP.")
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
                    # There are clients that take leave of the links of a session that they have ended already.
                    return
                raise AmqpError(NOT_ALLOWED, f"There is no session on channel {frame.channel}.")
            if kind is End:
                self.end_session(session)
            else:
                session.dispatch(found, payload)

    def _open(self, asked: Open) -> None:
        if self.is_open:
            raise AmqpError(NOT_ALLOWED, "The connection is open already.")
        if asked.max_frame_size is not None and asked.max_frame_size < FRAME_BYTES_LEAST:
            raise AmqpError(FRAMING, f"Frames of {FRAME_BYTES_LEAST} bytes have to be taken by everybody.")
        self.frame_bytes_max = min(asked.max_frame_size or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self._send_open()
        self._timer.cancel()
        if not self.service.accepts_connections():
            raise AmqpError(LIMIT_EXCEEDED, "There are too many connections. Close some, or try again later.")
        if asked.idle_timeout_ms:
            # A quarter of what the client waits: one that is busy hears of us late.
            self._heartbeat_s = max(0.05, asked.idle_timeout_ms / 4000)
        self._check_idle()

    def _send_open(self) -> None:
        self.is_open = True
        opened = performatives.open_(
            self.service.name, frame_bytes=FRAME_BYTES_MAX, channel_max=CHANNEL_MAX, idle_ms=IDLE_MS
        )
        self.send(0, opened)

    def _begin(self, channel: int, asked: Begin) -> None:
        if channel > CHANNEL_MAX:
            raise AmqpError(FRAMING, f"Channel {channel} is beyond the {CHANNEL_MAX} that were agreed.")
        if channel in self.sessions:
            raise AmqpError(NOT_ALLOWED, f"There is a session on channel {channel} already.")
        self._limits.check_session()
        self.sessions[channel] = Session(self, channel, asked)
        self._limits.sessions += 1

    def end_session(self, session: Session, error: AmqpError | None = None) -> None:
        """Ended by the client, or by us for an error; then its own end may still come, and means nothing."""
        if self.sessions.get(session.channel) is session:
            if error is None:
                del self.sessions[session.channel]
                self._limits.sessions -= 1
            if session.end():
                self.send(session.channel, performatives.end(error))

    # What goes out

    def send(self, channel: int, performative: bytes) -> None:
        self._write(framed(channel, performative))

    def send_frames(self, frames: bytes) -> None:
        """Frames that are complete already."""
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
        """More, or with a negative size less, waits to be stored."""
        self._pending_bytes += size_bytes
        self._limits.held_bytes += size_bytes
        self.update_reading()

    def reserve_bytes(self, size_bytes: int) -> None:
        """More waits for the client to go on. Raises when it is too much, and then it is not kept."""
        if size_bytes and (self._kept_bytes + size_bytes > KEPT_BYTES_MAX or self._limits.is_full):
            raise AmqpError(LIMIT_EXCEEDED, "Too much is kept of deliveries without an end, or answers without credit.")
        self.release_bytes(-size_bytes)

    def release_bytes(self, size_bytes: int) -> None:
        """What was kept is not any more."""
        self._kept_bytes -= size_bytes
        self._limits.held_bytes -= size_bytes

    def update_reading(self) -> None:
        """Nothing is read from a client while too much of its own is here; and while too much of all clients' is, from
        those who have a part in it. It is called again when that has become less: so nobody waits for others alone."""
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

    # The end

    def fail(self, error: AmqpError) -> None:
        """Tell the client what was wrong, as far as it can be told yet, and end the connection."""
        if self._closed or self._closing:
            return
        if self._next == self._take_frame:
            if not self.is_open:
                self._send_open()
            self._closing = True
            self.send(0, performatives.close(error))
        if error.condition in (DECODE, FRAMING, INTERNAL) or not self._closing:
            # What else it sends cannot be understood, so its answer will not be either.
            self._disconnect()
            return
        self._end_sessions()
        self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._disconnect)

    def shut_down(self) -> None:
        """The server stops."""
        self.fail(AmqpError(FORCED, "The server stops. Connect again later."))
        self._disconnect()

    def _answer_close(self) -> None:
        if not self._closing:
            self.send(0, performatives.close())
        self._disconnect()

    def _open_timed_out(self) -> None:
        self._disconnect()

    def _check_idle(self) -> None:
        """Every now and then: are we still heard from, and do we have to be heard?"""
        now_s = self._loop.time()
        limit_s = IDLE_TIMEOUT_S
        if self._pending_bytes and not self._reading:
            # It is we who do not listen, until what it has sent is stored.
            self._received_s = now_s
        if now_s - self._received_s >= limit_s:
            self.fail(AmqpError(LIMIT_EXCEEDED, f"Nothing was heard for {limit_s:.0f} s."))
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
        # Whoever does not take what was written last is not waited for.
        self._loop.call_later(CLOSE_TIMEOUT_S, self._wire.abort)

    def on_disconnected(self) -> None:
        """The connection is gone; nothing more is said or heard."""
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
