"""One consumer that reads all partitions of an instance, and brings what it read to their readers.

Whatever may wait is done on a thread: for the first message, for a partition more or one less. But where messages are
there already, in the driver's own queue, a thread has nothing to give: making Python objects of them holds the
interpreter anyway, and each change from thread to thread costs more than many messages do. So the consumer goes from
hand to hand. The thread waits; when much comes, it passes the consumer to the event loop, which takes some at a time,
without waiting, between the handlers; when there is little, or something else to do, it passes it back.

What readers want (a partition more, one less) is done between two reads, so that nothing of an earlier reading can be
taken for a later one's. Nothing is joined: partitions are assigned by whoever opens readers.

A partition whose reader is slow is paused alone, when much of it waits; that makes the driver forget what it has
fetched of it. When all have enough, nothing is read, and nothing is forgotten.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from evenflow.errors import EvenflowError, SourceUnavailable
from evenflow.sources.kafka.client import (
    ALL_DOWN,
    END,
    GONE,
    REFUSED,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
    logger,
    meaning_of,
    raised,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from evenflow.sources.kafka.client import KafkaError
    from evenflow.sources.kafka.options import Options

CHUNK_EVENTS, CHUNK_BYTES = 500, 128 * 1024
"""About: small enough that a read takes whole ones, since to cut one each message is looked at."""
READ_EVENTS = 500
READ_BYTES = 1024 * 1024
"""What one read brings at most, about: so long the event loop is held by it, some tenths of a millisecond.
Twice as many are slower: they no longer fit into the processor's own memory between the read and the handler."""
FLOW_EVENTS, EBB_EVENTS = 200, 20
"""From so many at once on, the loop reads; when it gets so few, the thread does."""
LINGER_S = 0.005
"""While much comes, so long the thread waits for more: a handful at a time would cost more than it brings."""
POLL_S, IDLE_POLL_S = 0.025, 0.1
"""How long what is asked of the thread waits at most while nothing comes; and when nothing has come for some time."""
REST_S = 0.1
CLOSE_S = 10.0
ENOUGH_EVENTS, MUCH_EVENTS = 500, 10_000
"""Of one partition: who has less is hungry, who has more is paused. More would not be read sooner, and the garbage
collector goes through all that wait again and again."""
ALL_BYTES = 32 * 1024 * 1024
LEAST_BYTES = 256 * 1024
"""The same in bytes: a share of what all partitions may have together, but not less than this."""

_error, _partition = Message.error, Message.partition


class Chunk(NamedTuple):
    """Messages of one partition, in order."""

    messages: list[Message]
    size_bytes: int


class Ended(NamedTuple):
    """There was nothing more before this offset."""

    next_offset: int


Item: TypeAlias = "Chunk | Ended | EvenflowError"


class Feed:
    """One partition on its way from the consumer to its reader. It ends with the reader.

    The counts are each written by one side alone: the thread brings, the loop takes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunks: deque[Chunk] = deque()
        self.end: int | None = None
        """The next offset there will be, when all that there was before it has been brought."""
        self.error: EvenflowError | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.brought_events = self.brought_bytes = 0
        self.taken_events = self.taken_bytes = 0
        self.is_paused = False

    def waits(self) -> tuple[int, int]:
        """How many events and bytes wait for the reader."""
        return self.brought_events - self.taken_events, self.brought_bytes - self.taken_bytes

    def arrived(self, item: Item) -> None:
        if isinstance(item, Chunk):
            self.chunks.append(item)
            self.end = None
        elif isinstance(item, Ended):
            self.end = item.next_offset
        else:
            self.error = item
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Lane:
    """A consumer with its thread. Made and used on the event loop."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._config = {**options.for_reading(), "error_cb": self._told}
        self.feeds: dict[int, Feed] = {}
        """As the loop sees it: what is open. The thread has its own, which follows."""
        self.said = ""
        """The driver's last complaint, for errors that say why nothing comes."""
        self._broke: EvenflowError | None = None
        self._fed: dict[int, Feed] = {}
        self._wishes: deque[Callable[[Consumer], None]] = deque()
        self._called = threading.Event()
        self._is_resting = False
        self._is_closing = False
        self._at_once = READ_EVENTS
        self._flowing: Consumer | None = None
        """The consumer, while the loop has it."""
        self._is_due = False
        self._lingers = False
        self._poll_s = POLL_S
        self._turn = threading.Event()
        self._turn.set()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._live, name="evenflow-kafka", daemon=True)
        self._thread.start()

    # --- on the event loop
    def open(self, number: int, offset: int) -> Feed:
        feed = self.feeds[number] = Feed(number)
        place = TopicPartition(self._options.topic, number, offset)

        def assign(consumer: Consumer) -> None:
            self._fed[number] = feed
            consumer.incremental_assign([place])

        self._ask(assign)
        return feed

    def close(self, feed: Feed) -> None:
        if self.feeds.get(feed.number) is feed:
            del self.feeds[feed.number]

            def unassign(consumer: Consumer) -> None:
                del self._fed[feed.number]
                consumer.incremental_unassign([TopicPartition(self._options.topic, feed.number)])

            self._ask(unassign)

    def took(self, feed: Feed, events: int, size_bytes: int) -> None:
        """A reader took so much."""
        feed.taken_events += events
        feed.taken_bytes += size_bytes
        if self._is_resting and self._is_hungry(feed):
            self._called.set()
        elif self._flowing is not None and self._is_hungry(feed):
            self._flow_soon()

    def leave(self) -> None:
        """End soon."""
        self._is_closing = True
        self._ebb()

    async def aclose(self) -> None:
        """Returns when the consumer is closed, or does not close in time."""
        self.leave()
        await asyncio.wait([self._ended], timeout=CLOSE_S)

    def _ask(self, wish: Callable[[Consumer], None]) -> None:
        self._wishes.append(wish)
        self._ebb()

    def _arrived(self, items: Iterable[tuple[Feed, Item]]) -> None:
        for feed, item in items:
            feed.arrived(item)

    # --- on the event loop, while much comes
    def _begin_flow(self, consumer: Consumer, items: Iterable[tuple[Feed, Item]]) -> None:
        self._flowing = consumer
        self._arrived(items)
        if self._wishes or self._is_closing:
            self._ebb()
        else:
            self._flow_soon()

    def _flow_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flow)

    def _flow(self) -> None:
        """Some messages of those that are there. Handlers have their turn before the next."""
        self._is_due = False
        consumer = self._flowing
        if consumer is None or not any(map(self._is_hungry, self._fed.values())):
            return  # `took` calls again
        try:
            messages = consumer.consume(self._at_once, 0)
        except Exception as error:
            self._fail(error)
            self._ebb()
            return
        if messages:
            self._arrived(self._sorted(messages))
        self._lingers = len(messages) < EBB_EVENTS
        if self._lingers or any(map(self._must_change, self._fed.values())):
            self._ebb()
        else:
            self._flow_soon()

    def _ebb(self) -> None:
        """The thread has its turn again, if it had not; and whatever it waits for, it looks."""
        self._called.set()
        if self._flowing is not None:
            self._flowing = None
            self._turn.set()

    # --- on the thread
    def _live(self) -> None:
        try:
            consumer = Consumer(self._config, logger=logger)
            try:
                while not self._is_closing:
                    self._step(consumer)
            finally:
                consumer.close()
        except Exception as error:
            self._broke = self._meaning(error)
        finally:
            self._on_loop(self._end)

    def _step(self, consumer: Consumer) -> None:
        self._turn.wait()
        if self._is_closing:
            return
        self._called.clear()
        while self._wishes:
            self._poll_s = POLL_S
            self._grant(consumer, self._wishes.popleft())
        if not self._fed:
            self._called.wait()
            return
        self._pause_and_resume(consumer)
        if not any(map(self._is_hungry, self._fed.values())):
            self._rest()
            return
        messages = self._read(consumer)
        if len(messages) >= FLOW_EVENTS and not self._is_closing:
            self._turn.clear()
            self._on_loop(self._begin_flow, consumer, self._sorted(messages))
        elif messages:
            self._on_loop(self._arrived, self._sorted(messages))

    def _grant(self, consumer: Consumer, wish: Callable[[Consumer], None]) -> None:
        try:
            wish(consumer)
        except KafkaException as error:
            self._fail(error)

    def _rest(self) -> None:
        self._is_resting = True
        # Looked at again, in case that somebody took something just before it could know that this rests.
        if not any(map(self._is_hungry, self._fed.values())):
            self._called.wait(REST_S)
        self._is_resting = False

    def _read(self, consumer: Consumer) -> list[Message]:
        """As soon as there is something, all that is there; but where much came just before, some at once."""
        if self._lingers:
            messages = consumer.consume(self._at_once, LINGER_S)
            self._lingers = len(messages) >= EBB_EVENTS
            if messages:
                return messages
        first = consumer.poll(self._poll_s)
        if first is None:
            self._poll_s = min(2 * self._poll_s, IDLE_POLL_S)
            return []
        self._poll_s = POLL_S
        return [first, *consumer.consume(self._at_once, 0)]

    def _sorted(self, messages: list[Message]) -> list[tuple[Feed, Item]]:
        items: list[tuple[Feed, Item]] = []
        for number, same in groupby(messages, _partition):
            feed = self._fed.get(number)  # type: ignore[arg-type]
            run = list(same)
            if feed is None:
                continue  # an error that is about no partition
            if any(map(_error, run)):
                items += [(feed, item) for item in self._with_errors(feed, run)]
            else:
                items += [(feed, chunk) for chunk in _chunks(feed, run)]
        self._measure(items)
        return items

    def _measure(self, items: list[tuple[Feed, Item]]) -> None:
        """So many messages as make a read of the size that it should have."""
        chunks = [item for _, item in items if isinstance(item, Chunk)]
        events = sum([len(chunk.messages) for chunk in chunks])
        if events:
            size_bytes = sum([chunk.size_bytes for chunk in chunks])
            self._at_once = max(16, min(READ_EVENTS, READ_BYTES * events // max(1, size_bytes)))

    def _with_errors(self, feed: Feed, run: list[Message]) -> list[Item]:
        items: list[Item] = []
        for failed, same in groupby(run, lambda message: message.error() is not None):
            messages = list(same)
            # What is not about a topic is about the Kafka group that the driver wants to be in, and never is.
            about_it = [message for message in messages if not failed or message.topic() is not None]
            items += [self._item(message) for message in about_it] if failed else _chunks(feed, messages)
        return items

    def _item(self, message: Message) -> Item:
        error, offset = message.error(), message.offset()
        assert error is not None
        if error.code() == END:
            assert offset is not None
            return Ended(offset)
        if error.code() in GONE:
            return meaning_of(error, f"partition {message.partition()} of {self._options} after {(offset or 0) - 1}")
        return meaning_of(error, f"partition {message.partition()} of {self._options}")

    def _pause_and_resume(self, consumer: Consumer) -> None:
        for feed in self._fed.values():
            if self._must_change(feed):
                change = consumer.resume if feed.is_paused else consumer.pause
                change([TopicPartition(self._options.topic, feed.number)])
                feed.is_paused = not feed.is_paused

    def _must_change(self, feed: Feed) -> bool:
        """Whether it is to be paused, or to be resumed."""
        return self._is_hungry(feed) if feed.is_paused else self._has_much(feed)

    def _is_hungry(self, feed: Feed) -> bool:
        events, size_bytes = feed.waits()
        return events < ENOUGH_EVENTS and size_bytes < self._share_bytes // 2

    def _has_much(self, feed: Feed) -> bool:
        events, size_bytes = feed.waits()
        return events > MUCH_EVENTS or size_bytes > self._share_bytes

    @property
    def _share_bytes(self) -> int:
        return max(LEAST_BYTES, ALL_BYTES // max(1, len(self._fed)))

    def _told(self, error: KafkaError) -> None:
        """The driver complains about no partition in particular; it goes on by itself. Who wants to hear it does."""
        if not self.said or error.code() != ALL_DOWN:
            self.said = error.str()  # of all that it says, that all brokers are down tells the least
        if error.code() in REFUSED:
            self._fail(KafkaException(error))
        listener = self._options.config.get("error_cb")
        if listener is not None:
            listener(error)

    def _fail(self, error: Exception) -> None:
        meaning = self._meaning(error)
        self._on_loop(self._arrived, [(feed, meaning) for feed in self._fed.values()])

    def _meaning(self, error: Exception) -> EvenflowError:
        if isinstance(error, KafkaException):
            meaning = meaning_of(raised(error), str(self._options))
        else:
            meaning = SourceUnavailable(f"The reading of {self._options} broke: {error!r}")
        meaning.__cause__ = error
        return meaning

    def _end(self) -> None:
        self._is_closing = True
        ended = SourceUnavailable(f"The reading of {self._options} has ended. Open another reader.")
        for feed in self.feeds.values():
            feed.arrived(self._broke or ended)
        if not self._ended.done():
            self._ended.set_result(None)

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop is closed: nobody reads any more.
            self._is_closing = True

    @property
    def is_over(self) -> bool:
        return self._is_closing


def _chunks(feed: Feed, messages: list[Message]) -> list[Chunk]:
    size_bytes = sum(map(len, messages))
    count = max(1, min(CHUNK_EVENTS, CHUNK_BYTES * len(messages) // max(1, size_bytes)))
    if len(messages) <= count:
        chunks = [Chunk(messages, size_bytes)]
    else:
        parts = [messages[at : at + count] for at in range(0, len(messages), count)]
        chunks = [Chunk(part, sum(map(len, part))) for part in parts]
    feed.brought_events += len(messages)
    feed.brought_bytes += size_bytes
    return chunks
