"""From a message of the official client to an event, and back.

The client decodes AMQP's strings, symbols and binary values all to bytes, so that nobody can tell them apart: what is
UTF-8 becomes text here, in keys and properties. A body stays what it is: the data sections, joined. A body that is no
data but a value or a sequence becomes JSON (a value that is binary or text: itself).
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
"""Annotations that an event has as its own fields."""
MILLISECOND_US = MICROSECONDS // 1000
SENDABLE = (str, bytes, bool, int, float, datetime, UUID, type(None))
"""What a value of a property may be. (The client sends each as the AMQP type that it takes for it.)"""


class AnnotatedEvent(Event, frozen=True, array_like=True, gc=False):
    """An event that still has the message it came in, for those who need all of it."""

    message: Any = None

    @property
    def data(self) -> Any:
        """As the official client gives it: an `azure.eventhub.EventData`, with its `raw_amqp_message`."""
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
    """The application's own, and beside them what the system knows: AMQP's properties and the other annotations.

    Where both have a name, the application's own is meant.
    """
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
    """AMQP's application properties have texts as names and simple values."""
    for name, value in (event.properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, SENDABLE):
            raise Misconfigured(
                f"The property {name!r} holds {type(value).__name__}, which an event hub's events cannot have: give a"
                " text, a number, a truth value, bytes, a time or a UUID, or put it into the body."
            )
