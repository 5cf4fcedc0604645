"""Reads all streams of a process over one connection: one question for what they have, and one wait when none has any.

In a cluster there is such a lane for each slot. A question is answered for one moment, so that it is known whether
something was removed before it was read; the wait is only a bell. Who reads slowly is left out until there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError, PositionGone, SourceUnavailable
from evenflow.model import Batch
from evenflow.sources.redis_streams_ids import Place, id_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from evenflow.model import Event
    from evenflow.sources.redis_streams_events import Fields
    from evenflow.sources.redis_streams_ids import Facts
    from evenflow.sources.redis_streams_link import Link

    Entry = tuple[bytes, list[bytes]]

ROOM_EVENTS, ROOM_BYTES = 1000, 1 << 19
"""What waits for a reader; with that much it is left out."""
ASK_EVENTS = 2000
"""Of all streams together: the server does nothing else meanwhile."""
GUESS_BYTES = 1000
"""Of an event, before one was seen."""
WAIT_S = 5.0
WAIT_SOME_S = 0.02
"""While a stream is left out: it may be asked for again soon."""
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
        self.is_end = False
        """It was seen that there is no more, and nothing has been seen since."""
        self._mean_bytes = float(GUESS_BYTES)
        self._waiting: asyncio.Future[None] | None = None

    @property
    def has_room(self) -> bool:
        return len(self.events) < ROOM_EVENTS and self.size_bytes < ROOM_BYTES and self.error is None

    @property
    def wanted(self) -> int:
        return max(1, int(ROOM_BYTES / self._mean_bytes))

    def take(self, facts: Facts, events: Sequence[Event], after: Place) -> None:
        if facts.last < self.after.id:
            self.fail(SourceUnavailable(f"The stream {self.key} was deleted, or made again, while it was read."))
            return
        if facts.is_gone(self.after, was_end=self.is_end):
            self.fail(PositionGone(gone(self.key, self.after, facts)))
            return
        self.after = after
        self.is_end = after.id >= facts.last
        if self.is_end and facts.added is not None:
            self.after = Place(after.id, max(facts.added, after.count or 0))
        for event in events:
            size = len(event.body)
            self._mean_bytes += (size - self._mean_bytes) / 20
            self.size_bytes += size
        self.events.extend(events)
        self.wake()

    def fail(self, error: EvenflowError) -> None:
        self.error, self.is_end = error, False
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
        self._joined = asyncio.Event()
        """Somebody reads that nobody has asked for yet; or the last one has left."""
        self._room = asyncio.Event()

    def open(self, key: str, after: Place) -> Feed:
        feed = Feed(key, after)
        self.feeds.append(feed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._live(), name="redis-streams")
        self._joined.set()
        return feed

    def close(self, feed: Feed) -> None:
        self.feeds = [one for one in self.feeds if one is not feed]
        if not self.feeds:
            self._joined.set()

    def took(self) -> None:
        """There is room again."""
        self._room.set()

    async def aclose(self) -> None:
        self.feeds = []
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self) -> None:
        while self.feeds:
            asked = [feed for feed in self.feeds if feed.has_room]
            self._joined.clear()
            self._room.clear()
            if not asked:
                await _first_of(self._joined.wait(), self._room.wait())
                continue
            try:
                if not await self._fetch(asked):
                    await self._wait(asked)
            except Exception as error:
                for feed in asked:
                    feed.fail(_told(error))
                await self._rest(AGAIN_S)

    async def _fetch(self, feeds: Sequence[Feed]) -> bool:
        """Whether anything came. Two readers of one stream are asked for one after the other."""
        came = False
        for round_ in _rounds(feeds):
            count = max(1, min(ASK_EVENTS // len(round_), *(feed.wanted for feed in round_)))
            answers = await self._link.fetch({feed.key: str(feed.after.id) for feed in round_}, count)
            for feed, (facts, entries) in zip(round_, answers, strict=True):
                events, after = self._events(feed.after, facts, entries)
                feed.take(facts, events, after)
                came = came or bool(entries) or feed.error is not None
        return came

    def _events(self, after: Place, facts: Facts, entries: Sequence[Entry]) -> tuple[list[Event], Place]:
        if after.count is None and facts.first is not None and facts.first == after.id.next:
            after = facts.beginning  # known by now
        is_counted = facts.added is not None and after.count is not None
        events = []
        for name, fields in entries:
            after = Place(id_of(name.decode()), (after.count or 0) + 1 if is_counted else None)
            events.append(self._fields.event_of(fields, after))
        return events, after

    async def _wait(self, feeds: Sequence[Feed]) -> None:
        """Until there is more, or somebody else reads: then the server forgets this wait, with its connection."""
        seconds = WAIT_S if len(feeds) == len(self.feeds) else WAIT_SOME_S
        lowest: dict[str, str] = {}
        for feed in sorted(feeds, key=lambda feed: feed.after.id, reverse=True):
            lowest[feed.key] = str(feed.after.id)
        await _first_of(self._joined.wait(), self._link.wait(lowest, seconds))

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._joined.wait()
        except TimeoutError:
            pass


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """The others are cancelled and not waited for: the driver may lose a cancellation, and ends in its own time."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.add_done_callback(_forget)
            task.cancel()
    for task in done:
        task.result()


def _forget(task: asyncio.Future[object]) -> None:
    """What became of it is nobody's business any more."""
    if not task.cancelled():
        task.exception()


def _told(error: Exception) -> EvenflowError:
    """Readers hear of whatever ends a question: nobody else would."""
    return error if isinstance(error, EvenflowError) else SourceUnavailable(f"{type(error).__name__}: {error}")


def _rounds(feeds: Sequence[Feed]) -> list[list[Feed]]:
    rounds: list[list[Feed]] = []
    for feed in feeds:
        for known in rounds:
            if all(one.key != feed.key for one in known):
                known.append(feed)
                break
        else:
            rounds.append([feed])
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
                self._lane.took()
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
        feed.size_bytes -= size_bytes
        self._lane.took()
        return Batch(events, events[-1].position, size_bytes)
