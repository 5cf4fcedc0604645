"""Converts entries of a stream to events, and events to entries.

An entry is a list of fields. One is the body, one the key, and the others are properties. Valid UTF-8 becomes text. The
kinds of properties that are not text are stored in one more field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.model import Event
from evenflow.sources.redis_streams.positions import TIME_MOST_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.sources.redis_streams.positions import StreamPosition

KINDS = "evenflow-kinds"
"""A field that lists the properties that are not text: `json` or `bytes` for each."""
PROPERTY = "evenflow-property:"
"""Prefix of a property whose name would otherwise collide with another field."""


class EntryFields(msgspec.Struct, frozen=True):
    """The names of the fields for the body and the key."""

    body: str = "body"
    key: str = "key"

    def event_of(self, fields: Sequence[bytes], place: StreamPosition) -> Event:
        found = {_text(name): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
        body, key = found.pop(self.body, b""), found.pop(self.key, None)
        kinds = _kinds(found.pop(KINDS, None))
        properties = {name.removeprefix(PROPERTY): _read(value, kinds.get(name)) for name, value in found.items()}
        position = place.position
        return Event(
            body,
            None if key is None else _text(key),
            properties or None,
            position.sequence,
            1000 * min(place.id.time_ms, TIME_MOST_MS),
            position.offset,
        )

    def fields_of(self, event: Event) -> list[bytes]:
        fields = [self.body.encode(), event.body]
        if event.key is not None:
            fields += [self.key.encode(), event.key.encode()]
        kinds: dict[str, str] = {}
        for name, value in (event.properties or {}).items():
            field = PROPERTY + name if name in (self.body, self.key, KINDS) or name.startswith(PROPERTY) else name
            if isinstance(value, bytes):
                kinds[field] = "bytes"
            elif not isinstance(value, str):
                kinds[field] = "json"
            fields += [field.encode(), _written(value)]
        if kinds:
            fields += [KINDS.encode(), msgspec.json.encode(kinds)]
        return fields


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _written(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _read(value: bytes, kind: str | None) -> Any:
    if kind == "bytes":
        return value
    try:
        return msgspec.json.decode(value) if kind == "json" else value.decode()
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return value


def _kinds(value: bytes | None) -> dict[str, str]:
    try:
        return msgspec.json.decode(value or b"{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}
