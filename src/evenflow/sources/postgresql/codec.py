"""Converts rows of a log to events.

In the mode for latest versions, the body is the row as JSON. In the mode for all versions, the body has the format of
Cosmos DB and of the embedded container: `current`, `previous`, and `metadata` with the kind of operation.
"""

from __future__ import annotations

from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.model import MICROSECONDS, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = {"i": b"create", "u": b"replace", "d": b"delete", "t": b"truncate", "r": b"create"}

LATEST = "sequence, at_us, key, after"
ALL = f"{LATEST}, before, before_sequence, op::text"
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Values stay raw JSON: a number may have more digits than a float can hold."""
_COLUMNS = [itemgetter(at) for at in range(4)]


def latest(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    """The last version of each key among these rows, unless it was deleted."""
    # Not with `zip`, which creates an iterator for each row: the garbage collector would scan them all.
    sequences, times_us, keys, bodies = (list(map(column, rows)) for column in _COLUMNS)
    if None not in bodies and len(set(keys)) == len(keys):
        return list(map(Event, bodies, keys, repeat(None), sequences, times_us))
    last: dict[str, int] = {}
    for at, key in enumerate(keys):
        if key is None:
            last.clear()  # TRUNCATE
        else:
            last[key] = at
    kept = sorted(at for at in last.values() if bodies[at] is not None)
    return [Event(bodies[at], keys[at], None, sequences[at], times_us[at]) for at in kept]


def every(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[Event]:
    """All versions. `columns` are the columns of the primary key."""
    return [Event(_body(row, columns), row[2], None, row[0], row[1]) for row in rows]


def _body(row: tuple[Any, ...], columns: Sequence[str]) -> bytes:
    sequence, at_us, key, after, before, before_sequence, op, *_ = row
    more = b"" if before_sequence is None else b',"previousImageLSN":%d' % before_sequence
    if op == "r":
        more += b',"copied":true'
    elif op == "d":
        was = _decode(before or b"{}")
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
