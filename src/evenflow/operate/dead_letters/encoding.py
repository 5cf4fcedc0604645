"""Dead letters and verdicts as JSON: one object on one line, human-readable, and exact for the whole event.

A body that is UTF-8 is stored as text (`body`), any other in base64 (`body_base64`). Values of properties that JSON
cannot express are objects with a single key that begins with `$`. A record names its group and partition, so that it
is complete wherever it is stored.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext

from evenflow.model import DeadLetter, Event, Group, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import DeadLetterRecord, PartitionId

LETTER, VERDICT = "dead_letter", "verdict"
KINDS = (LETTER, VERDICT)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class FiledRecord(NamedTuple):
    """A record with its group and partition."""

    group: Group
    partition: PartitionId
    record: DeadLetterRecord


def encode(group: Group, partition: PartitionId, record: DeadLetterRecord) -> bytes:
    """One line, without the line break."""
    kind = LETTER if isinstance(record, DeadLetter) else VERDICT
    place = {"record": kind, "group": [group.namespace, group.hub, group.name], "partition": partition}
    facts = place | (_dead_letter_facts(record) if isinstance(record, DeadLetter) else _plain_facts(record))
    try:
        return json.dumps(facts, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        # A lone surrogate, as in an error that names a file: JSON can escape it, UTF-8 cannot encode it.
        return json.dumps(facts, allow_nan=False).encode()


def decode(line: bytes) -> FiledRecord | None:
    """None for a kind of record that this version does not know. ValueError when the line is not a record."""
    facts = _object(line)
    if facts["record"] not in KINDS:
        return None
    try:
        group = Group(*map(str, facts.pop("group")))
        partition = str(facts.pop("partition"))
        record = _dead_letter(partition, facts) if facts["record"] == LETTER else _verdict(facts)
    except (KeyError, TypeError, OverflowError, AttributeError, msgspec.ValidationError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return FiledRecord(group, partition, record)


def event_facts(event: Event) -> dict[str, Any]:
    """An event as a JSON object."""
    return {
        "offset": event.offset_text,
        "sequence": event.sequence,
        "enqueued_at": _time_text(event.enqueued_us),
        "key": event.key,
        "properties": _packed(event.properties),
        **_body_facts(event.body),
    }


def _object(line: bytes) -> dict[str, Any]:
    facts = json.loads(line)
    if not isinstance(facts, dict) or not isinstance(facts.get("record"), str):
        raise ValueError("it is not an object with the kind of a record")
    return facts


def _plain_facts(record: DeadLetterRecord, *without: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__ if name not in without}


def _dead_letter_facts(dead_letter: DeadLetter) -> dict[str, Any]:
    return event_facts(dead_letter.event) | _plain_facts(dead_letter, "event", "partition")


def _dead_letter(partition: PartitionId, facts: dict[str, Any]) -> DeadLetter:
    event = Event(
        body=_body(facts),
        key=facts.get("key"),
        properties=_unpacked(facts.get("properties")),
        sequence=facts.get("sequence"),
        enqueued_us=_time_us(facts.get("enqueued_at", 0)),
        offset_text=facts.get("offset"),
    )
    return msgspec.convert(
        _known(facts, DeadLetter) | {"type": LETTER, "partition": partition, "event": event}, DeadLetter
    )


def _verdict(facts: dict[str, Any]) -> Verdict:
    return msgspec.convert(_known(facts, Verdict) | {"type": VERDICT}, Verdict)


def _known(facts: dict[str, Any], kind: type[DeadLetter] | type[Verdict]) -> dict[str, Any]:
    """Drops fields that only a later version knows."""
    return {name: facts[name] for name in kind.__struct_fields__ if name in facts}


def _body_facts(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def _body(facts: dict[str, Any]) -> bytes:
    if "body" in facts:
        return str(facts["body"]).encode()
    return b64decode(facts["body_base64"], validate=True)


def _time_text(time_us: int) -> str | int:
    """Exact to the microsecond, unlike a float; a time outside the calendar stays a number."""
    try:
        return (_EPOCH + time_us * _MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return time_us


def _time_us(text: str | int) -> int:
    return text if isinstance(text, int) else (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


_PACK: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: {"$bytes": b64encode(value).decode()},
    bytearray: lambda value: {"$bytes": b64encode(value).decode()},
    memoryview: lambda value: {"$bytes": b64encode(value).decode()},
    datetime: lambda value: {"$datetime": value.isoformat()},
    date: lambda value: {"$date": value.isoformat()},
    time_of_day: lambda value: {"$time": value.isoformat()},
    timedelta: lambda value: {"$timedelta_us": value // _MICROSECOND},
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    str: str.__str__,
    int: int,
    float: lambda value: value if math.isfinite(value) else {"$float": repr(value)},
    Ext: lambda value: {"$ext": [value.code, b64encode(value.data).decode()]},
    list: lambda value: [_packed(item) for item in value],
    tuple: lambda value: {"$tuple": [_packed(item) for item in value]},
    dict: lambda value: _packed_map(value),
}
_PLAIN = frozenset((str, int, bool, type(None)))
"""Exactly these types; subclasses are converted to them."""

_UNPACK: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda value: b64decode(value, validate=True),
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time_of_day.fromisoformat,
    "$timedelta_us": lambda value: value * _MICROSECOND,
    "$decimal": Decimal,
    "$uuid": UUID,
    "$float": float,
    "$ext": lambda value: Ext(value[0], b64decode(value[1], validate=True)),
    "$tuple": lambda value: tuple([_unpacked(item) for item in value]),
    "$map": lambda value: {_unpacked(name): _unpacked(item) for name, item in value},
    "$text": str,
}


def _packed(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    for kind in type(value).__mro__:
        if kind in _PACK:
            return _PACK[kind](value)
    # Our sources never produce such a value. Raising would halt the partition, because its dead letter cannot be filed.
    return {"$text": repr(value)}


def _packed_map(value: dict[Any, Any]) -> Any:
    """A map that JSON cannot express, or that looks like one of our `$` objects, becomes a list of pairs."""
    if all(type(name) is str for name in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {name: _packed(item) for name, item in value.items()}
    return {"$map": [[_packed(name), _packed(item)] for name, item in value.items()]}


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, packed),) = value.items()
        if name.startswith("$"):
            return _UNPACK[name](packed) if name in _UNPACK else value
    return {name: _unpacked(item) for name, item in value.items()}
