"""Writes to one partition, with group commit: sends that arrive during a write share the next transaction.

The event loop fills the queue, and a thread empties it. A send is confirmed only after the commit is durable and the
bell was rung, so a caller that sees the confirmation can read its events.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.embedded.hub.records import body_bytes
from evenflow.errors import BatchForgotten, EvenflowError, Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from evenflow.embedded.hub.deduplication import PartitionSend
    from evenflow.embedded.hub.log import PartitionLog
    from evenflow.model import Event

GROUP_EVENTS = 10_000
GROUP_BYTES = 8 * 1024 * 1024
"""About how much one transaction may hold, so that it does not keep the write lock for long."""

TRIM_EVERY_US = 1_000_000
"""How often a writer applies retention."""


class Sent(NamedTuple):
    """Where a send was stored in one partition: the sequence numbers of its first and last event."""

    partition: str
    first: int
    last: int


class _QueuedSend(NamedTuple):
    events: Sequence[Event]
    size_bytes: int | None
    send: PartitionSend | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Sent]


_Answer: TypeAlias = "tuple[_QueuedSend, Sent | BaseException]"


class PartitionWriter:
    """Any number of tasks may queue sends; one thread at a time writes them."""

    def __init__(
        self,
        partition: str,
        log: PartitionLog,
        threads: Executor,
        *,
        wall_us: Callable[[], int],
        ring: Callable[[], None],
        trim: Callable[[], bool],
    ) -> None:
        self._partition = partition
        self._log = log
        self._threads = threads
        self._wall_us = wall_us
        self._ring_bell = ring
        self._trim = trim
        self._lock = Lock()
        self._waiting: list[_QueuedSend] = []
        self._busy = False
        self._trim_at_us = 0

    def append(
        self, events: Sequence[Event], size_bytes: int | None = None, send: PartitionSend | None = None
    ) -> asyncio.Future[Sent]:
        """Queue events as one send. The future resolves to their sequence numbers once they are durable.

        The events are written atomically. Pass `size_bytes` if they are larger than their bodies. With a `send`, events
        that are already stored are not written again, and the future says where they are.
        """
        loop = asyncio.get_running_loop()
        queued = _QueuedSend(events, size_bytes, send, loop, loop.create_future())
        with self._lock:
            self._waiting.append(queued)
            idle, self._busy = not self._busy, True
        if idle:
            self._start(queued)
        return queued.future

    def _start(self, queued: _QueuedSend) -> None:
        try:
            self._threads.submit(self._drain)
        except RuntimeError:
            with self._lock:
                self._waiting.remove(queued)
                self._busy = False
            raise Misconfigured("The hub is closed. Open it again to send.") from None

    def _drain(self) -> None:
        while group := self._next_group():
            _deliver(self._write(group))
            self._trim_periodically()

    def _next_group(self) -> list[_QueuedSend]:
        with self._lock:
            count = _count_that_fits(self._waiting)
            group, self._waiting = self._waiting[:count], self._waiting[count:]
            self._busy = bool(group)
            return group

    def _write(self, group: list[_QueuedSend]) -> list[_Answer]:
        try:
            events, sends = [queued.events for queued in group], [queued.send for queued in group]
            ranges = self._log.append(events, self._wall_us(), sends)
        except Exception as error:
            if isinstance(error, EvenflowError) and not isinstance(error, BatchForgotten):
                return [(queued, _copy_of(error)) for queued in group]
            if len(group) == 1:
                return [(group[0], _storage_error(error))]
            # One send cannot be encoded or looked up. Write them one by one, so that the others succeed.
            return [answer for queued in group for answer in self._write([queued])]
        self._ring_bell()
        return [(queued, Sent(self._partition, *found)) for queued, found in zip(group, ranges, strict=True)]

    def _trim_periodically(self) -> None:
        now_us = self._wall_us()
        if now_us < self._trim_at_us:
            return
        try:
            more = self._trim()
        except EvenflowError:
            # The events are stored, and the next round trims again.
            more = False
        self._trim_at_us = now_us if more else now_us + TRIM_EVERY_US


def _count_that_fits(waiting: list[_QueuedSend]) -> int:
    """How many waiting sends go into the next transaction: the first, however large, and those that still fit."""
    if len(waiting) < 2:
        return len(waiting)
    events = size_bytes = 0
    for count, queued in enumerate(waiting):
        events += len(queued.events)
        size_bytes += body_bytes(queued.events) if queued.size_bytes is None else queued.size_bytes
        if count and (events > GROUP_EVENTS or size_bytes > GROUP_BYTES):
            return count
    return len(waiting)


def _deliver(answers: list[_Answer]) -> None:
    for loop in {queued.loop for queued, _ in answers}:
        mine = [(queued.future, answer) for queued, answer in answers if queued.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            # The loop is closed, so no caller is waiting.
            pass


def _settle(answers: list[tuple[asyncio.Future[Sent], Sent | BaseException]]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _storage_error(error: Exception) -> Exception:
    """Report an event that cannot be encoded as the sender's mistake, and any other error unchanged."""
    if not isinstance(error, (TypeError, ValueError, OverflowError, RecursionError)):
        return error
    misconfigured = Misconfigured(f"Cannot store these events: {error}")
    misconfigured.__cause__ = error
    return misconfigured


def _copy_of(error: EvenflowError) -> EvenflowError:
    """A copy of the error for each sender, since every raise adds to an error's traceback."""
    copy = type(error)(str(error))
    copy.__cause__ = error
    return copy
