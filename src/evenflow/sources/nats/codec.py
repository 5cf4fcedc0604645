"""Converts JetStream messages to events, and the key and properties of events to headers.

A message's sequence and time are part of its reply subject.
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
"""Prefix of headers with a producer's conditions. They have no meaning once the message is stored."""


class MessageMetadata(NamedTuple):
    sequence: int
    number: int
    """The message's number in its consumer, from 1."""
    time_us: int
    pending: int
    """How many more messages there were for the consumer."""


def metadata_of(reply: str) -> MessageMetadata:
    """`$JS.ACK.[DOMAIN.ACCOUNT.]STREAM.CONSUMER.DELIVERED.SEQUENCE.NUMBER.TIME.PENDING[.TOKEN]`."""
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    sequence, number, time_ns, pending = map(int, tokens[at : at + 4])
    return MessageMetadata(sequence, number, time_ns // 1000, pending)


def event_of(message: Msg, metadata: MessageMetadata, subject: str) -> Event:
    headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith(EXPECTED)}
    key = headers.pop(KEY, None)
    own = headers.pop(PROPERTIES, None)
    properties: dict[str, Any] = {**headers, **(_decoded(own) if own is not None else {})}
    if key is None and message.subject != subject:
        key = _matched(message.subject, subject)
    return Event(message.data, key, properties or None, metadata.sequence, metadata.time_us)


def _matched(subject: str, pattern: str) -> str:
    """The tokens that match the wildcards. Where the subject contains more than the partition, they are the key."""
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
    """Headers cannot hold non-ASCII characters; JSON can escape them."""
    return json.dumps(msgspec.to_builtins(properties))
