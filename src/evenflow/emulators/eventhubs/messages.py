"""Converts AMQP messages to events of the hub and back.

A received message's body, key and properties become the event's, so that processors on the hub read them like those of
any other event. The other sections are stored unchanged, and the body is stored twice only if it is more than one data
section. A sent message gets the annotations that say where and when the event was stored.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from evenflow.amqp.conditions import DecodeError
from evenflow.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    is_head,
    normalized,
    section_at,
    sections,
    value_of,
)
from evenflow.amqp.types import (
    Described,
    Timestamp,
    decode,
    described,
    map_of,
    plain_map,
    string,
    symbol,
)
from evenflow.embedded.hub.records import WireEvent, WireSections, is_storable, properties_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.amqp.sections import Section
    from evenflow.embedded.hub.records import StoredEvent

BATCH_FORMAT = 0x80013700
"""The message format of a batch: each of its data sections is a whole message."""

KEY = "x-opt-partition-key"
OFFSET = "x-opt-offset"
SEQUENCE_NUMBER = "x-opt-sequence-number"
ENQUEUED_TIME = "x-opt-enqueued-time"
_SERVICE_ANNOTATIONS = frozenset((KEY, OFFSET, SEQUENCE_NUMBER, ENQUEUED_TIME))
"""Annotations that the server sets itself; those of a sender are dropped."""

_PROPERTY_NAMES = (
    *("message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding"),
    *("absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id"),
)
"""The names of the fields of the properties section, as they appear in an event's properties."""

HEAD_BYTES_KEPT = 1_024
HEADS_KEPT = 1_024
"""A sender's events often have identical heads, so decoded heads are cached."""


# Received messages


class _Head(NamedTuple):
    """The sections before the body of a message."""

    key: str | None
    properties: dict[str, Any] | None
    wire: WireSections | None


_NO_HEAD = _Head(None, None, None)


def decode_delivery(payload: bytes, message_format: int) -> tuple[str | None, list[WireEvent]]:
    """Decode a delivery into its partition key, if any, and its events."""
    if message_format != BATCH_FORMAT:
        event = decode_message(payload)
        return event.key, [event]
    at, size, key = 0, len(payload), None
    while at < size:
        section = section_at(payload, at)
        if not is_head(section):
            break
        if section.code == MESSAGE_ANNOTATIONS:
            key = _key(value_of(payload, section))
        at = section.end
    events = [decode_message(message) for message in _data_sections(payload, at)]
    return key, events if key is None else [_with_key(event, key) for event in events]


def _data_sections(payload: bytes, at: int) -> Iterator[bytes]:
    """The messages of a batch: its data sections, after which a footer may follow."""
    size = len(payload)
    while at < size:
        if payload.startswith(_SMALL_DATA, at) and at + 5 <= size:
            begin, end = at + 5, at + 5 + payload[at + 4]
        elif payload.startswith(_LARGE_DATA, at) and at + 8 <= size:
            begin, end = at + 8, at + 8 + _SIZE.unpack_from(payload, at + 4)[0]
        else:
            section = section_at(payload, at)
            found = value_of(payload, section)
            if section.code == FOOTER and section.end == size:
                return
            if section.code != DATA:
                raise DecodeError("A batch may contain only data sections.")
            yield found
            at = section.end
            continue
        if end > size:
            raise DecodeError("A message in a batch is incomplete.")
        yield payload[begin:end]
        at = end


def _with_key(event: WireEvent, key: str) -> WireEvent:
    if event.key == key:
        return event
    return WireEvent(event.body, key, event.properties, wire=event.wire)


def decode_message(message: bytes) -> WireEvent:
    """Decode one message into an event. All sections are decoded once, so that no receiver gets invalid data."""
    at, size = 0, len(message)
    if size >= 5 and message.startswith(_SMALL_DATA) and size == 5 + message[4]:
        # Only a body, as most senders send it.
        return WireEvent(message[5:])
    if size >= 8 and message.startswith(_LARGE_DATA) and size == 8 + _SIZE.unpack_from(message, 4)[0]:
        return WireEvent(message[8:])
    while at < size:
        section = section_at(message, at)
        if not is_head(section):
            break
        at = section.end
    head = _NO_HEAD
    if at:
        head = _cached_head(message[:at]) if at <= HEAD_BYTES_KEPT else _head(message[:at])
    if at < size and section.code == DATA and section.end == size:
        return WireEvent(value_of(message, section), head.key, head.properties, wire=head.wire)
    body, tail = _body(message[at:])
    wire = head.wire or WireSections()
    return WireEvent(
        body,
        head.key,
        head.properties,
        wire=WireSections(wire.properties, wire.header, wire.annotations, wire.annotations_count, tail),
    )


def _head(head: bytes) -> _Head:
    key, header, property_sections, annotations, annotations_count = None, b"", [], b"", 0
    # Application properties come after system properties and override them.
    properties: dict[Any, Any] = {}
    for section in sections(head):
        found = value_of(head, section)
        if section.code == HEADER:
            header = normalized(head, section)
        elif section.code == MESSAGE_ANNOTATIONS:
            key = _key(found)
            annotations_count, annotations = _own_annotations(head, section, found)
            properties |= {name: value for name, value in found.items() if name not in _SERVICE_ANNOTATIONS}
        elif section.code != DELIVERY_ANNOTATIONS:
            property_sections.append(normalized(head, section))
            properties |= found if section.code == APPLICATION_PROPERTIES else _named_properties(found)
    if not (header or property_sections or annotations):
        return _Head(key, None, None)
    return _Head(
        key, _storable(properties), WireSections(b"".join(property_sections), header, annotations, annotations_count)
    )


_cached_head = lru_cache(maxsize=HEADS_KEPT)(_head)


def _key(annotations: dict[Any, Any]) -> str | None:
    key = annotations.get(KEY)
    if isinstance(key, bytes):
        key = key.decode(errors="replace")
    return None if key is None else str(key)


def _own_annotations(head: bytes, section: Section, found: dict[Any, Any]) -> tuple[int, bytes]:
    """The sender's annotations, encoded, and their number of items."""
    if not any(name not in _SERVICE_ANNOTATIONS for name in found):
        return 0, b""
    at = section.value + (9 if head[section.value] == 0xD1 else 3)
    kept = []
    # Read to the end of the section instead of using the decoded dict: a symbol and an equal string are two keys.
    while at < section.end:
        name, value_at = decode(head, at)
        end = decode(head, value_at)[1]
        if name not in _SERVICE_ANNOTATIONS:
            kept.append(head[at:end])
        at = end
    return 2 * len(kept), b"".join(kept)


def _named_properties(found: list[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(_PROPERTY_NAMES, found, strict=False) if value is not None}


def _storable(found: dict[Any, Any]) -> dict[str, Any] | None:
    properties = {str(name): to_python(value) for name, value in found.items()}
    if not is_storable(properties):
        properties = {name: value if is_storable({name: value}) else str(value) for name, value in properties.items()}
    return properties or None


def to_python(value: Any) -> Any:
    """Convert a decoded value to a plain Python value that the hub can store."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Described):
        return to_python(value.value)
    if isinstance(value, list):
        return [to_python(one) for one in value]
    if isinstance(value, dict):
        return {str(to_python(name)): to_python(one) for name, one in value.items()}
    return value


def _moment(time: Timestamp) -> datetime | int:
    try:
        return datetime.fromtimestamp(time / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return int(time)


def _body(sections_left: bytes) -> tuple[bytes, bytes]:
    """The event body for message bodies other than one data section, and those sections as received."""
    data: list[bytes] = []
    values: list[Any] = []
    tail: list[bytes] = []
    kind = 0
    for section in sections(sections_left):
        found = value_of(sections_left, section)
        tail.append(normalized(sections_left, section))
        if section.code == FOOTER:
            continue
        if kind not in (0, section.code):
            raise DecodeError("A message has bodies of two kinds.")
        kind = section.code
        if kind == DATA:
            data.append(found)
        elif kind == SEQUENCE:
            values += found
        else:
            values.append(found)
    if kind == VALUE:
        return b"" if values[0] is None else _bytes_of(values[0]), b"".join(tail)
    return _bytes_of(values) if kind == SEQUENCE else b"".join(data), b"".join(tail)


def _bytes_of(value: Any) -> bytes:
    value = to_python(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value)


# Sent messages

_NAMES = tuple(map(symbol, (SEQUENCE_NUMBER, ENQUEUED_TIME, OFFSET)))
_ANNOTATIONS = struct.Struct(f">4sBB {len(_NAMES[0])}sBq {len(_NAMES[1])}sBq {len(_NAMES[2])}sBB")
"""The annotations of every message, up to the text of the offset, which comes last."""
_SMALL_MAP = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS, 0xC1))
_SMALL_MAP_AT = len(_SMALL_MAP) + 2
"""The offset of the first name. The count before it belongs to the map's size."""
_OWN_ITEMS = 6
_KEY_NAME = symbol(KEY)
_SMALL_DATA = bytes((0x00, 0x53, DATA, 0xA0))
_LARGE_DATA = bytes((0x00, 0x53, DATA, 0xB0))
_SIZE = struct.Struct(">I")


def encode_message(event: StoredEvent, metric: bytes) -> bytes:
    """Encode an event as a message. `metric` is its section of delivery annotations."""
    wire = event.wire
    annotations = b"" if event.key is None else _KEY_NAME + string(event.key)
    count = _OWN_ITEMS if event.key is None else _OWN_ITEMS + 2
    if wire is None:
        header, property_sections, tail = b"", _native_properties(event), None
    else:
        header, property_sections, tail = wire.header, wire.properties, wire.tail
        if wire.annotations_count:
            annotations += wire.annotations
            count += wire.annotations_count
    if tail is not None:
        return b"".join((header, metric, _annotations(event, count, annotations), property_sections, tail))
    body = event.body
    size = len(body)
    data = _SMALL_DATA + bytes((size,)) if size < 256 else _LARGE_DATA + _SIZE.pack(size)
    return b"".join((header, metric, _annotations(event, count, annotations), property_sections, data, body))


def _annotations(event: StoredEvent, count: int, annotations: bytes) -> bytes:
    sequence = event.sequence
    offset = b"%d" % sequence
    size = _ANNOTATIONS.size + len(offset) + len(annotations) - _SMALL_MAP_AT + 1
    small = size < 256 and count < 256
    own = _ANNOTATIONS.pack(
        _SMALL_MAP,
        size if small else 0,
        count if small else 0,
        _NAMES[0],
        0x81,
        sequence,
        _NAMES[1],
        0x83,
        event.enqueued_us // 1000,
        _NAMES[2],
        0xA1,
        len(offset),
    )
    if small:
        return own + offset + annotations
    return described(MESSAGE_ANNOTATIONS, map_of(count, own[_SMALL_MAP_AT:] + offset + annotations))


_NO_PROPERTIES = b"\xc0"
"""Null in the hub's encoding."""


def _native_properties(event: StoredEvent) -> bytes:
    if event.properties == _NO_PROPERTIES:
        return b""
    properties = properties_of(event)
    return described(APPLICATION_PROPERTIES, plain_map(properties)) if properties else b""
