"""Reads one partition of the embedded hub: it waits for the bell to ring, then fetches from the log.

An idle reader fetches once a second all the same, in case a writer was killed between its commit and its ring.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from evenflow.errors import Corrupt, SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.waiting import Waiter

if TYPE_CHECKING:
    from evenflow.embedded.hub.log import PartitionLog
    from evenflow.embedded.hub.open_hub import OpenHub
    from evenflow.embedded.hub.records import LogRead, LogRow
    from evenflow.model import Event

FETCH_EVERY_S = 1.0
"""How often an idle reader fetches although the bell has not rung."""
FETCH_EVENTS = 16_000
ALL_FETCHES_BYTES = 4 * 1024 * 1024
"""The approximate memory for one fetch of every reader together. A single reader amortises the switch to a thread over
many rows, and the memory of a process does not grow with the number of its partitions."""
FETCH_BYTES_MIN = 128 * 1024

EventsAndBytes: TypeAlias = "tuple[list[Event], int]"
"""Events, and their size in bytes."""


class ReadPool:
    """What the readers of a source share: threads, and the memory for fetched rows."""

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="evenflow-hub-read")
        self.readers = 0

    @property
    def fetch_bytes(self) -> int:
        return max(FETCH_BYTES_MIN, ALL_FETCHES_BYTES // max(1, self.readers))


class HubReader:
    """Reads one partition, forward.

    A fetch runs on a thread and ends in `_on_fetched`, whether or not a read still waits for it. So a read may be
    cancelled at any time, and the next one gets the rows. While the log has more, the next fetch starts early.
    """

    def __init__(self, opened: OpenHub, log: PartitionLog, slot: int, after: int, pool: ReadPool) -> None:
        self._opened = opened
        self._bell = opened.bell
        self._log = log
        self._slot = slot
        self._pool = pool
        self._pool.readers += 1
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # Three sequences, each at or ahead of the one before: returned by a read, decoded, fetched.
        self._returned = self._decoded_to = self._fetched_to = after
        self._rest: EventsAndBytes | None = None
        self._rows: deque[LogRow] = deque()
        self._fetched_rows = 0
        self._error: BaseException | None = None
        self._fetching = False
        self._fetched_s = 0.0
        # The bell's value before the last fetch, if that fetch reached the end of the log; None requests a fetch.
        self._bell_value: int | None = None
        self._waiter = Waiter()
        self._end_watch = self._bell.watch(self._waiter.wake, slot)

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        deadline_s = self._loop.time() + max_wait_s
        while not self._rows and self._rest is None:
            self._raise_error()
            if not self._fetching and self._must_fetch():
                self._check_exists()
                self._fetch()
            if self._fetching:
                await self._waiter.until(None)
            elif self._loop.time() >= deadline_s:
                return Batch((), position_at(self._returned))
            else:
                await self._waiter.until(min(deadline_s, self._fetched_s + FETCH_EVERY_S))
        batch = self._take(max_events, max_bytes)
        self._fetch_ahead()
        return batch

    async def aclose(self) -> None:
        self._end_watch()
        self._pool.readers -= not self._closed
        self._closed = True
        while self._fetching:
            await self._waiter.until(None)

    def _must_fetch(self) -> bool:
        if self._bell_value is None or self._loop.time() - self._fetched_s >= FETCH_EVERY_S:
            return True
        return self._bell.gone() or self._bell.value(self._slot) != self._bell_value

    def _fetch_ahead(self) -> None:
        """While the log has more, the next fetch runs during the handling of the second half of this one."""
        half_taken = len(self._rows) <= self._fetched_rows // 2
        if half_taken and self._bell_value is None and self._error is None and not self._fetching:
            self._fetch()

    def _check_exists(self) -> None:
        if self._bell.gone():
            raise SourceUnavailable(
                f"The hub at {self._opened.folder} was deleted or recreated while it was being read. Open it again."
            )

    def _fetch(self) -> None:
        self._fetching = True
        self._fetched_s = self._loop.time()
        try:
            # Taken before the fetch, so that a ring during the fetch causes another.
            self._bell_value = self._bell.value(self._slot)
            self._pool.threads.submit(self._fetch_on_thread, self._fetched_to, self._pool.fetch_bytes)
        except (RuntimeError, OSError):
            # This must not raise: a read that fetches ahead has events to return.
            self._on_fetched(
                self._fetched_to, SourceUnavailable("The source of this reader was closed. Open a new one.")
            )

    def _fetch_on_thread(self, after: int, max_bytes: int) -> None:
        found: LogRead | BaseException
        try:
            found = self._log.read(after, FETCH_EVENTS, max_bytes)
        except BaseException as error:
            found = error
        try:
            self._loop.call_soon_threadsafe(self._on_fetched, after, found)
        except RuntimeError:
            # The loop is closed, so no read waits for this.
            pass

    def _on_fetched(self, after: int, found: LogRead | BaseException) -> None:
        self._fetching = False
        if isinstance(found, BaseException):
            self._error, self._bell_value = found, None
        elif after != self._fetched_to:
            # This fetch was ahead of a row that turned out to be damaged, and the reader has gone back.
            self._bell_value = None
        else:
            self._rows.extend(found.rows)
            self._fetched_rows = len(found.rows)
            if found.rows:
                self._fetched_to = found.rows[-1].last
            if not found.all:
                self._bell_value = None
        self._waiter.wake()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _take(self, max_events: int, max_bytes: int) -> Batch:
        """As many rows as fit; if the first alone is too large, a part of it.

        Rows are decoded here and not by the fetch: decoding holds the interpreter lock on any thread, and events are
        cheaper on the thread that uses them.
        """
        events, size_bytes = self._rest or self._decoded()
        self._rest = None
        if len(events) > max_events or size_bytes > max_bytes:
            events, size_bytes, self._rest = _divided(events, size_bytes, max_events, max_bytes)
        while self._rows and self._rest is None and self._fits(max_events - len(events), max_bytes - size_bytes):
            try:
                more, more_bytes = self._decoded()
            except Corrupt:
                # The next read raises it. The events before the damaged row are fine.
                break
            events.extend(more)
            size_bytes += more_bytes
        self._returned += len(events)
        return Batch(events, position_at(self._returned), size_bytes)

    def _decoded(self) -> EventsAndBytes:
        row = self._rows[0]
        try:
            events = self._log.events(row)
        except Corrupt:
            # The next read fetches again: the file may be restored, and if it is not, nothing may be skipped.
            self._rows.clear()
            self._fetched_to, self._bell_value = self._decoded_to, None
            raise
        self._rows.popleft()
        skipped = self._decoded_to + 1 - row.first
        self._decoded_to = row.last
        return (events[skipped:] if skipped else events), row.size_bytes

    def _fits(self, max_events: int, max_bytes: int) -> bool:
        return self._rows[0].events_count <= max_events and self._rows[0].size_bytes <= max_bytes


def _divided(
    events: list[Event], size_bytes: int, max_events: int, max_bytes: int
) -> tuple[list[Event], int, EventsAndBytes | None]:
    """The first events, at least one and as many as fit, their size, and the rest."""
    count = fitting_bytes = 0
    for event in events[:max_events]:
        if count and fitting_bytes + len(event.body) > max_bytes:
            break
        fitting_bytes += len(event.body)
        count += 1
    rest = events[count:]
    return events[:count], fitting_bytes, (rest, max(0, size_bytes - fitting_bytes)) if rest else None


def position_at(sequence: int) -> Position:
    return Position(str(sequence), sequence)
