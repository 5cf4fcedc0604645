"""Reads all streams of a process over one connection: one question for what they have, and one wait when none has any.

In a cluster there is such a lane for each slot. A question is answered for one moment, so that it is known whether
something was removed before it was read; the wait is only a bell. Who reads slowly is left out until there is room.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.errors import EvenflowError, PositionGone, SourceUnavailable
from evenflow.model import Batch
from evenflow.sources.redis_streams.client import NotAStream, Wanted
from evenflow.sources.redis_streams.positions import Place, id_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from evenflow.model import Event
    from evenflow.sources.redis_streams.client import Fetched, Link
    from evenflow.sources.redis_streams.codec import Fields
    from evenflow.sources.redis_streams.positions import Facts

T = TypeVar("T")

ROOM_EVENTS, ROOM_BYTES = 1000, 1 << 19
"""What waits for a reader; with that much it is left out, until half of it is taken."""
ASK_EVENTS, ASK_BYTES = 2000, 1 << 23
"""Of all streams together: the server does nothing else meanwhile."""
WAIT_S = 5.0
"""A bell may be missed: so often all are asked for."""
AGAIN_S = 0.5


class Feed:
    """What a lane brought for one reader."""

    def __init__(self, key: str, after: Place) -> None:
        self.key = key
        self.after = after
        """The last that was received."""
        self.events: deque[Event] = deque()
        self.size_bytes = 0
        self.error: EvenflowError | None = None
        self.is_due = True
        """There may be more than was received."""
        self.is_end = False
        """It was seen that there is no more, and nothing has been seen since."""
        self.is_full = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_wanted(self) -> bool:
        return not self.is_full and self.error is None

    @property
    def room_bytes(self) -> int:
        return ROOM_BYTES - self.size_bytes

    def take(self, fetched: Fetched, events: Sequence[Event], after: Place) -> None:
        facts = fetched.facts
        if facts.last < self.after.id:
            self.fail(SourceUnavailable(f"The stream {self.key} was deleted, or made again, while it was read."))
            return
        if facts.is_gone(self.after, was_end=self.is_end):
            self.fail(PositionGone(gone(self.key, self.after, facts)))
            return
        self.is_due, self.is_end = fetched.more, not fetched.more
        # At the end the last id is known, also where its entry was deleted, and how many there ever were.
        self.after = facts.end if self.is_end else after
        self.size_bytes += sum(len(event.body) for event in events)
        self.events.extend(events)
        self.is_full = len(self.events) >= ROOM_EVENTS or self.size_bytes >= ROOM_BYTES
        if self.is_full:
            self.is_due, self.is_end = True, False  # nobody looks after it meanwhile
        self.wake()

    def took(self, size_bytes: int) -> bool:
        """So much of it was read: whether there is room again."""
        self.size_bytes -= size_bytes
        was_full = self.is_full
        self.is_full &= len(self.events) > ROOM_EVENTS // 2 or self.size_bytes > ROOM_BYTES // 2
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


def gone(key: str, after: Place, facts: Facts) -> str:
    kept = "it is empty" if facts.first is None else f"the oldest is {facts.first}"
    return (
        f"Entries of the stream {key} after {after.id} were removed before they were read, or may have been: {kept},"
        f' the newest was {facts.last}. Begin at "earliest" to go on with what is left.'
    )


class Lane:
    """Streams that are asked for together, by one task, for as long as somebody reads them."""

    def __init__(self, link: Link, fields: Fields) -> None:
        self._link = link
        self._fields = fields
        self.feeds: list[Feed] = []
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Somebody reads that nobody has asked for yet, or has room again; or the last one has left."""

    def open(self, key: str, after: Place) -> Feed:
        feed = Feed(key, after)
        self.feeds.append(feed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._live(), name="redis-streams")
        self._changed.set()
        return feed

    def close(self, feed: Feed) -> None:
        self.feeds = [one for one in self.feeds if one is not feed]
        if not self.feeds:
            self._changed.set()

    def has_room(self) -> None:
        self._changed.set()

    async def aclose(self) -> None:
        self.feeds = []
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self) -> None:
        turn = 0
        while self.feeds:
            self._changed.clear()
            wanted = [feed for feed in self.feeds if feed.is_wanted]
            due = [feed for feed in wanted if feed.is_due]
            turn += 1
            try:
                if due:
                    # Each is the first one time: the last ones may get nothing, where entries are large.
                    await self._fetch(_turned(due, turn))
                elif wanted:
                    await self._wait(wanted)
                else:
                    await self._changed.wait()
            except Exception as error:
                for feed in wanted:
                    feed.fail(_told(error))
                await self._rest(AGAIN_S)

    async def _fetch(self, feeds: Sequence[Feed]) -> None:
        """Two readers of one stream are asked for one after the other."""
        for round_ in _rounds(feeds):
            wanted = [Wanted(feed.key, str(feed.after.id), feed.room_bytes) for feed in round_]
            count = max(1, min(ROOM_EVENTS, ASK_EVENTS // len(round_)))
            answers = await self._link.fetch(wanted, count, ASK_BYTES)
            for feed, fetched in zip(round_, answers, strict=True):
                if isinstance(fetched, EvenflowError):
                    feed.fail(fetched)
                else:
                    feed.take(fetched, *self._events(feed.after, fetched))

    def _events(self, after: Place, fetched: Fetched) -> tuple[list[Event], Place]:
        facts = fetched.facts
        if after.count is None and facts.first is not None and facts.first == after.id.next:
            after = facts.beginning  # known by now
        is_counted = facts.added is not None and after.count is not None
        events = []
        for name, fields in fetched.entries:
            after = Place(id_of(name.decode()), (after.count or 0) + 1 if is_counted else None)
            events.append(self._fields.event_of(fields, after))
        return events, after

    async def _wait(self, feeds: Sequence[Feed]) -> None:
        """Until there is more, or somebody else reads: then the server forgets this wait, with its connection."""
        lowest: dict[str, str] = {}
        for feed in sorted(feeds, key=lambda feed: feed.after.id, reverse=True):
            lowest[feed.key] = str(feed.after.id)
        try:
            news = await _unless(self._changed.wait(), self._link.wait(lowest, WAIT_S))
        except NotAStream:
            news = set()  # one of them: when all are asked for, it is told which
        for feed in feeds:
            feed.is_due = news is not None and (not news or feed.key in news)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


async def _unless(other: Coroutine[Any, Any, object], wait: Coroutine[Any, Any, T]) -> T | None:
    """What came of the wait, unless the other came first. Who is late is cancelled and not waited for: the driver may
    lose a cancellation, and ends in its own time."""
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(other), asyncio.ensure_future(wait)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.add_done_callback(_forget)
            task.cancel()
    return tasks[1].result() if tasks[1] in done else None


def _forget(task: asyncio.Future[object]) -> None:
    """What became of it is nobody's business any more."""
    if not task.cancelled():
        task.exception()


def _told(error: Exception) -> EvenflowError:
    """Readers hear of whatever ends a question: nobody else would."""
    return error if isinstance(error, EvenflowError) else SourceUnavailable(f"{type(error).__name__}: {error}")


def _turned(feeds: list[Feed], turn: int) -> list[Feed]:
    at = turn % len(feeds)
    return feeds[at:] + feeds[:at]


def _rounds(feeds: Sequence[Feed]) -> list[list[Feed]]:
    rounds: list[list[Feed]] = []
    seen: Counter[str] = Counter()
    for feed in feeds:
        if seen[feed.key] == len(rounds):
            rounds.append([])
        rounds[seen[feed.key]].append(feed)
        seen[feed.key] += 1
    return rounds


class RedisStreamReader:
    def __init__(self, lane: Lane, feed: Feed) -> None:
        self._lane = lane
        self._feed = feed
        self._after = feed.after
        """The last that was read."""

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        feed, loop = self._feed, asyncio.get_running_loop()
        until_s = loop.time() + max_wait_s
        while not feed.events:
            if feed.error is not None:
                error, feed.error = feed.error, None
                self._lane.has_room()
                raise error
            if loop.time() >= until_s:
                if feed.is_end:
                    self._after = feed.after
                    return Batch((), self._after.position)
                until_s = loop.time() + max(0.05, max_wait_s)  # not asked yet; the link says when nobody answers
            await feed.wait_until(until_s)
        return self._taken(max_events, max_bytes)

    async def aclose(self) -> None:
        self._lane.close(self._feed)

    def _taken(self, max_events: int, max_bytes: int) -> Batch:
        feed = self._feed
        events: list[Event] = []
        size_bytes = 0
        while feed.events and len(events) < max_events:
            size = len(feed.events[0].body)
            if events and size_bytes + size > max_bytes:
                break
            events.append(feed.events.popleft())
            size_bytes += size
        if feed.took(size_bytes):
            self._lane.has_room()
        return Batch(events, events[-1].position, size_bytes)
