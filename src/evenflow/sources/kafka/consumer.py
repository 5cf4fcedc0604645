"""One Kafka consumer that reads all partitions of an instance and hands the messages to their readers.

Everything that may block runs on a thread: waiting for the first message, assigning or unassigning a partition. While
messages are already in the driver's queue, a thread gains nothing: converting them to Python objects holds the
interpreter lock anyway, and switching threads costs more than many messages do. So two sides take turns with the
consumer. The thread waits. Under load it lends the consumer to the event loop, which reads a batch at a time, without
waiting, between handlers. When there is little to read or something else to do, the loop returns it.

Assignments change only between two reads, so messages of an earlier assignment are never mistaken for those of a later
one. The consumer joins no Kafka group: opening and closing readers assigns and unassigns partitions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError, SourceUnavailable
from evenflow.sources.kafka.buffers import AssignedBuffers, PartitionBuffer
from evenflow.sources.kafka.client import (
    ALL_DOWN,
    REFUSED,
    Consumer,
    KafkaException,
    TopicPartition,
    logger,
    meaning_of,
    raised,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from evenflow.sources.kafka.buffers import Item
    from evenflow.sources.kafka.client import KafkaError, Message
    from evenflow.sources.kafka.options import KafkaOptions

LOOP_READ_EVENTS_MIN, THREAD_READ_EVENTS_MAX = 200, 20
"""A read with at least the first number of events moves reading to the event loop; one with fewer than the second moves
it back to the thread."""
LINGER_S = 0.005
"""Under load the thread waits this long for more: reading a few messages at a time costs more than it gains."""
POLL_S, IDLE_POLL_S = 0.025, 0.1
"""The longest that a request to the thread waits while no message comes, at first and after some idle time."""
REST_S = 0.1
CLOSE_S = 10.0


class SharedConsumer:
    """A consumer with its thread. Created and used on the event loop."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._config = {**options.for_reading(), "error_cb": self._on_driver_error}
        self.buffers: dict[int, PartitionBuffer] = {}
        """The partitions that have an open reader. `_assigned` follows once the thread has applied the change."""
        self.driver_error = ""
        """The driver's last error message, for errors that say why no message comes."""
        self._failure: EvenflowError | None = None
        self._assigned = AssignedBuffers(options)
        self._changes: deque[Callable[[Consumer], None]] = deque()
        self._wake_up = threading.Event()
        self._is_resting = False
        self._is_closing = False
        self._lent: Consumer | None = None
        """The consumer, while the event loop has it."""
        self._is_loop_read_due = False
        self._lingers = False
        self._poll_s = POLL_S
        self._returned = threading.Event()
        self._returned.set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="evenflow-kafka", daemon=True)
        self._thread.start()

    # --- on the event loop
    def open(self, number: int, offset: int) -> PartitionBuffer:
        buffer = self.buffers[number] = PartitionBuffer(number)
        position = TopicPartition(self._options.topic, number, offset)

        def assign(consumer: Consumer) -> None:
            self._assigned.by_number[number] = buffer
            consumer.incremental_assign([position])

        self._request(assign)
        return buffer

    def close(self, buffer: PartitionBuffer) -> None:
        if self.buffers.get(buffer.number) is buffer:
            del self.buffers[buffer.number]

            def unassign(consumer: Consumer) -> None:
                del self._assigned.by_number[buffer.number]
                consumer.incremental_unassign([TopicPartition(self._options.topic, buffer.number)])

            self._request(unassign)

    def count_taken(self, buffer: PartitionBuffer, events: int, size_bytes: int) -> None:
        """A reader took this much out of its buffer. Reading continues if the buffer now needs more."""
        buffer.taken_events += events
        buffer.taken_bytes += size_bytes
        if self._is_resting and self._assigned.needs_more(buffer):
            self._wake_up.set()
        elif self._lent is not None and self._assigned.needs_more(buffer):
            self._schedule_loop_read()

    def request_close(self) -> None:
        """Close soon, without waiting for it."""
        self._is_closing = True
        self._return_to_thread()

    async def aclose(self) -> None:
        """Returns when the consumer is closed, or after CLOSE_S."""
        self.request_close()
        await asyncio.wait([self._ended], timeout=CLOSE_S)

    def _request(self, change: Callable[[Consumer], None]) -> None:
        self._changes.append(change)
        self._return_to_thread()

    def _deliver(self, items: Iterable[tuple[PartitionBuffer, Item]]) -> None:
        for buffer, item in items:
            buffer.put(item)

    # --- on the event loop, under load
    def _borrow(self, consumer: Consumer, items: Iterable[tuple[PartitionBuffer, Item]]) -> None:
        self._lent = consumer
        self._deliver(items)
        if self._changes or self._is_closing:
            self._return_to_thread()
        else:
            self._schedule_loop_read()

    def _schedule_loop_read(self) -> None:
        if not self._is_loop_read_due:
            self._is_loop_read_due = True
            self._loop.call_soon(self._read_on_loop)

    def _read_on_loop(self) -> None:
        """Takes one batch from the driver's queue. Handlers run before the next batch."""
        self._is_loop_read_due = False
        consumer = self._lent
        if consumer is None or not self._assigned.any_needs_more():
            return  # `count_taken` schedules the next read
        try:
            messages = consumer.consume(self._assigned.read_events, 0)
        except Exception as error:
            self._fail(error)
            self._return_to_thread()
            return
        if messages:
            self._deliver(self._assigned.sort(messages))
        self._lingers = len(messages) < THREAD_READ_EVENTS_MAX
        if self._lingers or self._assigned.any_must_change():
            self._return_to_thread()
        else:
            self._schedule_loop_read()

    def _return_to_thread(self) -> None:
        """Gives the consumer back if the loop has it, and wakes the thread from any wait."""
        self._wake_up.set()
        if self._lent is not None:
            self._lent = None
            self._returned.set()

    # --- on the thread
    def _run(self) -> None:
        try:
            consumer = Consumer(self._config, logger=logger)
            try:
                while not self._is_closing:
                    self._step(consumer)
            finally:
                consumer.close()
        except Exception as error:
            self._failure = self._meaning(error)
        finally:
            self._call_on_loop(self._end)

    def _step(self, consumer: Consumer) -> None:
        self._returned.wait()
        if self._is_closing:
            return
        self._wake_up.clear()
        while self._changes:
            self._poll_s = POLL_S
            self._apply(consumer, self._changes.popleft())
        if not self._assigned:
            self._wake_up.wait()
            return
        self._assigned.pause_and_resume(consumer)
        if not self._assigned.any_needs_more():
            self._rest()
            return
        messages = self._read(consumer)
        if len(messages) >= LOOP_READ_EVENTS_MIN and not self._is_closing:
            self._returned.clear()
            self._call_on_loop(self._borrow, consumer, self._assigned.sort(messages))
        elif messages:
            self._call_on_loop(self._deliver, self._assigned.sort(messages))

    def _apply(self, consumer: Consumer, change: Callable[[Consumer], None]) -> None:
        try:
            change(consumer)
        except KafkaException as error:
            self._fail(error)

    def _rest(self) -> None:
        self._is_resting = True
        # Checked again: a reader may have taken events just before it could see that the thread rests.
        if not self._assigned.any_needs_more():
            self._wake_up.wait(REST_S)
        self._is_resting = False

    def _read(self, consumer: Consumer) -> list[Message]:
        """Everything available as soon as one message is; shortly after load, waits briefly for a larger batch."""
        if self._lingers:
            messages = consumer.consume(self._assigned.read_events, LINGER_S)
            self._lingers = len(messages) >= THREAD_READ_EVENTS_MAX
            if messages:
                return messages
        first = consumer.poll(self._poll_s)
        if first is None:
            self._poll_s = min(2 * self._poll_s, IDLE_POLL_S)
            return []
        self._poll_s = POLL_S
        return [first, *consumer.consume(self._assigned.read_events, 0)]

    def _on_driver_error(self, error: KafkaError) -> None:
        """The driver reports an error of no particular partition, and keeps running. The application's own `error_cb`
        is called, too."""
        if not self.driver_error or error.code() != ALL_DOWN:
            self.driver_error = error.str()  # "all brokers are down" is the least specific of its messages
        if error.code() in REFUSED:
            self._fail(KafkaException(error))
        listener = self._options.config.get("error_cb")
        if listener is not None:
            listener(error)

    def _fail(self, error: Exception) -> None:
        meaning = self._meaning(error)
        self._call_on_loop(self._deliver, [(buffer, meaning) for buffer in self._assigned.by_number.values()])

    def _meaning(self, error: Exception) -> EvenflowError:
        if isinstance(error, KafkaException):
            meaning = meaning_of(raised(error), str(self._options))
        else:
            meaning = SourceUnavailable(f"Reading {self._options} failed: {error!r}")
        meaning.__cause__ = error
        return meaning

    def _end(self) -> None:
        self._is_closing = True
        ended = SourceUnavailable(f"The consumer of {self._options} was closed. Open another reader.")
        for buffer in self.buffers.values():
            buffer.put(self._failure or ended)
        if not self._ended.done():
            self._ended.set_result(None)

    def _call_on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop is closed, so no reader is left.
            self._is_closing = True

    @property
    def is_closed(self) -> bool:
        return self._is_closing
