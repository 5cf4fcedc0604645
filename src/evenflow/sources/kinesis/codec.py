"""Records of Kinesis as events, and back.

A record is bytes and a partition key. What an event has beside these stands before its body, behind a mark that tells
such records from all others; a record without it is a body and a key, whoever wrote it.
"""

from __future__ import annotations

from datetime import UTC
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.model import MICROSECONDS, Event, Position

if TYPE_CHECKING:
    from datetime import datetime

MARK = b"\x00evenflow\x01"
LENGTH_BYTES = 4
KEY_CHARS_MOST = 256


class Head(msgspec.Struct, omit_defaults=True):
    key: str | None = None
    properties: dict[str, Any] | None = None


def moment(time: datetime) -> Position:
    """Before the first record that arrived then or later."""
    return Position(f"@{time.astimezone(UTC).isoformat()}")


def event_of(record: dict[str, Any]) -> Event:
    body, key, properties = bytes(record["Data"]), record["PartitionKey"], None
    if body.startswith(MARK):
        key, properties, body = _opened(body, key)
    time: datetime = record["ApproximateArrivalTimestamp"]
    # Not in floats: a time that is looked up has to be the very same.
    enqueued_us = int(time.timestamp()) * MICROSECONDS + time.microsecond
    return Event(body, key, properties, None, enqueued_us, record["SequenceNumber"])


def _opened(data: bytes, key: str) -> tuple[str | None, dict[str, Any] | None, bytes]:
    start = len(MARK) + LENGTH_BYTES
    end = start + int.from_bytes(data[len(MARK) : start])
    try:
        head = msgspec.json.decode(data[start:end], type=Head)
    except msgspec.MsgspecError:
        return key, None, data  # it only looks like one of ours
    return head.key, head.properties, data[end:]


def record_of(event: Event) -> dict[str, Any]:
    """What PutRecords takes. Events without a key go anywhere."""
    key = event.key if event.key and len(event.key) <= KEY_CHARS_MOST else token_hex(8)
    if key == event.key and not event.properties and not event.body.startswith(MARK):
        return {"Data": event.body, "PartitionKey": key}
    if event.key:
        key = event.key[:KEY_CHARS_MOST]
    head = msgspec.json.encode(Head(event.key, event.properties))
    return {"Data": MARK + len(head).to_bytes(LENGTH_BYTES) + head + event.body, "PartitionKey": key}
