"""Rows of a log as events.

With the latest versions, an event's body is the row as JSON. With all versions it says what was before as well, in the
words of Cosmos DB: `current`, `previous`, and `metadata` with the kind of operation.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from evenflow.model import MICROSECONDS, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = {"i": "create", "u": "replace", "d": "delete", "t": "truncate", "r": "read"}

LATEST = "sequence, at_us, key, convert_to(after::text, 'UTF8')"
ALL = f"{LATEST}, convert_to(before::text, 'UTF8'), op::text"


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


def every(rows: Sequence[tuple[Any, ...]]) -> list[Event]:
    return [
        Event(_body(after, before, op, sequence, at_us), key, None, sequence, at_us)
        for sequence, at_us, key, after, before, op, *_ in rows
    ]


def _body(after: bytes | None, before: bytes | None, op: str, sequence: int, at_us: int) -> bytes:
    return b'{"current":%b,"previous":%b,"metadata":{"operationType":"%b","lsn":%d,"crts":%d}}' % (
        after or b"null",
        before or b"null",
        KINDS[op].encode(),
        sequence,
        at_us // MICROSECONDS,
    )
