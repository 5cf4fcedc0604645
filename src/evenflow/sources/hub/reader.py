"""A reader of one partition of the embedded hub: it waits for the bell, and looks into the log when that has rung.

A reader that has nothing to do costs one look a second, for the writer that was killed between its commit and its
ring.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from evenflow.errors import Corrupt, SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.waiting import Waiting

if TYPE_CHECKING:
    from evenflow.embedded.hub.log import PartitionLog
    from evenflow.embedded.hub.open_hub import OpenHub
    from evenflow.embedded.hub.records import LogRead, LogRow
    from evenflow.model import Event

LOOK_EVERY_S = 1.0
"""How long a reader trusts the bell's silence."""
LOOK_EVENTS = 16_000
LOOKS_BYTES = 4 * 1024 * 1024
"""What one look of every reader may bring together, about: one that reads alone shares the cost of a thread between
many rows, and a process that reads many partitions does not grow with them."""
LOOK_BYTES_MIN = 128 * 1024

Part: TypeAlias = "tuple[list[Event], int]"
"""Events, and their size in bytes."""


class ReadingRoom:
    """What the readers of a source share: threads, and the memory for what they look up."""

    def __init__(self, threads: int) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="evenflow-hub-read")
        self.readers = 0

    @property
    def look_bytes(self) -> int:
        return max(LOOK_BYTES_MIN, LOOKS_BYTES // max(1, self.readers))


class HubReader:
    """Reads one partition, forward.

    A look into the log runs on a thread and ends in `_looked`, whether or not a read still waits for it: so a read
    may be cancelled at any time, and what was brought waits for the next. While there is more to come, a look goes
    ahead of the reads.
    """

    def __init__(self, opened: OpenHub, log: PartitionLog, slot: int, after: int, room: ReadingRoom) -> None:
        self._opened = opened
        self._bell = opened.bell
        self._log = log
        self._slot = slot
        self._room = room
        self._room.readers += 1
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # Four marks, each ahead of the one before: returned by a read, decoded, looked up, and what the log has.
        self._returned = self._decoded_to = self._looked_to = after
        self._part: Part | None = None
        self._rows: deque[LogRow] = deque()
        self._brought = 0
        self._error: BaseException | None = None
        self._looking = False
        self._looked_s = 0.0
        # The bell's value from before the last look, if that look took all there was; None asks for a look.
        self._heard: int | None = None
        self._waiting = Waiting()
        self._end_watch = self._bell.watch(self._waiting.wake, slot)

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        deadline_s = self._loop.time() + max_wait_s
        while not self._rows and self._part is None:
            self._raise_error()
            if not self._looking and self._must_look():
                self._check_there()
                self._look()
            if self._looking:
                await self._waiting.until(None)
            elif self._loop.time() >= deadline_s:
                return Batch((), position_at(self._returned))
            else:
                await self._waiting.until(min(deadline_s, self._looked_s + LOOK_EVERY_S))
        batch = self._take(max_events, max_bytes)
        self._look_ahead()
        return batch

    async def aclose(self) -> None:
        self._end_watch()
        self._room.readers -= not self._closed
        self._closed = True
        while self._looking:
            await self._waiting.until(None)

    def _must_look(self) -> bool:
        if self._heard is None or self._loop.time() - self._looked_s >= LOOK_EVERY_S:
            return True
        return self._bell.gone() or self._bell.value(self._slot) != self._heard

    def _look_ahead(self) -> None:
        """While there is more to come, the next look runs beside the handling of the second half of this one."""
        half_taken = len(self._rows) <= self._brought // 2
        if half_taken and self._heard is None and self._error is None and not self._looking:
            self._look()

    def _check_there(self) -> None:
        if self._bell.gone():
            raise SourceUnavailable(
                f"The hub at {self._opened.folder} was deleted, or made again, while it was read. Open it again."
            )

    def _look(self) -> None:
        self._looking = True
        self._looked_s = self._loop.time()
        try:
            # Before the look: a ring during it then asks for another.
            self._heard = self._bell.value(self._slot)
            self._room.threads.submit(self._look_on_thread, self._looked_to, self._room.look_bytes)
        except (RuntimeError, OSError):
            # This must not raise: a read that looks ahead has events to return.
            self._looked(self._looked_to, SourceUnavailable("The source of this reader was closed. Open another."))

    def _look_on_thread(self, after: int, max_bytes: int) -> None:
        found: LogRead | BaseException
        try:
            found = self._log.read(after, LOOK_EVENTS, max_bytes)
        except BaseException as error:
            found = error
        try:
            self._loop.call_soon_threadsafe(self._looked, after, found)
        except RuntimeError:
            # The loop is closed: nobody reads any more.
            pass

    def _looked(self, after: int, found: LogRead | BaseException) -> None:
        self._looking = False
        if isinstance(found, BaseException):
            self._error, self._heard = found, None
        elif after != self._looked_to:
            # It went ahead of a row that turned out to be damaged, and the reader has gone back.
            self._heard = None
        else:
            self._rows.extend(found.rows)
            self._brought = len(found.rows)
            if found.rows:
                self._looked_to = found.rows[-1].last
            if not found.all:
                self._heard = None
        self._waiting.wake()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _take(self, max_events: int, max_bytes: int) -> Batch:
        """The next rows, as many as fit; of a row that alone is too large, a part.

        Rows are decoded here and not by the look: decoding holds the interpreter on any thread, and events are
        cheaper on the one that will use them.
        """
        events, size_bytes = self._part or self._decoded()
        self._part = None
        if len(events) > max_events or size_bytes > max_bytes:
            events, size_bytes, self._part = _divided(events, size_bytes, max_events, max_bytes)
        while self._rows and self._part is None and self._fits(max_events - len(events), max_bytes - size_bytes):
            try:
                more, more_bytes = self._decoded()
            except Corrupt:
                # The next read says so; what comes before it is fine.
                break
            events.extend(more)
            size_bytes += more_bytes
        self._returned += len(events)
        return Batch(events, position_at(self._returned), size_bytes)

    def _decoded(self) -> Part:
        row = self._rows[0]
        try:
            events = self._log.events(row)
        except Corrupt:
            # Look again next time: the file may be restored, and nothing may be skipped if it is not.
            self._rows.clear()
            self._looked_to, self._heard = self._decoded_to, None
            raise
        self._rows.popleft()
        skipped = self._decoded_to + 1 - row.first
        self._decoded_to = row.last
        return (events[skipped:] if skipped else events), row.size_bytes

    def _fits(self, max_events: int, max_bytes: int) -> bool:
        return self._rows[0].events_count <= max_events and self._rows[0].size_bytes <= max_bytes


def _divided(
    events: list[Event], size_bytes: int, max_events: int, max_bytes: int
) -> tuple[list[Event], int, Part | None]:
    """The first events, at least one and as many as fit, their size, and the others."""
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
