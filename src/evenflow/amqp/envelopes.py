"""How a message lives in the hub: what arrives becomes an event with its wire form beside it, and what leaves is that
form again, with the annotations that say where and when it was stored.

Of what arrives, body, key and properties become the event's own, so that a processor on the hub reads them as it reads
any other. The other sections are kept as they came. The body is kept once: it is part of the wire
form only where it is more than one run of bytes.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
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
    section_at,
    sections,
    value_of,
)
from evenflow.amqp.types import (
    Described,
    Symbol,
    Timestamp,
    decode,
    described,
    end_of,
    map_of,
    plain_map,
    string,
    symbol,
)
from evenflow.hub.records import Wire, WireEvent, properties_of, survives

if TYPE_CHECKING:
    from evenflow.amqp.sections import Section
    from evenflow.hub.records import StoredEvent

BATCH_FORMAT = 0x80013700
"""The message format of a batch: each of its data sections is a whole message."""

KEY = "x-opt-partition-key"
OFFSET = "x-opt-offset"
SEQUENCE_NUMBER = "x-opt-sequence-number"
ENQUEUED_TIME = "x-opt-enqueued-time"
_OURS = frozenset((KEY, OFFSET, SEQUENCE_NUMBER, ENQUEUED_TIME))
"""Annotations that the hub writes itself, whatever a sender says."""

_SYSTEM = (
    *("message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding"),
    *("absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id"),
)
"""A message's properties, as an event has them among its own."""

HEAD_BYTES_KEPT = 1_024
HEADS_KEPT = 1_024
"""The events of one sender often have the same head; one that was seen before is not looked into again."""


# In


class _Head(NamedTuple):
    """What comes before the body of a message."""

    key: str | None
    properties: dict[str, Any] | None
    wire: Wire | None


_NO_HEAD = _Head(None, None, None)


def messages_of(payload: bytes, message_format: int) -> tuple[str | None, list[WireEvent]]:
    """The key of a delivery, if it has one, and the events in it."""
    if message_format != BATCH_FORMAT:
        event = event_of(payload)
        return event.key, [event]
    key, events = None, []
    for section in sections(payload):
        if section.code == DATA:
            events.append(event_of(value_of(payload, section)))
        elif section.code == MESSAGE_ANNOTATIONS:
            key = _key(value_of(payload, section))
    return key, events if key is None else [_with_key(event, key) for event in events]


def _with_key(event: WireEvent, key: str) -> WireEvent:
    if event.key == key:
        return event
    return WireEvent(event.body, key, event.properties, wire=event.wire)


def event_of(message: bytes) -> WireEvent:
    """One message as an event. All of it is decoded once, so that nobody is served what cannot be read."""
    at, size = 0, len(message)
    while at < size:
        section = section_at(message, at)
        if not is_head(section):
            break
        at = section.end
    head = _NO_HEAD
    if at:
        head = _seen_head(message[:at]) if at <= HEAD_BYTES_KEPT else _head(message[:at])
    if at < size and section.code == DATA and section.end == size:
        return WireEvent(value_of(message, section), head.key, head.properties, wire=head.wire)
    body, tail = _body(message[at:])
    wire = head.wire or Wire()
    return WireEvent(
        body,
        head.key,
        head.properties,
        wire=Wire(wire.middle, wire.header, wire.notes, wire.notes_count, tail),
    )


def _head(head: bytes) -> _Head:
    key, header, middle, notes, notes_count = None, b"", [], b"", 0
    # What the system knows, and after it the application's own: where both have a name, the latter is meant.
    properties: dict[Any, Any] = {}
    for section in sections(head):
        found = value_of(head, section)
        if section.code == HEADER:
            header = head[section.begin : section.end]
        elif section.code == MESSAGE_ANNOTATIONS:
            key = _key(found)
            notes_count, notes = _notes(head, section, found)
            properties |= {name: value for name, value in found.items() if name not in _OURS}
        elif section.code != DELIVERY_ANNOTATIONS:
            middle.append(head[section.begin : section.end])
            properties |= found if section.code == APPLICATION_PROPERTIES else _system(found)
    if not (header or middle or notes):
        return _Head(key, None, None)
    return _Head(key, _storable(properties), Wire(b"".join(middle), header, notes, notes_count))


_seen_head = lru_cache(maxsize=HEADS_KEPT)(_head)


def _key(annotations: dict[Any, Any]) -> str | None:
    key = annotations.get(KEY)
    if isinstance(key, bytes):
        key = key.decode(errors="replace")
    return None if key is None else str(key)


def _notes(head: bytes, section: Section, found: dict[Any, Any]) -> tuple[int, bytes]:
    """The sender's own annotations as they came, and how many items they are."""
    if not any(name not in _OURS for name in found):
        return 0, b""
    at = section.value + (9 if head[section.value] == 0xD1 else 3)
    kept = []
    for _ in range(len(found)):
        name, value_at = decode(head, at)
        end = end_of(head, value_at) if head[value_at] else decode(head, value_at)[1]
        if name not in _OURS:
            kept.append(head[at:end])
        at = end
    return 2 * len(kept), b"".join(kept)


def _system(found: list[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(_SYSTEM, found, strict=False) if value is not None}


def _storable(found: dict[Any, Any]) -> dict[str, Any] | None:
    properties = {str(name): natural(value) for name, value in found.items()}
    if not survives(properties):
        properties = {name: value if survives({name: value}) else str(value) for name, value in properties.items()}
    return properties or None


def natural(value: Any) -> Any:
    """A value as a program in Python would have it, and as it can be stored."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Described):
        return natural(value.value)
    if isinstance(value, list):
        return [natural(one) for one in value]
    if isinstance(value, dict):
        return {str(natural(name)): natural(one) for name, one in value.items()}
    return value


def _moment(time: Timestamp) -> datetime | int:
    try:
        return datetime.fromtimestamp(time / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return int(time)


def _body(sections_left: bytes) -> tuple[bytes, bytes]:
    """The bytes that stand for a body which is not one data section; and all of it as it came."""
    data: list[bytes] = []
    values: list[Any] = []
    kind = 0
    for section in sections(sections_left):
        found = value_of(sections_left, section)
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
        return b"" if values[0] is None else _bytes_of(values[0]), sections_left
    return _bytes_of(values) if kind == SEQUENCE else b"".join(data), sections_left


def _bytes_of(value: Any) -> bytes:
    value = natural(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value)


# Out


def _named(name: str) -> bytes:
    return symbol(name)


_SEQUENCE_AND_TIME = struct.Struct(f">{len(_named(SEQUENCE_NUMBER))}sBq{len(_named(ENQUEUED_TIME))}sBq")
_SEQUENCE_NAME, _TIME_NAME, _OFFSET_NAME, _KEY_NAME = map(_named, (SEQUENCE_NUMBER, ENQUEUED_TIME, OFFSET, KEY))
_OFFSET_CODE = _OFFSET_NAME + b"\xa1"
_ANNOTATIONS = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS))
_SMALL_DATA = bytes((0x00, 0x53, DATA, 0xA0))
_LARGE_DATA = bytes((0x00, 0x53, DATA, 0xB0))
_SIZE = struct.Struct(">I")


def message_parts(event: StoredEvent, metric: bytes) -> list[bytes]:
    """A message as it leaves, in parts that only need to be joined. `metric` goes where delivery annotations go."""
    offset = b"%d" % event.sequence
    entries = b"".join(
        (
            _SEQUENCE_AND_TIME.pack(_SEQUENCE_NAME, 0x81, event.sequence, _TIME_NAME, 0x83, event.enqueued_us // 1000),
            _OFFSET_CODE,
            bytes((len(offset),)),
            offset,
        )
    )
    count = 6
    if event.key is not None:
        entries += _KEY_NAME + string(event.key)
        count += 2
    wire = event.wire
    if wire is None:
        middle = _native_properties(event)
        return [metric, _ANNOTATIONS, map_of(count, entries), middle, *_data(event.body)]
    if wire.notes_count:
        entries += wire.notes
        count += wire.notes_count
    tail = _data(event.body) if wire.tail is None else (wire.tail,)
    return [wire.header, metric, _ANNOTATIONS, map_of(count, entries), wire.middle, *tail]


def _data(body: bytes) -> tuple[bytes, bytes, bytes]:
    size = len(body)
    return (_SMALL_DATA, bytes((size,)), body) if size < 256 else (_LARGE_DATA, _SIZE.pack(size), body)


_NO_PROPERTIES = b"\xc0"
"""A null, as the hub stores it."""


def _native_properties(event: StoredEvent) -> bytes:
    if event.properties == _NO_PROPERTIES:
        return b""
    properties = properties_of(event)
    return described(APPLICATION_PROPERTIES, plain_map(properties)) if properties else b""


__all__ = ["BATCH_FORMAT", "Symbol", "event_of", "message_parts", "messages_of", "natural"]
