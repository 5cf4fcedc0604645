"""Frames: assembles received bytes into frames, and wraps performatives in frames."""

from __future__ import annotations

import struct
from typing import NamedTuple

from evenflow.amqp.conditions import FRAMING, AmqpError

HEADER_BYTES = 8
"""The size of a protocol header and of a frame header."""

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

AMQP_FRAME = 0
SASL_FRAME = 1

FRAME_BYTES_MAX = 65_536
"""The largest frame to receive, as in the service, and to send."""
FRAME_BYTES_LEAST = 512
"""The frame size that every peer must accept."""

HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    kind: int
    channel: int
    body: bytes
    """Empty for a heartbeat."""


def framed(channel: int, body: bytes, kind: int = AMQP_FRAME) -> bytes:
    return _HEAD.pack(len(body) + HEADER_BYTES, 2, kind, channel) + body


class FrameBuffer:
    """Collects received bytes and returns frames. It holds at most one frame plus the last received chunk."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._pieces = bytearray()
        """The bytes received since, in one array: a list of small chunks would need much more memory."""
        self._short = 0
        """The minimum number of bytes missing until the next header or frame is complete."""

    def feed(self, data: bytes) -> None:
        if self._pieces or self._at < len(self._data):
            # Join only when complete, so that a frame that arrives byte by byte is not copied for every byte.
            self._short -= len(data)
            if self._short > 0:
                self._pieces += data
                return
            self._data = b"".join((self._data[self._at :], self._pieces, data))
            self._pieces = bytearray()
        else:
            self._data = data
        self._at = 0

    def header(self) -> bytes | None:
        """The next eight bytes."""
        end = self._at + HEADER_BYTES
        if not self._has(end):
            return None
        found = self._data[self._at : end]
        self._at = end
        return found

    def frame(self) -> Frame | None:
        """The next complete frame. A frame larger than agreed is rejected by its header."""
        at = self._at
        if not self._has(at + HEADER_BYTES):
            return None
        size, offset, kind, channel = _HEAD.unpack_from(self._data, at)
        if not HEADER_BYTES <= size <= FRAME_BYTES_MAX:
            raise AmqpError(FRAMING, f"A frame has {size} bytes; it must have {HEADER_BYTES} to {FRAME_BYTES_MAX}.")
        if not 2 <= offset <= size // 4:
            raise AmqpError(FRAMING, f"A frame of {size} bytes has an invalid data offset of {offset * 4}.")
        if not self._has(at + size):
            return None
        self._at = at + size
        return Frame(kind, channel, self._data[at + offset * 4 : at + size])

    def _has(self, end: int) -> bool:
        if self._pieces:
            return False
        self._short = end - len(self._data)
        return self._short <= 0
