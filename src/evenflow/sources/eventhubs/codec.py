"""Converts messages of the official client to events, and checks events before they are sent.

The client decodes AMQP's strings, symbols and binary values all to bytes and loses the difference. In keys and
properties, valid UTF-8 becomes text here. A body of data sections is their concatenation. A body that is a value or a
sequence becomes JSON, except that a binary or text value stays as it is.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from evenflow.errors import Misconfigured
from evenflow.model import MICROSECONDS, Event

OFFSET = b"x-opt-offset"
SEQUENCE = b"x-opt-sequence-number"
ENQUEUED = b"x-opt-enqueued-time"
KEY = b"x-opt-partition-key"
OWN_FIELDS = frozenset({OFFSET, SEQUENCE, ENQUEUED, KEY})
"""Annotations that become fields of the event."""
MILLISECOND_US = MICROSECONDS // 1000
SENDABLE = (str, bytes, bool, int, float, datetime, UUID, type(None))
"""The types of property values that the client can send."""


class AnnotatedEvent(Event, frozen=True, array_like=True, gc=False):
    """An event with the original message, for applications that need all of it."""

    message: Any = None

    @property
    def data(self) -> Any:
        """The official client's `azure.eventhub.EventData`, with its `raw_amqp_message`."""
        from azure.eventhub import EventData

        return EventData._from_message(self.message)


def event_of(message: Any) -> Event:
    annotations = message.message_annotations
    offset, key = annotations[OFFSET], annotations.get(KEY)
    data = message.data
    return Event(
        data[0] if data is not None and len(data) == 1 else _body(message),
        None if key is None else _text(key),
        _properties(message, annotations),
        annotations[SEQUENCE],
        annotations[ENQUEUED] * MILLISECOND_US,
        offset.decode() if type(offset) is bytes else str(offset),
    )


def annotated_event_of(message: Any) -> AnnotatedEvent:
    event = event_of(message)
    return AnnotatedEvent(
        event.body, event.key, event.properties, event.sequence, event.enqueued_us, event.offset_text, message
    )


def _properties(message: Any, annotations: dict[bytes, Any]) -> dict[str, Any] | None:
    """The application's properties, AMQP's properties and the other annotations. The application's take precedence."""
    own, system = message.application_properties, message.properties
    if not own and system is None and annotations.keys() <= OWN_FIELDS:
        return None
    found = {_text(name): _plain(value) for name, value in annotations.items() if name not in OWN_FIELDS}
    if system is not None:
        found |= {
            name.replace("_", "-"): _plain(value) for name, value in system._asdict().items() if value is not None
        }
    if own:
        found |= {_text(name): _plain(value) for name, value in own.items()}
    return found or None


def _body(message: Any) -> bytes:
    if message.data is not None:
        return b"".join(message.data)
    if message.sequence is not None:
        return _json([item for section in message.sequence for item in section])
    value = message.value
    if value is None:
        return b""
    return value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> bytes:
    return msgspec.json.encode(_plain(value), enc_hook=str)


def _plain(value: Any) -> Any:
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {_text(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def check_sendable(event: Event) -> None:
    """AMQP's application properties have text names and simple values."""
    for name, value in (event.properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, SENDABLE):
            raise Misconfigured(
                f"The property {name!r} has the type {type(value).__name__}, which Event Hubs cannot store. Use text, a"
                " number, a boolean, bytes, a time or a UUID, or put it into the body."
            )
