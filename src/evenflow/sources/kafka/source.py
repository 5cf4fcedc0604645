"""A Kafka topic as a source. Leases decide which instance reads a partition; no Kafka group is joined.

    KafkaSource("localhost:9092", "homes", {"security.protocol": "SASL_SSL", ...})

A position is an offset. Offsets have gaps where a topic is compacted or holds transaction markers; readers skip them.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from evenflow.errors import EvenflowError, Misconfigured, PositionGone, PositionOutOfRange, SourceUnavailable
from evenflow.model import BEGINNING, Bounds, Identity, Partition, Position
from evenflow.sources.kafka.codec import LAST_US
from evenflow.sources.kafka.consumer import SharedConsumer
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.mirror import CheckpointMirror
from evenflow.sources.kafka.options import KafkaOptions, parse_url
from evenflow.sources.kafka.queries import PartitionEnds, TopicQueries
from evenflow.sources.kafka.reader import KafkaReader, position_at
from evenflow.sources.kafka.sender import KafkaSender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

WATCH_S = 2.0
"""How often the source checks, while reading, that the topic still exists and was not recreated."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that brokers without topic ids report."""
GROUP = "group:"
"""Prefix of a start: the offsets that this Kafka consumer group has committed."""


def from_url(url: str) -> KafkaSource:
    """`kafka://HOST:PORT[,HOST:PORT]/TOPIC[?OPTION=VALUE&...]`, with librdkafka's options by their own names."""
    return KafkaSource.of(parse_url(url))


class KafkaSource:
    def __init__(
        self,
        servers: str,
        topic: str,
        config: Mapping[str, Any] | None = None,
        *,
        mirror_group: str | None = None,
        key_encoding: str = "utf-8",
        namespace: str | None = None,
    ) -> None:
        """`config` is librdkafka's, as confluent-kafka takes it. Checkpoints are copied into the Kafka group
        `mirror_group`. `namespace` replaces the cluster's id in the store.
        """
        self._options = KafkaOptions(servers, topic, dict(config or {}), mirror_group, key_encoding, namespace)
        self._opened_queries: TopicQueries | None = None
        self._sender: KafkaSender | None = None
        self._consumers: list[SharedConsumer] = []
        self._namespace = namespace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._topic_id = ""
        self._topic_error: EvenflowError | None = None
        self._mirror: CheckpointMirror | None = None
        self._group_queries: dict[str, asyncio.Task[Mapping[int, int]]] = {}
        """Pending queries for the offsets of a Kafka group, by its name."""

    @classmethod
    def of(cls, options: KafkaOptions) -> KafkaSource:
        return cls(
            options.servers,
            options.topic,
            options.config,
            mirror_group=options.mirror_group,
            key_encoding=options.key_encoding,
            namespace=options.namespace,
        )

    def __repr__(self) -> str:
        return f"<KafkaSource {self._options}>"

    # --- identity and partitions
    async def identity(self) -> Identity:
        if self._namespace is None:
            self._namespace = await self._queries.cluster() or self._options.servers
        topic = await self._queries.topic()
        return Identity(self._namespace, self._options.topic, _topic_id(topic.topic_id))

    async def partitions(self) -> Sequence[Partition]:
        topic = await self._queries.topic_to("READ")
        return [Partition(str(number)) for number in sorted(one.id for one in topic.partitions)]

    # --- starts
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        number = self._number(partition)
        if isinstance(start, datetime):
            return await self._at_time(number, start)
        ends = await self._queries.ends_of(number)
        if start == "earliest":
            return position_at(ends.oldest - 1)
        if start == "latest":
            return position_at(ends.next - 1)
        if isinstance(start, str) and start.startswith(GROUP):
            return await self._committed_by(start.removeprefix(GROUP), number, ends)
        if not isinstance(start, Position):
            raise Misconfigured(
                f'start={start!r} is invalid: give "earliest", "latest", "group:NAME" of a Kafka group, a time or a'
                " position."
            )
        offset = _offset(start)
        await self._check(number, offset, ends)
        return position_at(offset)

    async def _at_time(self, number: int, time: datetime) -> Position:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        # The end is queried first, so that events which arrive in between are not skipped.
        ends = await self._queries.ends_of(number)
        offset = await self._queries.at_time(number, _since_ms(time))
        return position_at(ends.next - 1 if offset is None else offset - 1)

    async def _committed_by(self, group: str, number: int, ends: PartitionEnds) -> Position:
        committed = await self._all_committed_by(group)
        if not committed:
            raise Misconfigured(
                f"The Kafka group {group!r} has no committed offsets for {self._options}. Check its name with Kafka's"
                " own tools, or choose another start."
            )
        offset = committed.get(number, ends.oldest) - 1
        await self._check(number, offset, ends)
        return position_at(offset)

    async def _all_committed_by(self, group: str) -> Mapping[int, int]:
        """One query for all partitions: those of an instance start at about the same time."""
        self._check_loop()
        query = self._group_queries.get(group)
        if query is None:
            query = self._group_queries[group] = asyncio.create_task(self._query_committed_by(group))
            query.add_done_callback(lambda _: self._group_queries.pop(group, None))
        return await asyncio.shield(query)

    async def _query_committed_by(self, group: str) -> Mapping[int, int]:
        offsets = GroupOffsets(self._options, group)
        try:
            return await offsets.committed([int(one.id) for one in await self.partitions()])
        finally:
            offsets.close()

    async def _check(self, number: int, after: int, ends: PartitionEnds) -> None:
        kept = f"the oldest is {ends.oldest} and the newest {ends.next - 1}"
        if ends.next == ends.oldest:
            kept = f"it is empty, and the next event will be {ends.next}"
        if after < ends.oldest - 1:
            raise PositionGone(
                f"Events after {after} of partition {number} of {self._options} are no longer kept: {kept}."
                ' Start at "earliest" to continue with the events that are left.'
            )
        if after >= ends.next and await self._is_beyond(number, after):
            raise PositionOutOfRange(
                f"Position {after} is beyond the end of partition {number} of {self._options}: {kept}. Was the topic"
                " recreated?"
            )

    async def _is_beyond(self, number: int, after: int) -> bool:
        """Counts events of open transactions, since a reader of uncommitted events may have been there. Queries twice:
        a wrong answer would stop the partition, or repeat all of it."""
        return after >= await self._queries.written(number) and after >= await self._queries.written(number)

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        self._check_loop()
        number, offset = self._number(partition), _offset(after)
        await self._check(number, offset, await self._queries.ends_of(number))
        topic_id = (await self.identity()).made if not self._is_watching else self._topic_id
        # No await from here on: the watch ends by itself when it finds no reader.
        if not self._is_watching:
            self._topic_id, self._topic_error = topic_id, None
            self._watch = asyncio.create_task(self._watch_topic())
        consumer = self._consumer_for(number)
        buffer = consumer.open(number, offset + 1)
        encoding = self._options.key_encoding
        return KafkaReader(consumer, buffer, offset, encoding, lambda: self._topic_error, self._on_reader_closed)

    def _consumer_for(self, number: int) -> SharedConsumer:
        """One consumer serves all readers, unless a partition has two readers at the same time."""
        self._consumers = [consumer for consumer in self._consumers if not consumer.is_closed]
        for consumer in self._consumers:
            if number not in consumer.buffers:
                return consumer
        self._consumers.append(SharedConsumer(self._options))
        return self._consumers[-1]

    def _on_reader_closed(self, consumer: SharedConsumer) -> None:
        """Closes an additional consumer when its last reader is closed."""
        if not consumer.buffers and consumer in self._consumers[1:]:
            self._consumers.remove(consumer)
            consumer.request_close()

    # --- a topic that is deleted or recreated
    @property
    def _is_watching(self) -> bool:
        return self._watch is not None and not self._watch.done()

    async def _watch_topic(self) -> None:
        """Detects a recreated topic: the driver would silently continue in the new one."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._closing.wait()
            if self._closing.is_set() or not any(consumer.buffers for consumer in self._consumers):
                return
            if self._mirror is not None:
                self._mirror.repeat_if_due({number for consumer in self._consumers for number in consumer.buffers})
            try:
                topic_id = (await self.identity()).made
            except EvenflowError as error:
                self._topic_error = error
                continue
            self._topic_error = None
            if topic_id != self._topic_id:
                self._fail_all(f"{self._options} was deleted or recreated while it was being read. Open it again.")
                return

    def _fail_all(self, why: str) -> None:
        for consumer in self._consumers:
            for buffer in consumer.buffers.values():
                buffer.put(SourceUnavailable(why))

    # --- bounds
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        found = await self._queries.ends([self._number(partition) for partition in partitions])
        return {partition: _bounds(found.get(int(partition))) for partition in partitions}

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        wanted = {self._number(partition): _offset(place) + 1 for partition, place in after.items()}
        ends = await self._queries.ends(list(wanted))
        there = {number: max(at, ends[number].oldest) for number, at in wanted.items() if number in ends}
        waiting = {number: at for number, at in there.items() if at < ends[number].next}
        found = await self._queries.times_ms(waiting) if waiting else {}
        return {
            str(number): datetime.fromtimestamp(min(1000 * time_ms, LAST_US) / 1_000_000, UTC)
            for number, time_ms in found.items()
        }

    # --- writing
    async def send(self, events: Sequence[Event], partition: PartitionId | None = None) -> None:
        """To the partitions of their keys, as Java's producer maps them; or all to the given one."""
        if self._sender is None:
            self._sender = KafkaSender(self._options)
        await self._sender.send(events, None if partition is None else self._number(partition))

    async def check(self) -> None:
        """Checks, before anything is sent, that the topic exists and this user may write to it."""
        await self._queries.topic_to("WRITE")

    def committed(self, positions: Mapping[PartitionId, Position]) -> None:
        """Copies checkpoints that were written into the mirror group, whose lag Kafka's tools show."""
        group = self._options.mirror_group
        if group:
            self._check_loop()
            if self._mirror is None:
                self._mirror = CheckpointMirror(self._options, group)
            # A position without a sequence belongs to another source. It is skipped here; opening it raises.
            known = {int(name): place.sequence for name, place in positions.items() if name.isdecimal()}
            self._mirror.put({number: at + 1 for number, at in known.items() if at is not None})

    async def aclose(self) -> None:
        self._check_loop()
        if self._mirror is not None:
            await self._mirror.aclose()
            self._mirror = None
        self._closing.set()
        if self._watch is not None:
            self._watch.cancel()
        consumers, self._consumers = self._consumers, []
        await asyncio.gather(*(consumer.aclose() for consumer in consumers))
        if self._sender is not None:
            await self._sender.aclose()
        self._sender = self._opened_queries = None

    # --- inside
    def _check_loop(self) -> None:
        """Drops what belongs to an earlier event loop: it would wait forever for a loop that has ended."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            for consumer in self._consumers:
                consumer.request_close()
            if self._mirror is not None:
                self._mirror.abandon()
            self._consumers, self._group_queries = [], {}
            self._mirror = self._watch = self._topic_error = None
            self._closing = asyncio.Event()
        self._loop = loop

    @property
    def _queries(self) -> TopicQueries:
        if self._opened_queries is None:
            self._opened_queries = TopicQueries(self._options)
        return self._opened_queries

    def _number(self, partition: PartitionId) -> int:
        if not partition.isdecimal():
            raise Misconfigured(f"{self._options} has no partition {partition!r}: its partitions are numbers from 0.")
        return int(partition)


def _topic_id(topic_id: object) -> str:
    text = str(topic_id)
    return "" if text == NO_ID else text


def _since_ms(time: datetime) -> int:
    """Rounded up, and at least 0: Kafka gives negative timestamps special meanings, such as the end."""
    return max(0, math.ceil(round(time.timestamp() * 1_000_000) / 1000))


def _offset(position: Position) -> int:
    if position.sequence is not None:
        return position.sequence
    try:
        return int(position.offset)
    except ValueError:
        raise PositionOutOfRange(
            f"{position.offset!r} is not a Kafka offset (expected an integer). Was it stored by another source?"
        ) from None


def _bounds(ends: PartitionEnds | None) -> Bounds:
    if ends is None:
        return Bounds()
    newest = BEGINNING if ends.next == 0 else position_at(ends.next - 1)
    return Bounds(position_at(ends.oldest), newest)
