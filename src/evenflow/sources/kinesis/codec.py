"""Converts records of Kinesis to events, and back.

A record is bytes and a partition key. Anything else that an event has goes into a header before its body. Such records
begin with a marker; a record without the marker, from any producer, is a body and a key.
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


class RecordHeader(msgspec.Struct, omit_defaults=True):
    key: str | None = None
    properties: dict[str, Any] | None = None


def position_at_time(time: datetime) -> Position:
    """The position before the first record that arrived at or after this time."""
    return Position(f"@{time.astimezone(UTC).isoformat()}")


def event_of(record: dict[str, Any]) -> Event:
    body, key, properties = bytes(record["Data"]), record["PartitionKey"], None
    if body.startswith(MARK):
        key, properties, body = _opened(body, key)
    time: datetime = record["ApproximateArrivalTimestamp"]
    # Not as a float: when the time is used as a start, it must be exact.
    enqueued_us = int(time.timestamp()) * MICROSECONDS + time.microsecond
    return Event(body, key, properties, None, enqueued_us, record["SequenceNumber"])


def _opened(data: bytes, key: str) -> tuple[str | None, dict[str, Any] | None, bytes]:
    start = len(MARK) + LENGTH_BYTES
    end = start + int.from_bytes(data[len(MARK) : start])
    try:
        head = msgspec.json.decode(data[start:end], type=RecordHeader)
    except msgspec.MsgspecError:
        return key, None, data  # it only resembles a record with a header
    return head.key, head.properties, data[end:]


def record_of(event: Event) -> dict[str, Any]:
    """An entry for PutRecords. Events without a key get a random one."""
    key = event.key if event.key and len(event.key) <= KEY_CHARS_MOST else token_hex(8)
    if key == event.key and not event.properties and not event.body.startswith(MARK):
        return {"Data": event.body, "PartitionKey": key}
    if event.key:
        key = event.key[:KEY_CHARS_MOST]
    head = msgspec.json.encode(RecordHeader(event.key, event.properties))
    return {"Data": MARK + len(head).to_bytes(LENGTH_BYTES) + head + event.body, "PartitionKey": key}
