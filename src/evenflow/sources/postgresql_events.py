"""A page of a log as events. It comes as its columns.

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

KINDS = {"i": b"create", "u": b"replace", "d": b"delete", "t": b"truncate", "r": b"create"}

_LATEST = ("sequence", "at_us", "key", "convert_to(after::text, 'UTF8')")
_ALL = (*_LATEST, "convert_to(before::text, 'UTF8')", "before_sequence", "op::text")
LATEST, ALL = (", ".join(f"array_agg({column})" for column in columns) for columns in (_LATEST, _ALL))


def latest(page: Sequence[Sequence[Any]]) -> list[Event]:
    """The last version of each key among these, unless it was deleted."""
    sequences, times_us, keys, bodies = page
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


def every(page: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[Event]:
    """`columns` are those of the table's key."""
    return [Event(_body(row, columns), row[2], None, row[0], row[1]) for row in zip(*page, strict=True)]


def _body(row: tuple[Any, ...], columns: Sequence[str]) -> bytes:
    sequence, at_us, key, after, before, before_sequence, op = row
    more = b"" if before_sequence is None else b',"previousImageLSN":%d' % before_sequence
    if op == "r":
        more += b',"copied":true'
    elif op == "d":
        was = msgspec.json.decode(before or b"{}")
        whose = {"id": key, "partitionKey": {column: was.get(column) for column in columns}}
        more += b"," + msgspec.json.encode(whose)[1:-1]
    return b'{"current":%b%b,"metadata":{"lsn":%d,"crts":%d,"operationType":"%b"%b}}' % (
        after or b"{}",
        b"" if before is None else b',"previous":' + before,
        sequence,
        at_us // MICROSECONDS,
        KINDS[op],
        more,
    )
