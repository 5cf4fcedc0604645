"""Messages of JetStream as events, and what an event's key and properties are as headers.

Where a message is, and when it was stored, stands in the subject that an answer to it would go to.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from evenflow.model import Event

if TYPE_CHECKING:
    from evenflow.sources.nats.client import Msg

KEY, PROPERTIES = "evenflow-key", "evenflow-properties"
EXPECTED = "Nats-Expected-"
"""What a producer asked of the server: it is done with when the message is stored."""


class Place(NamedTuple):
    sequence: int
    number: int
    """Which message of its consumer's it is, from 1."""
    time_us: int
    pending: int
    """How many more there were for the consumer."""


def place_of(reply: str) -> Place:
    """`$JS.ACK.[DOMAIN.ACCOUNT.]STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIME.PENDING[.TOKEN]`."""
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    sequence, number, time_ns, pending = map(int, tokens[at : at + 4])
    return Place(sequence, number, time_ns // 1000, pending)


def event_of(message: Msg, place: Place, subject: str) -> Event:
    headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith(EXPECTED)}
    key = headers.pop(KEY, None)
    own = headers.pop(PROPERTIES, None)
    properties: dict[str, Any] = {**headers, **(_decoded(own) if own is not None else {})}
    if key is None and message.subject != subject:
        key = _matched(message.subject, subject)
    return Event(message.data, key, properties or None, place.sequence, place.time_us)


def _matched(subject: str, pattern: str) -> str:
    """What stands for the wildcards: where the subject says more than the partition, that is the key."""
    tokens, wanted = subject.split("."), pattern.split(".")
    found = [token for token, want in zip(tokens, wanted, strict=False) if want in ("*", ">")]
    return ".".join(found + tokens[len(wanted) :])


def _decoded(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {PROPERTIES: text}


def headers_of(event: Event) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    if event.key is not None:
        headers[KEY] = event.key
    if event.properties:
        headers[PROPERTIES] = _ascii(event.properties)
    return headers or None


def _ascii(properties: dict[str, Any]) -> str:
    """Headers are no place for other dead letters; JSON can do without."""
    return json.dumps(msgspec.to_builtins(properties))
