"""The change feed of a range: the latest version of each document, or all versions and deletes, in the order of LSNs.

A page never ends inside an LSN: after a merge, documents of two parents may have the same one, and who goes on after it
must have seen them all. Where a page ends before its bounds are reached, it goes up to the range's last LSN, so that
nobody reads again what another part of the range did.
"""

from __future__ import annotations

from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from evenflow.embedded.container.ranges import Range, gone
from evenflow.errors import Misconfigured, NoSuchPartition, PositionGone, PositionOutOfRange
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

    from evenflow.embedded.container.documents import Kind

Mode: TypeAlias = Literal["latest", "all"]
Row: TypeAlias = tuple[Any, ...]
"""A change as the database has it: the first fields of a `Change`, or all of them."""

_WITHIN = "range = :range AND lsn > :after AND epk >= :low AND epk < :high AND changed_us >= :since"
_LATEST = f"""
SELECT lsn, changed_us, body, epk FROM documents
WHERE {_WITHIN} AND (expires_s IS NULL OR expires_s > :now) ORDER BY lsn, number
"""  # noqa: S608 - our own words
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
"""Ranges that an error names; a container may have a thousand."""
LINES_BYTES_MAX = 32 * 1024 * 1024
_NUMBERS = msgspec.json.Decoder(list[int])


class Change(Struct, frozen=True):
    """One change. `body` is the document's JSON, `previous` what it was before; None where there is none."""

    lsn: int
    changed_us: int
    body: bytes | None
    epk: str
    """Where its document is in the space of EPKs."""
    kind: Kind | Literal[""] = ""
    """What was done; "" where only the latest version is told."""
    expired: bool = False
    """It was deleted because its time had come."""
    previous_lsn: int | None = None
    previous: bytes | None = None

    @property
    def document(self) -> dict[str, Any] | None:
        return None if self.body is None else msgspec.json.decode(self.body)

    @property
    def previous_document(self) -> dict[str, Any] | None:
        return None if self.previous is None else msgspec.json.decode(self.previous)


class Page(Struct, frozen=True):
    changes: list[Change]
    after: int
    """The LSN to go on after."""
    lsn: int
    """The last one of the range, at the same moment."""

    @property
    def is_last(self) -> bool:
        """Whether there was nothing more."""
        return self.after >= self.lsn


class Ask(Struct, frozen=True, kw_only=True):
    """What somebody wants of a range."""

    range: str
    after: int | None = None
    """None is the beginning."""
    within: tuple[str, str] | None = None
    """From one EPK to before another; None is all of the range."""
    since_us: int = 0
    mode: Mode = "latest"
    max_items: int
    max_bytes: int


class Rows(NamedTuple):
    """A page whose changes are left as they are."""

    rows: list[Row]
    after: int
    lsn: int

    @property
    def page(self) -> Page:
        return Page([change_of(row) for row in self.rows], self.after, self.lsn)


class Lines(NamedTuple):
    """A page of latest versions that SQLite has brought in one step. Other threads run during a step, and not between
    two, so that rows one by one are no work that could be done beside theirs."""

    lsns: list[int]
    times_us: list[int]
    bodies: bytes
    """One a line, with their LSNs, as `envelopes.latest` has them."""
    after: int
    lsn: int


def read_lines(connection: apsw.Connection, ask: Ask, now_us: int) -> Lines | None:
    """The latest versions as `read_rows` has them. None where only that can tell them: when two have one LSN, one is
    much larger than a line may be, or somebody has written JSON with lines in it."""
    found, values = _bound(connection, ask, now_us)
    # Sizes differ: with a few times the mean as a bound for each, pages of all kinds pass, and none grows without end.
    line_bytes = min(4 * ask.max_bytes, LINES_BYTES_MAX) // ask.max_items
    rows = connection.execute(_LINES, {**values, "most": ask.max_items + 1, "line_bytes": line_bytes})
    ((count, lsns_json, times_json, bodies),) = rows
    if count == 0:
        return Lines([], [], b"", found.lsn, found.lsn)
    lsns, times_us = _NUMBERS.decode(lsns_json), _NUMBERS.decode(times_json)
    if bodies is None or bodies.count(b"\n") + 1 != count or not all(map(lt, lsns, lsns[1:])):
        return None
    if count <= ask.max_items:
        return Lines(lsns, times_us, bodies, found.lsn, found.lsn)
    return Lines(lsns[:-1], times_us[:-1], bodies[: bodies.rindex(b"\n")], lsns[-2], found.lsn)


def read_rows(connection: apsw.Connection, ask: Ask, now_us: int) -> Rows:
    found, values = _bound(connection, ask, now_us)
    cursor = connection.execute(_ALL if ask.mode == "all" else _LATEST, values)
    try:
        rows, is_full = _collected(cursor, ask.max_items, ask.max_bytes)
    finally:
        # A cursor that is left half read, if only by a traceback, holds the write-ahead log back.
        cursor.close()
    return Rows(rows, rows[-1][0] if is_full else found.lsn, found.lsn)


def _bound(connection: apsw.Connection, ask: Ask, now_us: int) -> tuple[Range, dict[str, Any]]:
    """The range that is asked for, and what a query about it is given, if it can be answered."""
    found = range_of(connection, ask.range)
    low, high = ask.within or (found.min, found.max)
    if not found.holds(low, high):
        raise Misconfigured(
            f"From {low!r} to {high!r} is not within the range {found.id}, from {found.min!r} to {found.max!r}."
        )
    return found, {
        "range": int(found.id),
        "after": _checked(connection, ask, found),
        "low": low,
        "high": high,
        "since": ask.since_us,
        "now": now_us // MICROSECONDS,
    }


def change_of(row: Row) -> Change:
    if len(row) == _FIELDS_OF_LATEST:
        return Change(*row)
    lsn, changed_us, body, epk, kind, expired, *rest = row
    return Change(lsn, changed_us, body, epk, kind, bool(expired), *rest)


def _collected(rows: Iterable[Row], max_items: int, max_bytes: int) -> tuple[list[Row], bool]:
    """As many as fit, at least those of one LSN; whether there are more."""
    found: list[Row] = []
    size_bytes = 0
    for count, row in enumerate(rows):
        size_bytes += len(row[2] or b"")
        if len(row) > _FIELDS_OF_LATEST:
            size_bytes += len(row[-1] or b"")
        if (count >= max_items or size_bytes > max_bytes) and found and row[0] != found[-1][0]:
            return found, True
        found.append(row)
    return found, False


def _checked(connection: apsw.Connection, ask: Ask, found: Range) -> int:
    """From where on it is read, if that is possible."""
    if ask.after is not None and ask.after > found.lsn:
        raise PositionOutOfRange(
            f"The LSN {ask.after} is beyond the end of the range {found.id}, which is {found.lsn}. Was it another's?"
        )
    if ask.mode == "latest":
        return ask.after or 0
    return _above_floor(connection, ask, found)


def _above_floor(connection: apsw.Connection, ask: Ask, found: Range) -> int:
    low, high = ask.within or (found.min, found.max)
    floor = max((lsn for _, lsn in floors_in(connection, found.id, low, high)), default=0)
    if ask.after is None:
        return 0
    if ask.after < floor:
        raise PositionGone(
            f"Changes after LSN {ask.after} of the range {found.id} are no longer kept: all are from {floor} on. Begin "
            "anew, and keep them for longer (retention_s)."
        )
    return ask.after


def newest_in(connection: apsw.Connection, id: str, mode: Mode, now_us: int) -> tuple[int, int] | None:
    """The LSN and the time of the last change that a range's feed tells."""
    values = {"range": int(id), "now": now_us // MICROSECONDS}
    row = connection.execute(_NEWEST_ALL if mode == "all" else _NEWEST_LATEST, values).fetchone()
    return None if row is None else (row[0], row[1])


def logs_in(connection: apsw.Connection, low: str, high: str) -> list[tuple[str, str]]:
    """The parts of a part of a range that were never in two ranges at once: cut wherever a range ever began."""
    rows = connection.execute("SELECT DISTINCT min FROM ranges WHERE min > ? AND min < ? ORDER BY min", (low, high))
    return list(pairwise([low, *(cut for (cut,) in rows), high]))


def is_older_after(
    connection: apsw.Connection, id: str, within: tuple[str, str], mode: Mode, lsn: int, time_us: int
) -> bool:
    """Whether changes from before a time come after an LSN, as they may where logs were merged."""
    table = "changes" if mode == "all" else "documents"
    words = "range = ? AND lsn > ? AND epk >= ? AND epk < ? AND changed_us < ?"
    values = (int(id), lsn, *within, time_us)
    return connection.execute(f"SELECT 1 FROM {table} WHERE {words} LIMIT 1", values).fetchone() is not None  # noqa: S608


def floors_in(connection: apsw.Connection, id: str, low: str, high: str) -> list[tuple[str, int]]:
    """Up to where the log of all versions was trimmed: where each part of a range begins, and its LSN."""
    rows = connection.execute(
        "SELECT max(min, ?), lsn FROM floors WHERE range = ? AND min < ? AND ? < max ORDER BY min",
        (low, int(id), high, low),
    )
    return [(start, lsn) for start, lsn in rows]


def range_of(connection: apsw.Connection, id: str) -> Range:
    """A range that is there; `RangeGone` when it was split or merged."""
    found, is_gone = known_range(connection, id)
    if is_gone:
        raise gone(id, tuple(one.id for one in heirs_in(connection, found)))
    return found


def known_range(connection: apsw.Connection, id: str) -> tuple[Range, bool]:
    """A range that is there, or was; whether it is gone."""
    number = int(id) if id.isascii() and id.isdecimal() and len(id) < 10 else -1
    row = connection.execute(
        "SELECT id, min, max, parents, lsn, revision, gone FROM ranges WHERE id = ?", (number,)
    ).fetchone()
    if row is None:
        there = [one.id for one in ranges_in(connection)]
        more = f" and {len(there) - NAMED_MAX} more" if len(there) > NAMED_MAX else ""
        unknown = NoSuchPartition(f"There is no range {id!r}. There are: {', '.join(there[:NAMED_MAX])}{more}.")
        unknown.partition = id
        raise unknown
    return _range(row), bool(row[6])


def heirs_in(connection: apsw.Connection, range: Range) -> list[Range]:
    """Those that are there in the part of the space that this one has, or had."""
    return [one for one in ranges_in(connection) if one.overlaps(range.min, range.max)]


def ranges_in(connection: apsw.Connection) -> list[Range]:
    """All that are there, in the order of the space."""
    rows = connection.execute("SELECT id, min, max, parents, lsn, revision FROM ranges WHERE NOT gone ORDER BY min")
    return [_range(row) for row in rows]


def _range(row: tuple[Any, ...]) -> Range:
    id, low, high, parents, lsn, revision, *_ = row
    return Range(id=str(id), min=low, max=high, parents=tuple(msgspec.json.decode(parents)), lsn=lsn, revision=revision)
