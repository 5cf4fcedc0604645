"""Frames: how bytes that come in pieces become whole frames, and how a performative becomes a frame."""

from __future__ import annotations

import struct
from typing import NamedTuple

from evenflow.amqp.conditions import FRAMING, AmqpError

HEADER_BYTES = 8
"""A protocol header and a frame's header are both this long."""

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

AMQP_FRAME = 0
SASL_FRAME = 1

FRAME_BYTES_MAX = 65_536
"""What we take, as the service does, and what we send to those who take more."""
FRAME_BYTES_LEAST = 512
"""What everybody has to take."""

HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    kind: int
    channel: int
    body: bytes
    """Empty in a heartbeat."""


def framed(channel: int, body: bytes, kind: int = AMQP_FRAME) -> bytes:
    return _HEAD.pack(len(body) + HEADER_BYTES, 2, kind, channel) + body


class FrameBuffer:
    """Bytes as they arrive. It keeps no more than one frame's and what came with it."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._pieces = bytearray()
        """What came since, in one piece: pieces of a few bytes would each take many."""
        self._short = 0
        """How many bytes are missing at least before there is anything to take."""

    def feed(self, data: bytes) -> None:
        if self._pieces or self._at < len(self._data):
            # Joined only when they are enough: a frame that comes byte by byte must not be copied for every byte.
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
        """The next whole frame. What is larger than agreed is refused before it has arrived."""
        at = self._at
        if not self._has(at + HEADER_BYTES):
            return None
        size, offset, kind, channel = _HEAD.unpack_from(self._data, at)
        if not HEADER_BYTES <= size <= FRAME_BYTES_MAX:
            raise AmqpError(FRAMING, f"A frame has {size} bytes; agreed are {HEADER_BYTES} to {FRAME_BYTES_MAX}.")
        if not 2 <= offset <= size // 4:
            raise AmqpError(FRAMING, f"A frame of {size} bytes says that it begins at {offset * 4}.")
        if not self._has(at + size):
            return None
        self._at = at + size
        return Frame(kind, channel, self._data[at + offset * 4 : at + size])

    def _has(self, end: int) -> bool:
        if self._pieces:
            return False
        self._short = end - len(self._data)
        return self._short <= 0
