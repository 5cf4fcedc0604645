"""Reads of a range's change feed: pages, bounds, start positions, and waiting for changes.

All reads go to one `OpenContainer`. So a reader never gets changes of another container that replaced it at its path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from evenflow.embedded.container import documents
from evenflow.embedded.container.feed import (
    FeedRequest,
    floors_in,
    is_older_after,
    known_range,
    live_ranges_over,
    logs_in,
    newest_in,
    range_of,
    read_lines,
    read_rows,
)
from evenflow.embedded.container.open_container import slot_of
from evenflow.errors import Misconfigured, RangeGone
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

    from evenflow.embedded.container.feed import FeedLines, FeedRows, Mode
    from evenflow.embedded.container.handle import ContainerHandle
    from evenflow.embedded.container.metadata import ContainerMetadata
    from evenflow.embedded.container.open_container import OpenContainer
    from evenflow.embedded.container.ranges import PartitionKeyRange

RECHECK_S = 1.0
"""How often a waiter checks without a ring: a writer may be killed between its commit and its ring."""

FeedStart: TypeAlias = Literal["earliest", "latest"] | int
"""The oldest change, the newest, or a time in microseconds since 1970."""

_MODES: Mapping[str, Mode] = {"latest": "latest", "all": "all"}


class FeedBounds(Struct, frozen=True, kw_only=True):
    """The first and last LSNs of a range's feed, at one moment."""

    oldest: int | None
    """No change from this LSN on was removed. None if the range was merged, so that no single LSN says this."""
    newest: int | None
    """The LSN of the last change in the feed; None if there is none."""
    newest_us: int = 0
    lsn: int
    """The range's last LSN. Its last change may be one that this feed does not include."""


def read_feed_rows(opened: OpenContainer, request: FeedRequest) -> FeedRows:
    """The next changes. For the feed of all versions, expired documents are deleted first: those are changes too."""
    if request.mode == "all":
        _expire(opened)
    with opened.reading() as connection:
        return read_rows(connection, request, opened.wall_us())


def read_feed_lines(opened: OpenContainer, request: FeedRequest) -> FeedLines | None:
    """The next changes of the feed of latest versions, in one step of SQLite."""
    with opened.reading() as connection:
        return read_lines(connection, request, opened.wall_us())


def first_change(opened: OpenContainer, request: FeedRequest) -> tuple[int, int] | None:
    """The LSN and the time of the first requested change. Does not delete expired documents."""
    with opened.reading() as connection:
        rows = read_rows(connection, request, opened.wall_us()).rows
    return rows[0][:2] if rows else None


def feed_bounds(opened: OpenContainer, range: str, mode: Mode) -> FeedBounds:
    """Raises `RangeGone` if the range was split or merged."""
    with opened.reading() as connection:
        there = range_of(connection, range)
        floors = {lsn for _, lsn in floors_in(connection, range, there.min, there.max)} if mode == "all" else {0}
        newest, newest_us = newest_in(connection, range, mode, opened.wall_us()) or (None, 0)
    oldest = floors.pop() + 1 if len(floors) == 1 else None
    return FeedBounds(oldest=oldest, newest=newest, newest_us=newest_us, lsn=there.lsn)


def start_positions(opened: OpenContainer, range: str, mode: Mode, start: FeedStart) -> list[tuple[str, int]]:
    """The LSN to start after for each part of a range, with the start of that part.

    A range that was split or merged starts in the live ranges that replaced it. A time starts before the first change
    that is not older.
    """
    with opened.reading() as connection:
        wanted, _ = known_range(connection, range)
        found: list[tuple[str, int]] = []
        for live_range in live_ranges_over(connection, wanted):
            low, high = max(live_range.min, wanted.min), min(live_range.max, wanted.max)
            if start == "latest":
                found.append((low, live_range.lsn))
            elif start == "earliest":
                floors = floors_in(connection, live_range.id, low, high) if mode == "all" else [(low, 0)]
                found += floors
            else:
                found += _since(connection, live_range, (low, high), mode, start, opened.wall_us())
    return found


def _since(
    connection: apsw.Connection,
    live_range: PartitionKeyRange,
    span: tuple[str, str],
    mode: Mode,
    since_us: int,
    now_us: int,
) -> list[tuple[str, int]]:
    """Start positions for a time. LSNs increase with time only within each log that was merged into a range."""
    logs = logs_in(connection, *span)
    found = []
    for low, high in logs:
        request = FeedRequest(
            range=live_range.id, within=(low, high), since_us=since_us, mode=mode, max_items=1, max_bytes=1
        )
        first = read_rows(connection, request, now_us).rows
        found.append((low, first[0][0] - 1 if first else live_range.lsn))
    least = min(lsn for _, lsn in found)
    floor = max((lsn for _, lsn in floors_in(connection, live_range.id, *span)), default=0) if mode == "all" else 0
    if len(logs) == 1 or floor > least or is_older_after(connection, live_range.id, span, mode, least, since_us):
        return found
    return [(span[0], least)]


def epk_spans(opened: OpenContainer, ranges: Sequence[str]) -> list[tuple[str, str]]:
    """The EPK bounds of these ranges, live or not."""
    with opened.reading() as connection:
        found = [known_range(connection, range)[0] for range in ranges]
    return [(one.min, one.max) for one in found]


def check_position(opened: OpenContainer, range: str, mode: Mode, parts: Sequence[tuple[str, str, int]]) -> None:
    """Raise unless the feed can be read after these LSNs, one for each part of the range.

    Raises `PositionOutOfRange`, `PositionGone` or `RangeGone`.
    """
    with opened.reading() as connection:
        for low, high, lsn in parts:
            request = FeedRequest(range=range, after=lsn, within=(low, high), mode=mode, max_items=1, max_bytes=1)
            read_rows(connection, request, opened.wall_us())


def checked_mode(metadata: ContainerMetadata, mode: str) -> Mode:
    """The mode, if the container supports it."""
    if mode == "all" and metadata.retention_s == 0:
        raise Misconfigured(
            f"The container {metadata.name} keeps no log of all versions: it was created with retention_s=0."
            " Read the latest versions (mode='latest'), or create a container that keeps a log."
        )
    if mode not in _MODES:
        raise Misconfigured(f'The mode of a feed must be "latest" or "all", not {mode!r}.')
    return _MODES[mode]


async def wait_for_changes(handle: ContainerHandle, range: str, after: int, timeout_s: float) -> bool:
    """Whether, within the timeout, the range got changes after an LSN, or was split or merged."""
    opened = handle.opened()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    if await asyncio.to_thread(_has_changes, handle, range, after):
        return True
    rung = asyncio.Event()
    opened.bell.grow(slot_of(int(range)) + 1)
    end = opened.bell.watch(rung.set, slot_of(int(range)))
    try:
        while True:
            rung.clear()
            if await asyncio.to_thread(_has_changes, handle, range, after):
                return True
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return False
            try:
                async with asyncio.timeout(min(left_s, RECHECK_S)):
                    await rung.wait()
            except TimeoutError:
                pass
    finally:
        end()


def _has_changes(handle: ContainerHandle, range: str, after: int) -> bool:
    try:
        with handle.opened().reading() as connection:
            return range_of(connection, range).lsn > after
    except RangeGone:
        return True


def _expire(opened: OpenContainer) -> None:
    with opened.reading() as connection:
        due = connection.execute(
            "SELECT 1 FROM documents WHERE expires_s <= ? LIMIT 1", (opened.wall_us() // MICROSECONDS,)
        ).fetchone()
    while due and opened.write_queue.write(documents.expire):
        pass
