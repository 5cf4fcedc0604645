"""What one who follows a range needs of one making of a container: its next page, and where it begins and ends.

Who holds an `OpenContainer` is never given what another container holds that was made in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from evenflow.embedded.container import documents
from evenflow.embedded.container.feed import (
    Ask,
    floors_in,
    heirs_in,
    is_older_after,
    known_range,
    logs_in,
    newest_in,
    range_of,
    read_lines,
    read_rows,
)
from evenflow.errors import Misconfigured
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from evenflow.embedded.container.facts import ContainerFacts
    from evenflow.embedded.container.feed import Lines, Mode, Rows
    from evenflow.embedded.container.opened import OpenContainer
    from evenflow.embedded.container.ranges import Range

Start: TypeAlias = Literal["earliest", "latest"] | int
"""The oldest change, the newest, or a time in microseconds since 1970."""

_MODES: Mapping[str, Mode] = {"latest": "latest", "all": "all"}


class Ends(Struct, frozen=True, kw_only=True):
    """Where a range's feed begins and ends, at one moment."""

    oldest: int | None
    """Of the changes from this LSN on none was removed. None: that is not one LSN, as the range was merged."""
    newest: int | None
    """The LSN of the last change that is told; None when there is none."""
    newest_us: int = 0
    lsn: int
    """The range's own last LSN: its last change may be one that this feed does not tell."""


def rows_of(opened: OpenContainer, ask: Ask) -> Rows:
    """The next changes. Deletes by time are changes as others are: they are there when somebody reads all versions."""
    if ask.mode == "all":
        _expire(opened)
    with opened.reading() as connection:
        return read_rows(connection, ask, opened.wall_us())


def lines_of(opened: OpenContainer, ask: Ask) -> Lines | None:
    """The next changes of a feed of latest versions, in one step."""
    with opened.reading() as connection:
        return read_lines(connection, ask, opened.wall_us())


def first_of(opened: OpenContainer, ask: Ask) -> tuple[int, int] | None:
    """The LSN and the time of the first change that is asked for, without changing anything."""
    with opened.reading() as connection:
        rows = read_rows(connection, ask, opened.wall_us()).rows
    return rows[0][:2] if rows else None


def ends_of(opened: OpenContainer, range: str, mode: Mode) -> Ends:
    """`RangeGone` when the range was split or merged."""
    with opened.reading() as connection:
        there = range_of(connection, range)
        floors = {lsn for _, lsn in floors_in(connection, range, there.min, there.max)} if mode == "all" else {0}
        newest, newest_us = newest_in(connection, range, mode, opened.wall_us()) or (None, 0)
    oldest = floors.pop() + 1 if len(floors) == 1 else None
    return Ends(oldest=oldest, newest=newest, newest_us=newest_us, lsn=there.lsn)


def starts_of(opened: OpenContainer, range: str, mode: Mode, start: Start) -> list[tuple[str, int]]:
    """The LSN to begin after, for each part of a range: where it begins, and its LSN.

    One that is gone begins in those that live on. A time is before the first change that is not older.
    """
    with opened.reading() as connection:
        wanted, _ = known_range(connection, range)
        found: list[tuple[str, int]] = []
        for heir in heirs_in(connection, wanted):
            low, high = max(heir.min, wanted.min), min(heir.max, wanted.max)
            if start == "latest":
                found.append((low, heir.lsn))
            elif start == "earliest":
                floors = floors_in(connection, heir.id, low, high) if mode == "all" else [(low, 0)]
                found += floors
            else:
                found += _since(connection, heir, (low, high), mode, start, opened.wall_us())
    return found


def _since(
    connection: apsw.Connection, heir: Range, span: tuple[str, str], mode: Mode, since_us: int, now_us: int
) -> list[tuple[str, int]]:
    """In each of the logs that were merged into a range, LSNs grow with time. Across them only what came later does."""
    logs = logs_in(connection, *span)
    found = []
    for low, high in logs:
        ask = Ask(range=heir.id, within=(low, high), since_us=since_us, mode=mode, max_items=1, max_bytes=1)
        first = read_rows(connection, ask, now_us).rows
        found.append((low, first[0][0] - 1 if first else heir.lsn))
    least = min(lsn for _, lsn in found)
    floor = max((lsn for _, lsn in floors_in(connection, heir.id, *span)), default=0) if mode == "all" else 0
    if len(logs) == 1 or floor > least or is_older_after(connection, heir.id, span, mode, least, since_us):
        return found
    return [(span[0], least)]


def spans_of(opened: OpenContainer, ranges: Sequence[str]) -> list[tuple[str, str]]:
    """From where to before where each of these goes, or went."""
    with opened.reading() as connection:
        found = [known_range(connection, range)[0] for range in ranges]
    return [(one.min, one.max) for one in found]


def check_place(opened: OpenContainer, range: str, mode: Mode, parts: Sequence[tuple[str, str, int]]) -> None:
    """Whether it can be gone on after these LSNs, each of a part: `PositionOutOfRange`, `PositionGone`, `RangeGone`."""
    with opened.reading() as connection:
        for low, high, lsn in parts:
            ask = Ask(range=range, after=lsn, within=(low, high), mode=mode, max_items=1, max_bytes=1)
            read_rows(connection, ask, opened.wall_us())


def checked_mode(facts: ContainerFacts, mode: str) -> Mode:
    """A mode that the container can be read in."""
    if mode == "all" and facts.retention_s == 0:
        raise Misconfigured(
            f"The container {facts.name} keeps no log of all versions: it was made with retention_s=0."
            " Read the latest ones (mode='latest'), or make a container that keeps them."
        )
    if mode not in _MODES:
        raise Misconfigured(f'The mode of a feed is "latest" or "all", not {mode!r}.')
    return _MODES[mode]


def _expire(opened: OpenContainer) -> None:
    with opened.reading() as connection:
        due = connection.execute(
            "SELECT 1 FROM documents WHERE expires_s <= ? LIMIT 1", (opened.wall_us() // MICROSECONDS,)
        ).fetchone()
    while due and opened.pen.write(documents.expire):
        pass
