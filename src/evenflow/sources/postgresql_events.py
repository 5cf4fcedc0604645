"""Rows of a log as events.

With the latest versions, an event's body is the row as JSON. With all versions it says what was before as well, in the
words of Cosmos DB, and as the embedded container has them: `current`, `previous`, and `metadata` with the kind of
operation.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.model import MICROSECONDS, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = {"i": "create", "u": "replace", "d": "delete", "t": "truncate", "r": "create"}

LATEST = "sequence, at_us, key, convert_to(after::text, 'UTF8')"
ALL = f"{LATEST}, convert_to(before::text, 'UTF8'), before_sequence, op::text"


def latest(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    """The last version of each key among these, unless it was deleted."""
    sequences, times_us, keys, bodies = list(zip(*rows, strict=True))[:4]
    if None not in bodies and len(set(keys)) == len(keys):
        return list(map(Event, bodies, keys, repeat(None), sequences, times_us))
    last: dict[str, int] = {}
    for at, key in enumerate(keys):
        if key is None:
            last.clear()  # all rows were removed at once
        else:
            last[key] = at
    kept = sorted(at for at in last.values() if bodies[at] is not None)
    return [Event(bodies[at], keys[at], None, sequences[at], times_us[at]) for at in kept]


def every(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[Event]:
    """`columns` are those of the table's key."""
    return [Event(_body(row, columns), row[2], None, row[0], row[1]) for row in rows]


def _body(row: tuple[Any, ...], columns: Sequence[str]) -> bytes:
    sequence, at_us, key, after, before, before_sequence, op, *_ = row
    metadata: dict[str, Any] = {"lsn": sequence, "crts": at_us // MICROSECONDS, "operationType": KINDS[op]}
    if before_sequence is not None:
        metadata["previousImageLSN"] = before_sequence
    if op == "r":
        metadata["copied"] = True
    if op == "d":
        was = msgspec.json.decode(before or b"{}")
        metadata |= {"id": key, "partitionKey": {column: was.get(column) for column in columns}}
    previous = b"" if before is None else b',"previous":' + before
    return b'{"current":%b%b,"metadata":%b}' % (after or b"{}", previous, msgspec.json.encode(metadata))
