"""Writes to one partition: sends that arrive while one is being written share the next transaction.

The queue is filled on the event loop and emptied on a thread. An answer is given only after the commit is durable
and the bell was rung, so whoever has seen an answer can read what it is about.
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

    from evenflow.embedded.hub.log import PartitionLog
    from evenflow.embedded.hub.marks import Mark
    from evenflow.model import Event

GROUP_EVENTS = 10_000
GROUP_BYTES = 8 * 1024 * 1024
"""Sends are gathered into one transaction up to about this much, so that no transaction holds its lock for long."""

TRIM_EVERY_US = 1_000_000
"""How much time passes between two looks at what retention no longer keeps."""


class Sent(NamedTuple):
    """Where a send went in one partition: the sequences of its first and last event there."""

    partition: str
    first: int
    last: int


class _Put(NamedTuple):
    events: Sequence[Event]
    size_bytes: int | None
    mark: Mark | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Sent]


_Answer: TypeAlias = "tuple[_Put, Sent | BaseException]"


class PartitionWriter:
    """Any number of tasks put, one thread at a time writes."""

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
        self._ring = ring
        self._trim = trim
        self._lock = Lock()
        self._waiting: list[_Put] = []
        self._busy = False
        self._trim_at_us = 0

    def put(
        self, events: Sequence[Event], size_bytes: int | None = None, mark: Mark | None = None
    ) -> asyncio.Future[Sent]:
        """Queue events as one send; the future has where they are once they are durable.

        The events of one put are written together or not at all. `size_bytes` is for those that are more than their
        bodies. With a `mark`, a put of it that is stored already is answered with where that is.
        """
        loop = asyncio.get_running_loop()
        put = _Put(events, size_bytes, mark, loop, loop.create_future())
        with self._lock:
            self._waiting.append(put)
            idle, self._busy = not self._busy, True
        if idle:
            self._start(put)
        return put.future

    def _start(self, put: _Put) -> None:
        try:
            self._threads.submit(self._drain)
        except RuntimeError:
            with self._lock:
                self._waiting.remove(put)
                self._busy = False
            raise Misconfigured("This hub was closed. Open it again to send.") from None

    def _drain(self) -> None:
        while group := self._next_group():
            _deliver(self._written(group))
            self._trim_now_and_then()

    def _next_group(self) -> list[_Put]:
        with self._lock:
            count = _fitting(self._waiting)
            group, self._waiting = self._waiting[:count], self._waiting[count:]
            self._busy = bool(group)
            return group

    def _written(self, group: list[_Put]) -> list[_Answer]:
        try:
            ranges = self._log.append([put.events for put in group], self._wall_us(), [put.mark for put in group])
        except Exception as error:
            if isinstance(error, EvenflowError) and not isinstance(error, BatchForgotten):
                return [(put, _own(error)) for put in group]
            if len(group) == 1:
                return [(group[0], _unfit(error))]
            # One of them cannot be encoded, or recognised; the others must not suffer for it.
            return [answer for put in group for answer in self._written([put])]
        self._ring()
        return [(put, Sent(self._partition, *found)) for put, found in zip(group, ranges, strict=True)]

    def _trim_now_and_then(self) -> None:
        now_us = self._wall_us()
        if now_us < self._trim_at_us:
            return
        try:
            more = self._trim()
        except EvenflowError:
            # What was sent is safe, and the next round trims again.
            more = False
        self._trim_at_us = now_us if more else now_us + TRIM_EVERY_US


def _fitting(waiting: list[_Put]) -> int:
    """How many of those that wait go into the next transaction: the first, however large it is, and what fits."""
    if len(waiting) < 2:
        return len(waiting)
    events = size_bytes = 0
    for count, put in enumerate(waiting):
        events += len(put.events)
        size_bytes += body_bytes(put.events) if put.size_bytes is None else put.size_bytes
        if count and (events > GROUP_EVENTS or size_bytes > GROUP_BYTES):
            return count
    return len(waiting)


def _deliver(answers: list[_Answer]) -> None:
    for loop in {put.loop for put, _ in answers}:
        mine = [(put.future, answer) for put, answer in answers if put.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:
            # The loop is closed: nobody waits there any more.
            pass


def _settle(answers: list[tuple[asyncio.Future[Sent], Sent | BaseException]]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _unfit(error: Exception) -> Exception:
    """An event that cannot be encoded is the sender's mistake; anything else is ours, and shows as it is."""
    if not isinstance(error, (TypeError, ValueError, OverflowError, RecursionError)):
        return error
    unfit = Misconfigured(f"These events cannot be stored: {error}")
    unfit.__cause__ = error
    return unfit


def _own(error: EvenflowError) -> EvenflowError:
    """An error of one's own for each sender: a raised one collects the traceback of whoever raises it."""
    own = type(error)(str(error))
    own.__cause__ = error
    return own
