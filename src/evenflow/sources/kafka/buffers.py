"""What the shared consumer has received and the readers have not yet taken: one buffer for each partition.

A partition whose buffer is full is paused on its own. Pausing makes the driver drop what it has prefetched for that
partition, so it happens late. When every buffer has enough, the consumer does not read at all, and nothing is dropped.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evenflow.sources.kafka.client import END, GONE, Message, TopicPartition, meaning_of

if TYPE_CHECKING:
    import asyncio

    from evenflow.errors import EvenflowError
    from evenflow.sources.kafka.client import Consumer
    from evenflow.sources.kafka.options import KafkaOptions

CHUNK_EVENTS, CHUNK_BYTES = 500, 128 * 1024
"""Approximate. Small enough that a read usually takes whole chunks: splitting one means looking at each message."""
READ_EVENTS = 500
READ_BYTES = 1024 * 1024
"""The most that one read returns, approximately. It bounds how long the event loop is held: some tenths of a
millisecond. Twice as many is slower, because they no longer fit into the CPU cache between the read and the handler."""
ENOUGH_EVENTS, FULL_EVENTS = 500, 10_000
"""A buffer with less needs more; a buffer with more is paused. Larger buffers do not make reading faster, and the
garbage collector scans everything in them again and again."""
ALL_BYTES = 32 * 1024 * 1024
PARTITION_BYTES_MIN = 256 * 1024
"""The same in bytes: a partition's share of what all partitions may buffer together, but not less than this."""

_error, _partition = Message.error, Message.partition


class MessageChunk(NamedTuple):
    """Messages of one partition, in order."""

    messages: list[Message]
    size_bytes: int


class PartitionEnd(NamedTuple):
    """The consumer has reached the end of the partition; the next event will get this offset."""

    next_offset: int


Item: TypeAlias = "MessageChunk | PartitionEnd | EvenflowError"


class PartitionBuffer:
    """Messages of one partition between the consumer and its reader. Closed together with the reader.

    Each counter has a single writer: the reading side counts `received_*`, the event loop counts `taken_*`.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunks: deque[MessageChunk] = deque()
        self.end: int | None = None
        """The offset of the next event, once everything before it has been received."""
        self.error: EvenflowError | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.received_events = self.received_bytes = 0
        self.taken_events = self.taken_bytes = 0
        self.is_paused = False

    def size(self) -> tuple[int, int]:
        """Events and bytes that the reader has not taken yet."""
        return self.received_events - self.taken_events, self.received_bytes - self.taken_bytes

    def put(self, item: Item) -> None:
        if isinstance(item, MessageChunk):
            self.chunks.append(item)
            self.end = None
        elif isinstance(item, PartitionEnd):
            self.end = item.next_offset
        else:
            self.error = item
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class AssignedBuffers:
    """The buffers of all partitions that the consumer is assigned. Used by whichever side holds the consumer."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self.by_number: dict[int, PartitionBuffer] = {}
        self.read_events = READ_EVENTS
        """How many messages to read at once, so that a read has about READ_BYTES."""

    def __bool__(self) -> bool:
        return bool(self.by_number)

    def any_needs_more(self) -> bool:
        return any(map(self.needs_more, self.by_number.values()))

    def needs_more(self, buffer: PartitionBuffer) -> bool:
        events, size_bytes = buffer.size()
        return events < ENOUGH_EVENTS and size_bytes < self._share_bytes // 2

    def any_must_change(self) -> bool:
        return any(map(self._must_change, self.by_number.values()))

    def pause_and_resume(self, consumer: Consumer) -> None:
        for buffer in self.by_number.values():
            if self._must_change(buffer):
                change = consumer.resume if buffer.is_paused else consumer.pause
                change([TopicPartition(self._options.topic, buffer.number)])
                buffer.is_paused = not buffer.is_paused

    def sort(self, messages: list[Message]) -> list[tuple[PartitionBuffer, Item]]:
        """What to put into which buffer. Errors that concern no partition are dropped."""
        items: list[tuple[PartitionBuffer, Item]] = []
        for number, same in groupby(messages, _partition):
            buffer = self.by_number.get(number)  # type: ignore[arg-type]
            run = list(same)
            if buffer is None:
                continue
            if any(map(_error, run)):
                items += [(buffer, item) for item in self._with_errors(buffer, run)]
            else:
                items += [(buffer, chunk) for chunk in _chunks(buffer, run)]
        self._adjust_read_events(items)
        return items

    def _adjust_read_events(self, items: list[tuple[PartitionBuffer, Item]]) -> None:
        chunks = [item for _, item in items if isinstance(item, MessageChunk)]
        events = sum([len(chunk.messages) for chunk in chunks])
        if events:
            size_bytes = sum([chunk.size_bytes for chunk in chunks])
            self.read_events = max(16, min(READ_EVENTS, READ_BYTES * events // max(1, size_bytes)))

    def _with_errors(self, buffer: PartitionBuffer, run: list[Message]) -> list[Item]:
        items: list[Item] = []
        for failed, same in groupby(run, lambda message: message.error() is not None):
            messages = list(same)
            # An error without a topic is about the Kafka group that the driver expects to join. We never join it.
            relevant = [message for message in messages if not failed or message.topic() is not None]
            items += [self._error_item(message) for message in relevant] if failed else _chunks(buffer, messages)
        return items

    def _error_item(self, message: Message) -> Item:
        error, offset = message.error(), message.offset()
        assert error is not None
        if error.code() == END:
            assert offset is not None
            return PartitionEnd(offset)
        if error.code() in GONE:
            return meaning_of(error, f"partition {message.partition()} of {self._options} after {(offset or 0) - 1}")
        return meaning_of(error, f"partition {message.partition()} of {self._options}")

    def _must_change(self, buffer: PartitionBuffer) -> bool:
        """Whether the partition must be paused or resumed."""
        return self.needs_more(buffer) if buffer.is_paused else self._is_full(buffer)

    def _is_full(self, buffer: PartitionBuffer) -> bool:
        events, size_bytes = buffer.size()
        return events > FULL_EVENTS or size_bytes > self._share_bytes

    @property
    def _share_bytes(self) -> int:
        return max(PARTITION_BYTES_MIN, ALL_BYTES // max(1, len(self.by_number)))


def _chunks(buffer: PartitionBuffer, messages: list[Message]) -> list[MessageChunk]:
    size_bytes = sum(map(len, messages))
    count = max(1, min(CHUNK_EVENTS, CHUNK_BYTES * len(messages) // max(1, size_bytes)))
    if len(messages) <= count:
        chunks = [MessageChunk(messages, size_bytes)]
    else:
        parts = [messages[at : at + count] for at in range(0, len(messages), count)]
        chunks = [MessageChunk(part, sum(map(len, part))) for part in parts]
    buffer.received_events += len(messages)
    buffer.received_bytes += size_bytes
    return chunks
