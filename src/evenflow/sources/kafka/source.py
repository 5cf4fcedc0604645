"""A Kafka topic as a source. Who reads which partition is decided by leases, never by a Kafka group.

    KafkaSource("localhost:9092", "homes", {"security.protocol": "SASL_SSL", ...})

A position is an offset. Offsets have gaps, where a topic is compacted or transactions wrote their marks; a reader's
positions go past them.
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
from evenflow.sources.kafka.consumer import Lane
from evenflow.sources.kafka.groups import GroupOffsets
from evenflow.sources.kafka.mirror import Mirror
from evenflow.sources.kafka.options import Options, from_text
from evenflow.sources.kafka.queries import Ends, Looks
from evenflow.sources.kafka.reader import KafkaReader, position_at
from evenflow.sources.kafka.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

WATCH_S = 2.0
"""How often it is looked whether the topic is still the same, and there at all, while it is read."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers say that know of no ids of topics."""
GROUP = "group:"
"""A start: where that Kafka consumer group stopped."""


def from_url(url: str) -> KafkaSource:
    """`kafka://HOST:PORT[,HOST:PORT]/TOPIC[?OPTION=VALUE&...]`, with librdkafka's options by their own names."""
    return KafkaSource.of(from_text(url))


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
        """`config` is librdkafka's, as confluent-kafka takes it. `mirror_group` gets a copy of all checkpoints.

        `namespace` names the cluster in the store, where its own id shall not.
        """
        self._options = Options(servers, topic, dict(config or {}), mirror_group, key_encoding, namespace)
        self._looks_made: Looks | None = None
        self._sender: Sender | None = None
        self._lanes: list[Lane] = []
        self._namespace = namespace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._made = ""
        self._trouble: EvenflowError | None = None
        self._mirror: Mirror | None = None
        self._asked: dict[str, asyncio.Task[Mapping[int, int]]] = {}
        """Questions that are under way: what a Kafka group left."""

    @classmethod
    def of(cls, options: Options) -> KafkaSource:
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

    # --- which it is
    async def identity(self) -> Identity:
        if self._namespace is None:
            self._namespace = await self._looks.cluster() or self._options.servers
        topic = await self._looks.topic()
        return Identity(self._namespace, self._options.topic, _made(topic.topic_id))

    async def partitions(self) -> Sequence[Partition]:
        topic = await self._looks.topic_to("READ")
        return [Partition(str(number)) for number in sorted(one.id for one in topic.partitions)]

    # --- where to begin
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        number = self._number(partition)
        if isinstance(start, datetime):
            return await self._at_time(number, start)
        ends = await self._looks.ends_of(number)
        if start == "earliest":
            return position_at(ends.oldest - 1)
        if start == "latest":
            return position_at(ends.next - 1)
        if isinstance(start, str) and start.startswith(GROUP):
            return await self._left_by(start.removeprefix(GROUP), number, ends)
        if not isinstance(start, Position):
            raise Misconfigured(
                f'A start is "earliest", "latest", "group:NAME" of a Kafka group, a time or a position, not {start!r}.'
            )
        offset = _offset(start)
        await self._check(number, offset, ends)
        return position_at(offset)

    async def _at_time(self, number: int, time: datetime) -> Position:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        # The end is looked up first: what arrives in between is then not passed over.
        ends = await self._looks.ends_of(number)
        offset = await self._looks.at_time(number, _since_ms(time))
        return position_at(ends.next - 1 if offset is None else offset - 1)

    async def _left_by(self, group: str, number: int, ends: Ends) -> Position:
        left = await self._all_left_by(group)
        if not left:
            raise Misconfigured(
                f"The Kafka group {group!r} has left no offsets for {self._options}. See its name with Kafka's own"
                " tools, or begin elsewhere."
            )
        offset = left.get(number, ends.oldest) - 1
        await self._check(number, offset, ends)
        return position_at(offset)

    async def _all_left_by(self, group: str) -> Mapping[int, int]:
        """All partitions of an instance begin at about the same time: who comes while it is asked waits, too."""
        self._be_here()
        asked = self._asked.get(group)
        if asked is None:
            asked = self._asked[group] = asyncio.create_task(self._ask_left_by(group))
            asked.add_done_callback(lambda _: self._asked.pop(group, None))
        return await asyncio.shield(asked)

    async def _ask_left_by(self, group: str) -> Mapping[int, int]:
        offsets = GroupOffsets(self._options, group)
        try:
            return await offsets.left([int(one.id) for one in await self.partitions()])
        finally:
            offsets.close()

    async def _check(self, number: int, after: int, ends: Ends) -> None:
        kept = f"the oldest is {ends.oldest} and the newest {ends.next - 1}"
        if ends.next == ends.oldest:
            kept = f"it is empty, the next to come {ends.next}"
        if after < ends.oldest - 1:
            raise PositionGone(
                f"Events after {after} of partition {number} of {self._options} are no longer kept: {kept}. Begin at"
                ' "earliest" to go on with what is left.'
            )
        if after >= ends.next and await self._is_beyond(number, after):
            raise PositionOutOfRange(
                f"Position {after} is beyond the end of partition {number} of {self._options}: {kept}."
            )

    async def _is_beyond(self, number: int, after: int) -> bool:
        """What open transactions have written counts: who reads that too may have been there. And it takes two looks:
        to believe this wrongly would halt the partition, or repeat all of it."""
        return after >= await self._looks.written(number) and after >= await self._looks.written(number)

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        self._be_here()
        number, offset = self._number(partition), _offset(after)
        await self._check(number, offset, await self._looks.ends_of(number))
        made = (await self.identity()).made if not self._is_watching else self._made
        # From here on nothing is awaited: the watch ends by itself when it finds no reader.
        if not self._is_watching:
            self._made, self._trouble = made, None
            self._watch = asyncio.create_task(self._watch_topic())
        lane = self._lane_for(number)
        feed = lane.open(number, offset + 1)
        return KafkaReader(lane, feed, offset, self._options.key_encoding, lambda: self._trouble, self._left)

    def _lane_for(self, number: int) -> Lane:
        """There is one, but for who reads a partition twice at the same time."""
        self._lanes = [lane for lane in self._lanes if not lane.is_over]
        for lane in self._lanes:
            if number not in lane.feeds:
                return lane
        self._lanes.append(Lane(self._options))
        return self._lanes[-1]

    def _left(self, lane: Lane) -> None:
        """A reader was closed. A lane that nobody needs is closed when another one is there."""
        if not lane.feeds and lane in self._lanes[1:]:
            self._lanes.remove(lane)
            lane.leave()

    # --- a topic that goes away
    @property
    def _is_watching(self) -> bool:
        return self._watch is not None and not self._watch.done()

    async def _watch_topic(self) -> None:
        """The driver reads on in a topic that was deleted and made again, as if nothing had been."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._closing.wait()
            if self._closing.is_set() or not any(lane.feeds for lane in self._lanes):
                return
            if self._mirror is not None:
                self._mirror.put_again({number for lane in self._lanes for number in lane.feeds})
            try:
                made = (await self.identity()).made
            except EvenflowError as error:
                self._trouble = error
                continue
            self._trouble = None
            if made != self._made:
                self._fail_all(f"{self._options} was deleted, or made again, while it was read. Open it again.")
                return

    def _fail_all(self, why: str) -> None:
        for lane in self._lanes:
            for feed in lane.feeds.values():
                feed.arrived(SourceUnavailable(why))

    # --- what there is
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        found = await self._looks.ends([self._number(partition) for partition in partitions])
        return {partition: _bounds(found.get(int(partition))) for partition in partitions}

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        wanted = {self._number(partition): _offset(place) + 1 for partition, place in after.items()}
        ends = await self._looks.ends(list(wanted))
        there = {number: max(at, ends[number].oldest) for number, at in wanted.items() if number in ends}
        waiting = {number: at for number, at in there.items() if at < ends[number].next}
        found = await self._looks.times_ms(waiting) if waiting else {}
        return {
            str(number): datetime.fromtimestamp(min(1000 * time_ms, LAST_US) / 1_000_000, UTC)
            for number, time_ms in found.items()
        }

    # --- writing
    async def send(self, events: Sequence[Event], partition: PartitionId | None = None) -> None:
        """Into the partitions of their keys, as Java's producers put them; or all into one."""
        if self._sender is None:
            self._sender = Sender(self._options)
        await self._sender.send(events, None if partition is None else self._number(partition))

    async def check(self) -> None:
        """Before anything is sent: is it there, and may we?"""
        await self._looks.topic_to("WRITE")

    def committed(self, positions: Mapping[PartitionId, Position]) -> None:
        """Checkpoints were written: those tools of Kafka that show the lag of a group are told."""
        group = self._options.mirror_group
        if group:
            self._be_here()
            if self._mirror is None:
                self._mirror = Mirror(self._options, group)
            # One without a sequence was another source's: nothing of it can be shown, and opening it tells so.
            known = {int(name): place.sequence for name, place in positions.items() if name.isdecimal()}
            self._mirror.put({number: at + 1 for number, at in known.items() if at is not None})

    async def aclose(self) -> None:
        self._be_here()
        if self._mirror is not None:
            await self._mirror.aclose()
            self._mirror = None
        self._closing.set()
        if self._watch is not None:
            self._watch.cancel()
        lanes, self._lanes = self._lanes, []
        await asyncio.gather(*(lane.aclose() for lane in lanes))
        if self._sender is not None:
            await self._sender.aclose()
        self._sender = self._looks_made = None

    # --- inside
    def _be_here(self) -> None:
        """What was made in another event loop, which is over, would wait for it for ever: begin anew."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            for lane in self._lanes:
                lane.leave()
            if self._mirror is not None:
                self._mirror.leave()
            self._lanes, self._asked, self._mirror, self._watch, self._trouble = [], {}, None, None, None
            self._closing = asyncio.Event()
        self._loop = loop

    @property
    def _looks(self) -> Looks:
        if self._looks_made is None:
            self._looks_made = Looks(self._options)
        return self._looks_made

    def _number(self, partition: PartitionId) -> int:
        if not partition.isdecimal():
            raise Misconfigured(f"{self._options} has no partition {partition!r}: its partitions are numbers from 0.")
        return int(partition)


def _made(topic_id: object) -> str:
    made = str(topic_id)
    return "" if made == NO_ID else made


def _since_ms(time: datetime) -> int:
    """Rounded up. Not less than 0: numbers below have a meaning of their own, such as the end."""
    return max(0, math.ceil(round(time.timestamp() * 1_000_000) / 1000))


def _offset(position: Position) -> int:
    if position.sequence is not None:
        return position.sequence
    try:
        return int(position.offset)
    except ValueError:
        raise PositionOutOfRange(
            f"The offset {position.offset!r} is none of Kafka's, which are whole numbers. Was it another source's?"
        ) from None


def _bounds(ends: Ends | None) -> Bounds:
    if ends is None:
        return Bounds()
    newest = BEGINNING if ends.next == 0 else position_at(ends.next - 1)
    return Bounds(position_at(ends.oldest), newest)
