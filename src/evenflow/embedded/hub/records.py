"""How events become rows: many events a row, so that SQLite's cost of a row is shared, and a checksum each.

A row's blob is a MessagePack list of events in array form, complete with sequence and time, so that decoding gives
finished events without another step in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

from evenflow.model import Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROW_EVENTS = 2_000
ROW_BYTES = 1024 * 1024
"""The approximate size limit of a row. A larger event gets its own row."""
EVENT_BYTES_MAX = 64 * 1024 * 1024

_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))

_encoder = msgspec.msgpack.Encoder()


class WireSections(Struct, frozen=True, array_like=True, gc=False):
    """The parts of an AMQP message besides body, key and properties, in AMQP's encoding.

    The hub stores them without reading them.
    """

    properties: bytes = b""
    """The sections before the body."""
    header: bytes = b""
    annotations: bytes = b""
    annotations_count: int = 0
    tail: bytes | None = None
    """The body sections and the footer as they arrived, if they are more than the bytes of `body`."""


class WireEvent(Event, frozen=True, array_like=True, gc=False):
    """An event that arrived over AMQP. Readers of the hub see the event only."""

    wire: WireSections | None = None


class StoredEvent(Struct, frozen=True, array_like=True, gc=False):
    """An event as it is stored, for servers that forward it: its properties stay encoded."""

    body: bytes
    key: str | None
    properties: msgspec.Raw
    sequence: int
    enqueued_us: int
    offset_text: str | None = None
    wire: WireSections | None = None


class LogRow(NamedTuple):
    """Events that were written together, still encoded and unchecked."""

    first: int
    last: int
    size_bytes: int
    crc: int
    blob: bytes | bytearray
    """For a large row, one of the log's buffers; only its first `size_bytes` belong to the row."""

    @property
    def events_count(self) -> int:
        return self.last - self.first + 1


class LogRead(NamedTuple):
    """The rows that one read of a log returned."""

    rows: list[LogRow]
    all: bool
    """Whether the read reached the end of the log."""


_decoder = msgspec.msgpack.Decoder(list[Event])
_stored_decoder = msgspec.msgpack.Decoder(list[StoredEvent])


def encode(events: Sequence[Event], first: int, enqueued_us: int) -> bytes:
    rows = [
        (event.body, event.key, event.properties, place, enqueued_us)
        if type(event) is not WireEvent
        else (event.body, event.key, event.properties, place, enqueued_us, None, event.wire)
        for place, event in enumerate(events, first)
    ]
    return _encoder.encode(rows)


def is_storable(properties: dict[str, Any]) -> bool:
    """Whether these properties survive encoding and decoding. Others would make their whole row unreadable."""
    if not all(type(name) is str for name in properties):
        return False
    if all(type(value) in _PLAIN for value in properties.values()):
        return True
    try:
        _decoder.decode(_encoder.encode([(b"", None, properties)]))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return False
    return True


def decode(blob: bytes | memoryview) -> list[Event]:
    return _decoder.decode(blob)


def decode_stored(blob: bytes | memoryview) -> list[StoredEvent]:
    # Copy, since encoded properties refer to the blob, and the row's buffer is reused.
    return _stored_decoder.decode(bytes(blob))


def properties_of(event: StoredEvent) -> dict[str, Any] | None:
    found: dict[str, Any] | None = msgspec.msgpack.decode(event.properties)
    return found


def checksum(blob: bytes | memoryview) -> int:
    return crc32(blob)


def split_into_rows(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Divide events into rows, in order."""
    if len(events) <= ROW_EVENTS and body_bytes(events) <= ROW_BYTES:
        yield events
        return
    start = size_bytes = 0
    for index, event in enumerate(events):
        length = len(event.body)
        if length > EVENT_BYTES_MAX:
            raise ValueError(f"an event has {length} bytes; the maximum is {EVENT_BYTES_MAX}")
        if index > start and (index - start >= ROW_EVENTS or size_bytes + length > ROW_BYTES):
            yield events[start:index]
            start, size_bytes = index, 0
        size_bytes += length
    yield events[start:]


def body_bytes(events: Sequence[Event]) -> int:
    return sum([len(event.body) for event in events])
