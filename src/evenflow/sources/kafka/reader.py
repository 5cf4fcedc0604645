"""A reader of one partition: it takes what the consumer's thread has brought.

"There is nothing" is said only where the consumer has seen the end of the partition. Without that a read waits
longer, and then says that the broker does not answer: an empty batch would pass for having caught up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.kafka.codec import Events
from evenflow.sources.kafka.consumer import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.errors import EvenflowError
    from evenflow.sources.kafka.client import Message
    from evenflow.sources.kafka.consumer import Feed, Lane

SILENT_S = 15.0
"""So long nothing at all may come of a partition, not even its end."""


class KafkaReader:
    def __init__(
        self,
        lane: Lane,
        feed: Feed,
        after: int,
        encoding: str,
        trouble: Callable[[], EvenflowError | None],
        closed: Callable[[Lane], None],
    ) -> None:
        self._lane = lane
        self._feed = feed
        self._after = after
        self._encoding = encoding
        self._trouble = trouble
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        feed = self._feed
        until_s = self._loop.time() + max_wait_s
        while not feed.chunks:
            if feed.error is not None:
                error, feed.error = feed.error, None
                raise error
            if self._loop.time() >= until_s:
                if (trouble := self._trouble()) is not None:
                    raise trouble
                if feed.end is not None:
                    return self._nothing(feed.end)
                self._check_silence()
                until_s = self._loop.time() + max(0.1, max_wait_s)
            await self._wait_until(until_s)
        return self._take(max_events, max_bytes)

    async def aclose(self) -> None:
        self._lane.close(self._feed)
        self._closed(self._lane)

    def _nothing(self, end: int) -> Batch:
        self._heard_s = self._loop.time()
        self._after = max(self._after, end - 1)
        return Batch((), position_at(self._after))

    def _check_silence(self) -> None:
        if self._loop.time() - self._heard_s > SILENT_S:
            self._heard_s = self._loop.time()
            why = f" The client says: {self._lane.said}" if self._lane.said else ""
            raise SourceUnavailable(
                f"Nothing came of partition {self._feed.number} for {SILENT_S:.0f} s, not even its end.{why}"
            )

    async def _wait_until(self, time_s: float) -> None:
        self._feed.waiter = self._loop.create_future()
        timer = self._loop.call_at(time_s, self._feed.wake)
        try:
            await self._feed.waiter
        finally:
            self._feed.waiter = None
            timer.cancel()

    def _take(self, max_events: int, max_bytes: int) -> Batch:
        """The next chunks, as many as fit; of one that alone is too large, a part."""
        feed = self._feed
        self._heard_s = self._loop.time()
        messages, size_bytes = feed.chunks.popleft()
        if len(messages) > max_events or size_bytes > max_bytes:
            messages, size_bytes, rest = _divided(messages, max_events, max_bytes)
            if rest.messages:
                feed.chunks.appendleft(rest)
        while feed.chunks and _fits(feed.chunks[0], max_events - len(messages), max_bytes - size_bytes):
            more, more_bytes = feed.chunks.popleft()
            messages += more
            size_bytes += more_bytes
        self._lane.took(feed, len(messages), size_bytes)
        last = messages[-1].offset()
        assert last is not None
        self._after = last
        if not feed.chunks and feed.end is not None:
            # Past what is no event: the marks of transactions, and what was written in vain.
            self._after = max(self._after, feed.end - 1)
        return Batch(Events(messages, self._encoding), position_at(self._after), size_bytes)


def _fits(chunk: Chunk, max_events: int, max_bytes: int) -> bool:
    return len(chunk.messages) <= max_events and chunk.size_bytes <= max_bytes


def _divided(messages: list[Message], max_events: int, max_bytes: int) -> tuple[list[Message], int, Chunk]:
    """The first messages, at least one and as many as fit, their size, and the others."""
    count = size_bytes = 0
    for message in messages[: max_events or 1]:
        if count and size_bytes + len(message) > max_bytes:
            break
        size_bytes += len(message)
        count += 1
    rest = messages[count:]
    return messages[:count], size_bytes, Chunk(rest, sum(map(len, rest)))


def position_at(offset: int) -> Position:
    return Position(str(offset), offset)
