"""Reads all streams of a process over one connection: one request fetches from all, and one blocking wait follows when
none has more.

In a cluster there is one such poller for each slot. A fetch is atomic, so it shows whether entries were removed before
they were read; the blocking wait only signals new entries. A reader with a full buffer is skipped until it has space.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.errors import EvenflowError, PositionGone, SourceUnavailable
from evenflow.model import Batch
from evenflow.sources.redis_streams.client import NotAStream, StreamFetch
from evenflow.sources.redis_streams.positions import StreamPosition, id_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from evenflow.model import Event
    from evenflow.sources.redis_streams.client import FetchedEntries, RedisStreamsClient
    from evenflow.sources.redis_streams.codec import EntryFields
    from evenflow.sources.redis_streams.positions import StreamState

T = TypeVar("T")

BUFFER_EVENTS, BUFFER_BYTES = 1000, 1 << 19
"""The size of a reader's buffer. A full buffer is skipped until half of it was taken."""
FETCH_EVENTS, FETCH_BYTES = 2000, 1 << 23
"""The most that one fetch returns for all streams: the server executes nothing else meanwhile."""
WAIT_S = 5.0
"""All streams are fetched at least this often, in case a signal is missed."""
RETRY_S = 0.5


class StreamBuffer:
    """Entries of one stream between the poller and a reader."""

    def __init__(self, key: str, after: StreamPosition) -> None:
        self.key = key
        self.after = after
        """The position of the last entry received."""
        self.events: deque[Event] = deque()
        self.size_bytes = 0
        self.error: EvenflowError | None = None
        self.is_due = True
        """There may be more entries to fetch."""
        self.is_end = False
        """The last fetch reached the end, and no new entry was signalled since."""
        self.is_full = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_wanted(self) -> bool:
        return not self.is_full and self.error is None

    @property
    def free_bytes(self) -> int:
        return BUFFER_BYTES - self.size_bytes

    def take(self, fetched: FetchedEntries, events: Sequence[Event], after: StreamPosition) -> None:
        state = fetched.state
        if state.last < self.after.id:
            self.fail(
                SourceUnavailable(
                    f"The stream {self.key} was deleted or recreated while it was being read. Open it again."
                )
            )
            return
        if state.is_removed(self.after, was_end=self.is_end):
            self.fail(PositionGone(gone(self.key, self.after, state)))
            return
        self.is_due, self.is_end = fetched.more, not fetched.more
        # At the end, the last id and the count are known even if the last entry was deleted.
        self.after = state.end if self.is_end else after
        self.size_bytes += sum(len(event.body) for event in events)
        self.events.extend(events)
        self.is_full = len(self.events) >= BUFFER_EVENTS or self.size_bytes >= BUFFER_BYTES
        if self.is_full:
            self.is_due, self.is_end = True, False  # it is not polled while it is full
        self.wake()

    def took(self, size_bytes: int) -> bool:
        """Records that the reader took this much. Returns whether a full buffer has space again."""
        self.size_bytes -= size_bytes
        was_full = self.is_full
        self.is_full &= len(self.events) > BUFFER_EVENTS // 2 or self.size_bytes > BUFFER_BYTES // 2
        return was_full and not self.is_full

    def fail(self, error: EvenflowError) -> None:
        self.error, self.is_end, self.is_due = error, False, True
        self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait_until(self, time_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_at(time_s, self.wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            timer.cancel()


def gone(key: str, after: StreamPosition, state: StreamState) -> str:
    kept = "it is empty" if state.first is None else f"the oldest is {state.first}"
    return (
        f"Entries of the stream {key} after {after.id} were removed before they were read, or may have been: {kept},"
        f' the newest was {state.last}. Start at "earliest" to continue with the entries that are left.'
    )


class StreamPoller:
    """Fetches from several streams together, in one task that runs while they have readers."""

    def __init__(self, client: RedisStreamsClient, fields: EntryFields) -> None:
        self._client = client
        self._fields = fields
        self.buffers: list[StreamBuffer] = []
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set when a reader was opened, a buffer has space again, or the last reader was closed."""

    def open(self, key: str, after: StreamPosition) -> StreamBuffer:
        buffer = StreamBuffer(key, after)
        self.buffers.append(buffer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="redis-streams")
        self._changed.set()
        return buffer

    def close(self, buffer: StreamBuffer) -> None:
        self.buffers = [one for one in self.buffers if one is not buffer]
        if not self.buffers:
            self._changed.set()

    def on_space(self) -> None:
        self._changed.set()

    async def aclose(self) -> None:
        self.buffers = []
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        turn = 0
        while self.buffers:
            self._changed.clear()
            wanted = [buffer for buffer in self.buffers if buffer.is_wanted]
            due = [buffer for buffer in wanted if buffer.is_due]
            turn += 1
            try:
                if due:
                    # The order rotates: when entries are large, the last streams of a fetch may get none.
                    await self._fetch(_rotated(due, turn))
                elif wanted:
                    await self._wait(wanted)
                else:
                    await self._changed.wait()
            except Exception as error:
                for buffer in wanted:
                    buffer.fail(_source_error(error))
                await self._rest(RETRY_S)

    async def _fetch(self, buffers: Sequence[StreamBuffer]) -> None:
        """Two readers of the same stream need two fetches."""
        for round_ in _rounds(buffers):
            wanted = [StreamFetch(buffer.key, str(buffer.after.id), buffer.free_bytes) for buffer in round_]
            count = max(1, min(BUFFER_EVENTS, FETCH_EVENTS // len(round_)))
            answers = await self._client.fetch(wanted, count, FETCH_BYTES)
            for buffer, fetched in zip(round_, answers, strict=True):
                if isinstance(fetched, EvenflowError):
                    buffer.fail(fetched)
                else:
                    buffer.take(fetched, *self._events(buffer.after, fetched))

    def _events(self, after: StreamPosition, fetched: FetchedEntries) -> tuple[list[Event], StreamPosition]:
        state = fetched.state
        if after.count is None and state.first is not None and state.first == after.id.next:
            after = state.beginning  # the count is known now
        is_counted = state.added is not None and after.count is not None
        events = []
        for name, fields in fetched.entries:
            after = StreamPosition(id_of(name.decode()), (after.count or 0) + 1 if is_counted else None)
            events.append(self._fields.event_of(fields, after))
        return events, after

    async def _wait(self, buffers: Sequence[StreamBuffer]) -> None:
        """Waits for new entries. A change of the readers ends the wait and closes its connection."""
        lowest: dict[str, str] = {}
        for buffer in sorted(buffers, key=lambda buffer: buffer.after.id, reverse=True):
            lowest[buffer.key] = str(buffer.after.id)
        try:
            news = await _unless_first(self._changed.wait(), self._client.wait(lowest, WAIT_S))
        except NotAStream:
            news = set()  # one of these keys: the next fetch finds out which
        for buffer in buffers:
            buffer.is_due = news is not None and (not news or buffer.key in news)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


async def _unless_first(other: Coroutine[Any, Any, object], wait: Coroutine[Any, Any, T]) -> T | None:
    """The result of the wait, or None if the other coroutine completes first. The loser is cancelled but not awaited:
    the driver may lose a cancellation, and then ends later."""
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(other), asyncio.ensure_future(wait)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.add_done_callback(_retrieve)
            task.cancel()
    return tasks[1].result() if tasks[1] in done else None


def _retrieve(task: asyncio.Future[object]) -> None:
    """Marks the exception as retrieved."""
    if not task.cancelled():
        task.exception()


def _source_error(error: Exception) -> EvenflowError:
    """Any error goes to the readers: no other code awaits this task."""
    return error if isinstance(error, EvenflowError) else SourceUnavailable(f"{type(error).__name__}: {error}")


def _rotated(buffers: list[StreamBuffer], turn: int) -> list[StreamBuffer]:
    at = turn % len(buffers)
    return buffers[at:] + buffers[:at]


def _rounds(buffers: Sequence[StreamBuffer]) -> list[list[StreamBuffer]]:
    rounds: list[list[StreamBuffer]] = []
    seen: Counter[str] = Counter()
    for buffer in buffers:
        if seen[buffer.key] == len(rounds):
            rounds.append([])
        rounds[seen[buffer.key]].append(buffer)
        seen[buffer.key] += 1
    return rounds


class RedisStreamReader:
    def __init__(self, poller: StreamPoller, buffer: StreamBuffer) -> None:
        self._poller = poller
        self._buffer = buffer
        self._after = buffer.after
        """The position of the last entry read."""

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        buffer, loop = self._buffer, asyncio.get_running_loop()
        until_s = loop.time() + max_wait_s
        while not buffer.events:
            if buffer.error is not None:
                error, buffer.error = buffer.error, None
                self._poller.on_space()
                raise error
            if loop.time() >= until_s:
                if buffer.is_end:
                    self._after = buffer.after
                    return Batch((), self._after.position)
                until_s = loop.time() + max(0.05, max_wait_s)  # not fetched yet; a timeout is reported as an error
            await buffer.wait_until(until_s)
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        self._poller.close(self._buffer)

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        buffer = self._buffer
        events: list[Event] = []
        size_bytes = 0
        while buffer.events and len(events) < max_events:
            size = len(buffer.events[0].body)
            if events and size_bytes + size > max_bytes:
                break
            events.append(buffer.events.popleft())
            size_bytes += size
        if buffer.took(size_bytes):
            self._poller.on_space()
        return Batch(events, events[-1].position, size_bytes)
