"""Reads a partition for one receiver: reads the log on a thread, decodes row by row, and waits for the bell.

However slow the receiver is, it holds the rows of one read and the events of one row. While the server is over its
memory limit, a read returns a single row.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import EvenflowError, PositionGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.embedded.hub.log import PartitionLog
    from evenflow.embedded.hub.log_state import LogState
    from evenflow.embedded.hub.open_hub import OpenHub
    from evenflow.embedded.hub.records import LogRead, LogRow, StoredEvent
    from evenflow.emulators.eventhubs.service import EventHubsService

READ_EVENTS = 4_000
READ_BYTES = 512 * 1024
RECHECK_S = 2.0
"""How often the log is read without a ring: a writer may be killed between its commit and its ring."""


class _ReadResult(NamedTuple):
    look: LogRead
    state: LogState


class PartitionFeed:
    """Calls `news` when there may be events or an error."""

    def __init__(
        self, opened: OpenHub, number: int, after: int, service: EventHubsService, news: Callable[[], None]
    ) -> None:
        self.state: LogState | None = None
        """The state of the log at the last read."""
        self.error: EvenflowError | None = None
        self.is_drained = False
        """Whether the last read reached the end of the log."""
        self._opened = opened
        self._log: PartitionLog = opened.log(number)
        self._slot = opened.slot(number)
        self._threads, self._limits = service.threads, service.limits
        self._held_bytes = 0
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._rows: list[LogRow] = []
        self._events: list[StoredEvent] = []
        self._at = 0
        self._read_to = self._decoded_to = after
        self._is_reading = False
        self._closed = False
        self._seen_ring: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._end_watch = opened.bell.watch(self._on_ring, self._slot)

    def take(self, most: int) -> list[StoredEvent]:
        """The next decoded events, at most this many. If there are none, starts a read, which calls `news`."""
        if self._at >= len(self._events) and not self._decode():
            self._start_read()
            return []
        found = self._events[self._at : self._at + most]
        self._at += len(found)
        return found

    def give_back(self, count: int) -> None:
        """Return the last events that `take` returned; they were not sent."""
        self._at -= count

    def release_bytes(self) -> None:
        """Free the events that were read and not taken. They are read again when needed."""
        if self._is_reading:
            return
        if self._at < len(self._events):
            self._decoded_to = self._events[self._at].sequence - 1
        self._read_to = self._decoded_to
        self._rows, self._events, self._at = [], [], 0
        self._seen_ring, self.is_drained = None, False
        self._hold(0)

    def close(self) -> None:
        self._closed = True
        self._hold(0)
        self._end_watch()
        if self._timer is not None:
            self._timer.cancel()

    def _hold(self, size_bytes: int) -> None:
        self._limits.held_bytes += size_bytes - self._held_bytes
        self._held_bytes = size_bytes

    def _decode(self) -> bool:
        while self._rows:
            row = self._rows.pop(0)
            try:
                events = self._log.stored_events(row)
            except EvenflowError as error:
                self.error = error
                return False
            skipped = self._decoded_to + 1 - row.first
            self._decoded_to = row.last
            self._events, self._at = events, skipped
            if skipped < len(events):
                return True
        self._events, self._at = [], 0
        self._hold(0)
        return False

    def _start_read(self) -> None:
        if self._is_reading or self._closed or self.error is not None:
            return
        heard = self._opened.bell.value(self._slot)
        if self.is_drained and heard == self._seen_ring:
            self._schedule_recheck()
            return
        self._is_reading, self._seen_ring, self.is_drained = True, heard, False
        most = 1 if self._limits.is_full else READ_EVENTS
        look = self._loop.run_in_executor(self._threads, self._read_log, self._read_to, most)
        look.add_done_callback(self._on_read)

    def _read_log(self, after: int, most: int) -> _ReadResult:
        try:
            look = self._log.read(after, most, READ_BYTES)
        except PositionGone:
            # Retention overtook this reader. It continues with the oldest remaining event, as the service does.
            look = self._log.read(self._log.state().oldest - 1, most, READ_BYTES)
        return _ReadResult(look, self._log.state())

    def _on_read(self, done: asyncio.Future[_ReadResult]) -> None:
        self._is_reading = False
        if self._closed or done.cancelled():
            return
        failure = done.exception()
        if failure is not None:
            self.error = failure if isinstance(failure, EvenflowError) else EvenflowError(str(failure))
        else:
            look, self.state = done.result()
            if look.rows:
                self._decoded_to = max(self._decoded_to, look.rows[0].first - 1)
                self._rows += look.rows
                self._hold(sum(row.size_bytes for row in self._rows))
                self._read_to = look.rows[-1].last
            self.is_drained = look.all
        self._news()

    def _schedule_recheck(self) -> None:
        """Schedule another read in case a ring was lost."""
        if self._timer is None:
            self._timer = self._loop.call_later(RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        self._timer = None
        self._seen_ring = None
        self._news()

    def _on_ring(self) -> None:
        if self._opened.bell.gone():
            self.error = EvenflowError(f"The hub at {self._opened.folder} was deleted or created again.")
        self._news()
