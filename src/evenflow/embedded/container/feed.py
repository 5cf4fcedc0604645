"""The change feed of a range: the latest version of each document, or all versions and deletes, in the order of LSNs.

A page never ends inside an LSN: after a merge, documents of two parents may share one, and a reader that continues
after it must have seen all of them. A page that is not full goes up to the range's last LSN, so that a reader of one
part of the range does not scan the changes of the other parts again.
"""

from __future__ import annotations

from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from evenflow.embedded.container.ranges import PartitionKeyRange, range_gone
from evenflow.errors import Misconfigured, NoSuchPartition, PositionGone, PositionOutOfRange
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from evenflow.embedded.container.documents import Kind

Mode: TypeAlias = Literal["latest", "all"]
FeedRow: TypeAlias = tuple[Any, ...]
"""A change as a database row: the first fields of a `DocumentChange`, or all of them."""

_WITHIN = "range = :range AND lsn > :after AND epk >= :low AND epk < :high AND changed_us >= :since"
_LATEST = f"""
SELECT lsn, changed_us, body, epk FROM documents
WHERE {_WITHIN} AND (expires_s IS NULL OR expires_s > :now) ORDER BY lsn, number
"""  # noqa: S608 - a constant of this module
_ALL = f"""
SELECT lsn, changed_us, body, epk, kind, expired, previous_lsn, previous FROM changes
WHERE {_WITHIN} ORDER BY lsn, number
"""  # noqa: S608
_FIELDS_OF_LATEST = 4
_LINES = f"""
SELECT count(*), '[' || group_concat(lsn) || ']', '[' || group_concat(changed_us) || ']',
    CAST(group_concat(line, char(10)) AS BLOB)
FROM (
    SELECT lsn, changed_us, CASE WHEN length(body) <= :line_bytes
        THEN substr(body, 1, length(body) - 1) || ',"_lsn":' || lsn || '}}' END AS line
    FROM documents WHERE {_WITHIN} AND (expires_s IS NULL OR expires_s > :now) ORDER BY lsn, number LIMIT :most
)
"""  # noqa: S608
_NEWEST_LATEST = """
SELECT lsn, changed_us FROM documents WHERE range = :range AND (expires_s IS NULL OR expires_s > :now)
ORDER BY lsn DESC LIMIT 1
"""
_NEWEST_ALL = "SELECT lsn, changed_us FROM changes WHERE range = :range ORDER BY lsn DESC LIMIT 1"

NAMED_MAX = 20
"""How many ranges an error names; a container may have a thousand."""
LINES_BYTES_MAX = 32 * 1024 * 1024
_NUMBERS = msgspec.json.Decoder(list[int])


class DocumentChange(Struct, frozen=True):
    """One change. `body` is the document's JSON, `previous` its JSON before the change; None if there is none."""

    lsn: int
    changed_us: int
    body: bytes | None
    epk: str
    """The effective partition key of its document."""
    kind: Kind | Literal[""] = ""
    """What was done; "" in the feed of latest versions."""
    expired: bool = False
    """Whether the document was deleted because it expired."""
    previous_lsn: int | None = None
    previous: bytes | None = None

    @property
    def document(self) -> dict[str, Any] | None:
        return None if self.body is None else msgspec.json.decode(self.body)

    @property
    def previous_document(self) -> dict[str, Any] | None:
        return None if self.previous is None else msgspec.json.decode(self.previous)


class ChangeFeedPage(Struct, frozen=True):
    changes: list[DocumentChange]
    after: int
    """The LSN to continue after."""
    lsn: int
    """The range's last LSN at the time of the read."""

    @property
    def is_last(self) -> bool:
        """Whether the page reached the end of the feed."""
        return self.after >= self.lsn


class FeedRequest(Struct, frozen=True, kw_only=True):
    """The parameters of one read of a range's feed."""

    range: str
    after: int | None = None
    """The LSN to read after; None is the beginning."""
    within: tuple[str, str] | None = None
    """The EPKs to read, as an inclusive lower and an exclusive upper bound; None is the whole range."""
    since_us: int = 0
    mode: Mode = "latest"
    max_items: int
    max_bytes: int


class FeedRows(NamedTuple):
    """A page of undecoded rows."""

    rows: list[FeedRow]
    after: int
    lsn: int

    @property
    def page(self) -> ChangeFeedPage:
        return ChangeFeedPage([change_of(row) for row in self.rows], self.after, self.lsn)


class FeedLines(NamedTuple):
    """A page of latest versions, joined into lines by SQLite in one step.

    SQLite releases the interpreter lock only during a step. Reading rows one by one would hold it most of the time.
    """

    lsns: list[int]
    times_us: list[int]
    bodies: bytes
    """One document per line, with its LSN, in the format of `change_json.latest`."""
    after: int
    lsn: int


def read_lines(connection: apsw.Connection, request: FeedRequest, now_us: int) -> FeedLines | None:
    """The latest versions, like `read_rows`. Returns None if only `read_rows` can read them: two share an LSN, a
    document is too large for a line, or its JSON contains a line break.
    """
    found, values = _query_parameters(connection, request, now_us)
    # Documents vary in size. A bound of four times the mean lets most pages pass and still limits their memory.
    line_bytes = min(4 * request.max_bytes, LINES_BYTES_MAX) // request.max_items
    rows = connection.execute(_LINES, {**values, "most": request.max_items + 1, "line_bytes": line_bytes})
    ((count, lsns_json, times_json, bodies),) = rows
    if count == 0:
        return FeedLines([], [], b"", found.lsn, found.lsn)
    lsns, times_us = _NUMBERS.decode(lsns_json), _NUMBERS.decode(times_json)
    if bodies is None or bodies.count(b"\n") + 1 != count or not all(map(lt, lsns, lsns[1:])):
        return None
    if count <= request.max_items:
        return FeedLines(lsns, times_us, bodies, found.lsn, found.lsn)
    return FeedLines(lsns[:-1], times_us[:-1], bodies[: bodies.rindex(b"\n")], lsns[-2], found.lsn)


def read_rows(connection: apsw.Connection, request: FeedRequest, now_us: int) -> FeedRows:
    found, values = _query_parameters(connection, request, now_us)
    cursor = connection.execute(_ALL if request.mode == "all" else _LATEST, values)
    try:
        rows, is_full = _collect(cursor, request.max_items, request.max_bytes)
    finally:
        # An unfinished cursor, which a traceback can keep alive, prevents checkpoints of the write-ahead log.
        cursor.close()
    return FeedRows(rows, rows[-1][0] if is_full else found.lsn, found.lsn)


def _query_parameters(
    connection: apsw.Connection, request: FeedRequest, now_us: int
) -> tuple[PartitionKeyRange, dict[str, Any]]:
    """The requested range and the parameters of its query. Raises if the request is invalid."""
    found = range_of(connection, request.range)
    low, high = request.within or (found.min, found.max)
    if not found.holds(low, high):
        raise Misconfigured(
            f"The interval {low!r} to {high!r} is not within the range {found.id}, {found.min!r} to {found.max!r}."
        )
    return found, {
        "range": int(found.id),
        "after": _checked_start(connection, request, found),
        "low": low,
        "high": high,
        "since": request.since_us,
        "now": now_us // MICROSECONDS,
    }


def change_of(row: FeedRow) -> DocumentChange:
    if len(row) == _FIELDS_OF_LATEST:
        return DocumentChange(*row)
    lsn, changed_us, body, epk, kind, expired, *rest = row
    return DocumentChange(lsn, changed_us, body, epk, kind, bool(expired), *rest)


def _collect(rows: Iterable[FeedRow], max_items: int, max_bytes: int) -> tuple[list[FeedRow], bool]:
    """As many rows as fit, at least those of one LSN; and whether there are more."""
    found: list[FeedRow] = []
    size_bytes = 0
    for count, row in enumerate(rows):
        size_bytes += len(row[2] or b"")
        if len(row) > _FIELDS_OF_LATEST:
            size_bytes += len(row[-1] or b"")
        if (count >= max_items or size_bytes > max_bytes) and found and row[0] != found[-1][0]:
            return found, True
        found.append(row)
    return found, False


def _checked_start(connection: apsw.Connection, request: FeedRequest, found: PartitionKeyRange) -> int:
    """The LSN to read after. Raises if the feed cannot be read from there."""
    if request.after is not None and request.after > found.lsn:
        raise PositionOutOfRange(
            f"The LSN {request.after} is beyond the end of the range {found.id}, which is {found.lsn}. "
            "Check that the LSN is of this range."
        )
    if request.mode == "latest":
        return request.after or 0
    return _above_floor(connection, request, found)


def _above_floor(connection: apsw.Connection, request: FeedRequest, found: PartitionKeyRange) -> int:
    low, high = request.within or (found.min, found.max)
    floor = max((lsn for _, lsn in floors_in(connection, found.id, low, high)), default=0)
    if request.after is None:
        return 0
    if request.after < floor:
        raise PositionGone(
            f"Changes after LSN {request.after} of the range {found.id} are no longer kept: retention removed some "
            f"up to {floor}. Start from the beginning, and increase retention_s."
        )
    return request.after


def newest_in(connection: apsw.Connection, id: str, mode: Mode, now_us: int) -> tuple[int, int] | None:
    """The LSN and the time of the last change in a range's feed."""
    values = {"range": int(id), "now": now_us // MICROSECONDS}
    row = connection.execute(_NEWEST_ALL if mode == "all" else _NEWEST_LATEST, values).fetchone()
    return None if row is None else (row[0], row[1])


def logs_in(connection: apsw.Connection, low: str, high: str) -> list[tuple[str, str]]:
    """Divide an interval wherever a range ever began. Each part was never in two ranges at once, so it is one log."""
    rows = connection.execute("SELECT DISTINCT min FROM ranges WHERE min > ? AND min < ? ORDER BY min", (low, high))
    return list(pairwise([low, *(cut for (cut,) in rows), high]))


def is_older_after(
    connection: apsw.Connection, id: str, within: tuple[str, str], mode: Mode, lsn: int, time_us: int
) -> bool:
    """Whether a change older than a time comes after an LSN, as is possible after a merge."""
    table = "changes" if mode == "all" else "documents"
    words = "range = ? AND lsn > ? AND epk >= ? AND epk < ? AND changed_us < ?"
    values = (int(id), lsn, *within, time_us)
    return connection.execute(f"SELECT 1 FROM {table} WHERE {words} LIMIT 1", values).fetchone() is not None  # noqa: S608


def floors_in(connection: apsw.Connection, id: str, low: str, high: str) -> list[tuple[str, int]]:
    """The LSNs up to which the log of all versions was trimmed, each with the start of its part of the range."""
    rows = connection.execute(
        "SELECT max(min, ?), lsn FROM floors WHERE range = ? AND min < ? AND ? < max ORDER BY min",
        (low, int(id), high, low),
    )
    return [(start, lsn) for start, lsn in rows]


def range_of(connection: apsw.Connection, id: str) -> PartitionKeyRange:
    """A live range. `RangeGone` if it was split or merged."""
    found, is_gone = known_range(connection, id)
    if is_gone:
        raise range_gone(id, tuple(one.id for one in live_ranges_over(connection, found)))
    return found


def known_range(connection: apsw.Connection, id: str) -> tuple[PartitionKeyRange, bool]:
    """A range, live or not; and whether it was split or merged."""
    number = int(id) if id.isascii() and id.isdecimal() and len(id) < 10 else -1
    row = connection.execute(
        "SELECT id, min, max, parents, lsn, revision, gone FROM ranges WHERE id = ?", (number,)
    ).fetchone()
    if row is None:
        there = [one.id for one in ranges_in(connection)]
        more = f" and {len(there) - NAMED_MAX} more" if len(there) > NAMED_MAX else ""
        unknown = NoSuchPartition(f"There is no range {id!r}. Existing ranges: {', '.join(there[:NAMED_MAX])}{more}.")
        unknown.partition = id
        raise unknown
    return _range(row), bool(row[6])


def live_ranges_over(connection: apsw.Connection, range: PartitionKeyRange) -> list[PartitionKeyRange]:
    """The live ranges that overlap this one."""
    return [one for one in ranges_in(connection) if one.overlaps(range.min, range.max)]


def ranges_in(connection: apsw.Connection) -> list[PartitionKeyRange]:
    """All live ranges, in the order of the EPK space."""
    rows = connection.execute("SELECT id, min, max, parents, lsn, revision FROM ranges WHERE NOT gone ORDER BY min")
    return [_range(row) for row in rows]


def _range(row: tuple[Any, ...]) -> PartitionKeyRange:
    id, low, high, parents, lsn, revision, *_ = row
    return PartitionKeyRange(
        id=str(id), min=low, max=high, parents=tuple(msgspec.json.decode(parents)), lsn=lsn, revision=revision
    )
