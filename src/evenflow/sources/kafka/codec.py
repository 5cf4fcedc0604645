"""Converts messages to events, and events to messages.

Converting a message to an event costs more than everything else that happens to it here, so a batch converts lazily:
all of its messages at once, when the first is used, by loops in C, on the thread that uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, overload

import msgspec

from evenflow.model import Event
from evenflow.sources.kafka.client import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = "evenflow-kinds"
"""A header that lists the properties that are not text: `json` or `bytes` for each."""
TOMBSTONE = "kafka.tombstone"
"""A property of events whose message has no value. In a compacted topic, such a message deletes the key."""
LAST_US = 253_402_300_799_000_000
"""The last second of the year 9999. Producers that use a unit other than milliseconds send later timestamps."""

_value, _key, _offset = Message.value, Message.key, Message.offset
_headers, _timestamp = Message.headers, Message.timestamp


class LazyEvents(Sequence[Event]):
    """The events of these messages. Iterating converts all of them once; indexing before that converts one."""

    __slots__ = ("_encoding", "_made", "_messages")

    def __init__(self, messages: list[Message], encoding: str) -> None:
        self._messages = messages
        self._encoding = encoding
        self._made: list[Event] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if self._made is not None:
            return self._made[index]
        if isinstance(index, slice):
            return LazyEvents(self._messages[index], self._encoding)
        return events_of([self._messages[index]], self._encoding)[0]

    def __iter__(self) -> Iterator[Event]:
        if self._made is None:
            self._made = events_of(self._messages, self._encoding)
        return iter(self._made)

    def __repr__(self) -> str:
        return repr(list(self))


def events_of(messages: list[Message], encoding: str = "utf-8") -> list[Event]:
    keys = _texts(messages, encoding)
    times_us = [1000 * time_ms for _, time_ms in map(_timestamp, messages)]
    if times_us and (min(times_us) < 0 or max(times_us) > LAST_US):
        times_us = [min(max(0, time_us), LAST_US) for time_us in times_us]
    bodies: list[Any] = list(map(_value, messages))
    properties: Any = repeat(None)
    if any(map(_headers, messages)) or None in bodies:
        properties = [_properties(message) for message in messages]
        bodies = [b"" if body is None else body for body in bodies]
    return list(map(Event, bodies, keys, properties, map(_offset, messages), times_us))


def _texts(messages: list[Message], encoding: str) -> list[str | None]:
    try:
        if encoding == "utf-8":  # without the argument, decoding takes half the time
            return [None if key is None else key.decode() for key in map(_key, messages)]
        return [None if key is None else key.decode(encoding) for key in map(_key, messages)]
    except UnicodeDecodeError:
        return [None if key is None else key.decode(encoding, "backslashreplace") for key in map(_key, messages)]


def _properties(message: Message) -> dict[str, Any] | None:
    headers: Any = message.headers() or ()
    found: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for name, value in headers:
        if name == KINDS:
            kinds = _kinds(value)
        elif name in found:
            # Kafka allows repeated header names: the property is then the list of all values.
            before = found[name]
            found[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            found[name] = value
    properties = {name: _read(value, kinds.get(name)) for name, value in found.items()}
    if message.value() is None:
        properties[TOMBSTONE] = True
    return properties or None


def _kinds(value: Any) -> dict[str, str]:
    try:
        return msgspec.json.decode(value or b"{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _read(value: Any, kind: str | None) -> Any:
    if isinstance(value, list):
        return [_read(one, None) for one in value]
    if value is None or kind == "bytes":
        return value
    try:
        return msgspec.json.decode(value) if kind == "json" else str(value, "utf-8")
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return value


def body_of(event: Event) -> bytes | None:
    """The value of the message that is sent."""
    is_tombstone = not event.body and event.properties is not None and event.properties.get(TOMBSTONE) is True
    return None if is_tombstone else event.body


def headers_of(event: Event) -> list[tuple[str, str | bytes | None]]:
    """Text is sent as it is, so that every consumer can read it. The kinds of all other values go into KINDS."""
    headers: list[tuple[str, str | bytes | None]] = []
    kinds: dict[str, str] = {}
    for name, value in (event.properties or {}).items():
        if name == TOMBSTONE:
            continue
        if isinstance(value, str):
            headers.append((name, value.encode()))
        elif isinstance(value, bytes):
            headers.append((name, value))
            kinds[name] = "bytes"
        else:
            headers.append((name, msgspec.json.encode(value)))
            kinds[name] = "json"
    if kinds:
        headers.append((KINDS, msgspec.json.encode(kinds)))
    return headers
