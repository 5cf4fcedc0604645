"""Reads one partition out of the buffer that the shared consumer fills.

An empty batch is returned only when the consumer has reached the end of the partition. Otherwise a read keeps waiting,
and finally raises that the broker does not answer: an empty batch would look like having caught up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import SourceUnavailable
from evenflow.model import Batch, Position
from evenflow.sources.kafka.buffers import MessageChunk
from evenflow.sources.kafka.codec import LazyEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.errors import EvenflowError
    from evenflow.sources.kafka.buffers import PartitionBuffer
    from evenflow.sources.kafka.client import Message
    from evenflow.sources.kafka.consumer import SharedConsumer

SILENT_S = 15.0
"""A read fails when a partition has delivered nothing for this long, not even its end."""


class KafkaReader:
    def __init__(
        self,
        consumer: SharedConsumer,
        buffer: PartitionBuffer,
        after: int,
        encoding: str,
        topic_error: Callable[[], EvenflowError | None],
        on_close: Callable[[SharedConsumer], None],
    ) -> None:
        self._consumer = consumer
        self._buffer = buffer
        self._after = after
        self._encoding = encoding
        self._topic_error = topic_error
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        buffer = self._buffer
        until_s = self._loop.time() + max_wait_s
        while not buffer.chunks:
            if buffer.error is not None:
                error, buffer.error = buffer.error, None
                raise error
            if self._loop.time() >= until_s:
                if (topic_error := self._topic_error()) is not None:
                    raise topic_error
                if buffer.end is not None:
                    return self._empty_batch(buffer.end)
                self._check_silence()
                until_s = self._loop.time() + max(0.1, max_wait_s)
            await self._wait_until(until_s)
        return self._take(max_events, max_bytes)

    async def aclose(self) -> None:
        self._consumer.close(self._buffer)
        self._on_close(self._consumer)

    def _empty_batch(self, end: int) -> Batch:
        self._heard_s = self._loop.time()
        self._after = max(self._after, end - 1)
        return Batch((), position_at(self._after))

    def _check_silence(self) -> None:
        if self._loop.time() - self._heard_s > SILENT_S:
            self._heard_s = self._loop.time()
            why = f" Last error of the client: {self._consumer.driver_error}" if self._consumer.driver_error else ""
            raise SourceUnavailable(
                f"The broker sent nothing for partition {self._buffer.number} in {SILENT_S:.0f} s, not even its end."
                f"{why}"
            )

    async def _wait_until(self, time_s: float) -> None:
        self._buffer.waiter = self._loop.create_future()
        timer = self._loop.call_at(time_s, self._buffer.wake)
        try:
            await self._buffer.waiter
        finally:
            self._buffer.waiter = None
            timer.cancel()

    def _take(self, max_events: int, max_bytes: int) -> Batch:
        """As many chunks as fit; if the first alone is too large, a part of it."""
        buffer = self._buffer
        self._heard_s = self._loop.time()
        messages, size_bytes = buffer.chunks.popleft()
        if len(messages) > max_events or size_bytes > max_bytes:
            messages, size_bytes, rest = _divided(messages, max_events, max_bytes)
            if rest.messages:
                buffer.chunks.appendleft(rest)
        while buffer.chunks and _fits(buffer.chunks[0], max_events - len(messages), max_bytes - size_bytes):
            more, more_bytes = buffer.chunks.popleft()
            messages += more
            size_bytes += more_bytes
        self._consumer.count_taken(buffer, len(messages), size_bytes)
        last = messages[-1].offset()
        assert last is not None
        self._after = last
        if not buffer.chunks and buffer.end is not None:
            # Moves past offsets that hold no event: transaction markers and aborted messages.
            self._after = max(self._after, buffer.end - 1)
        return Batch(LazyEvents(messages, self._encoding), position_at(self._after), size_bytes)


def _fits(chunk: MessageChunk, max_events: int, max_bytes: int) -> bool:
    return len(chunk.messages) <= max_events and chunk.size_bytes <= max_bytes


def _divided(messages: list[Message], max_events: int, max_bytes: int) -> tuple[list[Message], int, MessageChunk]:
    """The first messages, at least one and as many as fit, their size, and the rest."""
    count = size_bytes = 0
    for message in messages[: max_events or 1]:
        if count and size_bytes + len(message) > max_bytes:
            break
        size_bytes += len(message)
        count += 1
    rest = messages[count:]
    return messages[:count], size_bytes, MessageChunk(rest, sum(map(len, rest)))


def position_at(offset: int) -> Position:
    return Position(str(offset), offset)
