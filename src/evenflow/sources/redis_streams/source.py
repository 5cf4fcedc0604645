"""Redis streams as a source: a stream is a partition.

    RedisStreamsSource(Address("localhost"), "homes", partitions=16)       # the streams homes:0 ... homes:15

A position is an entry's id. From Redis 7.0 on the server counts entries, and a position has its number, too.
"""

from __future__ import annotations

import logging
import math
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from evenflow.embedded.hub.keys import partition_of
from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.model import Bounds, Identity, Partition, Position
from evenflow.sources.redis_streams.client import Link
from evenflow.sources.redis_streams.codec import Fields
from evenflow.sources.redis_streams.options import OPTIONS as OF_THE_SERVER
from evenflow.sources.redis_streams.options import Address, parse, whole
from evenflow.sources.redis_streams.positions import TIME_MOST_MS, Place, id_of, place_of
from evenflow.sources.redis_streams.reader import Lane, RedisStreamReader, gone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start
    from evenflow.sources.redis_streams.positions import Facts

__all__ = ["Address", "RedisStreamsSource", "from_url"]

logger = logging.getLogger("evenflow.redis_streams")

TOKEN = "{partition}"
MARK = "evenflow-made:"
"""A consumer group of the first stream that nobody reads in. Its name tells one making of the stream from the next."""
LOOK_FOR = 64
"""So many streams beyond the last one are looked for."""
COUNT_BY = 10_000
OPTIONS = ("partitions", "stream", "namespace", "body_field", "key_field", "maxlen")


def from_url(url: str) -> RedisStreamsSource:
    """`redis-streams://[USER:PASSWORD@]HOST[:PORT]/NAME[?partitions=16&...]`; `rediss-streams://` with TLS."""
    address, name, given = parse(url)
    unknown = set(given) - set(OPTIONS)
    if unknown:
        known = ", ".join((*OPTIONS, *OF_THE_SERVER))
        raise Misconfigured(f"The URL of Redis streams knows {known}, not {', '.join(sorted(unknown))}.")
    numbers = {option: whole(option, given[option], 1) for option in ("partitions", "maxlen") if option in given}
    texts = {option: given[option] for option in ("stream", "namespace", "body_field", "key_field") if option in given}
    return RedisStreamsSource(address, name, **numbers, **texts)  # type: ignore[arg-type]


class RedisStreamsSource:
    def __init__(
        self,
        address: Address,
        name: str,
        *,
        partitions: int | None = None,
        stream: str | None = None,
        namespace: str = "redis",
        body_field: str = "body",
        key_field: str = "key",
        maxlen: int | None = None,
    ) -> None:
        """`stream` has {partition} where its number is. Without `partitions` they are those up to the last that exists.

        `maxlen` is for sending: about so many entries are kept of a stream.
        """
        template = stream or f"{name}:{TOKEN}"
        if template.count(TOKEN) != 1:
            raise Misconfigured(f"stream={template!r}: write {TOKEN} once, where the partition is: {name}:{TOKEN}.")
        for option, number in (("partitions", partitions), ("maxlen", maxlen)):
            if number is not None and number < 1:
                raise Misconfigured(f"{option}={number}: give a whole number of at least 1.")
        if not body_field or not key_field or body_field == key_field:
            raise Misconfigured(f"body_field={body_field!r}, key_field={key_field!r}: give two names of fields.")
        self._link = Link(address)
        self._name, self._template, self._namespace = name, template, namespace
        self._count = partitions
        self._is_beyond_told = False
        self._fields = Fields(body_field, key_field)
        self._limit = () if maxlen is None else ("MAXLEN", "~", str(maxlen))
        self._lanes: dict[int, Lane] = {}
        self._turns = count()

    def __repr__(self) -> str:
        return f"<RedisStreamsSource {self}>"

    def __str__(self) -> str:
        return f"{self._template} at {self._link.address}"

    # --- which it is
    async def identity(self) -> Identity:
        await self._partition_count()
        try:
            made = await self._link.made(self._key("0"), MARK, secrets.token_hex(8))
        except Misconfigured as error:
            logger.debug("streams that are made again will not be known as such: %s", error)
            await self._link.facts([self._key("0")])  # who may not read either is told so
            made = ""
        return Identity(self._namespace, self._name, made)

    async def partitions(self) -> Sequence[Partition]:
        if self._lanes and self._count is not None and not self._is_beyond_told:  # while it is read
            await self._look_beyond(self._key(str(self._count)))
        return [Partition(str(number)) for number in range(await self._partition_count())]

    async def _look_beyond(self, key: str) -> None:
        """A stream that nobody reads is easily made: by producers that know of more partitions than were given."""
        with suppress(Misconfigured):  # who may not see it has no part in it
            if (await self._link.exist([key]))[0]:
                self._is_beyond_told = True
                logger.warning(
                    "there is a stream %s at %s, which nobody reads with partitions=%d. See how many are written.",
                    key,
                    self._link.address,
                    self._count,
                )

    async def _partition_count(self) -> int:
        if self._count is not None:
            return self._count
        found = first = 0
        while True:
            block = range(first, first + LOOK_FOR)
            there = await self._link.exist([self._key(str(number)) for number in block])
            if not any(there):
                break
            found = max(number for number, exists in zip(block, there, strict=True) if exists) + 1
            first += LOOK_FOR
        if not found:
            raise Misconfigured(
                f"There is no stream {self._key('0')} at {self._link.address}, nor any after it. Correct the name; or"
                " give partitions=, where nothing has been sent yet."
            )
        return found

    # --- where to begin
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        key = self._key(partition)
        facts = await self._facts(key)
        if start == "earliest":
            return facts.beginning.position
        if start == "latest":
            return facts.end.position
        if isinstance(start, datetime):
            return (await self._at_time(key, facts, start)).position
        if not isinstance(start, Position):
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        place = await self._place(key, facts, start)
        self._check(key, place, facts)
        return place.position

    async def _at_time(self, key: str, facts: Facts, time: datetime) -> Place:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        time_ms = max(0, math.ceil(round(time.timestamp() * 1_000_000) / 1000))
        if not (following := await self._link.ids(key, f"{time_ms}-0", str(facts.last), 1)):
            return facts.end
        before = await self._link.ids(key, f"({following[0]}", "-", 1, back=True)
        return Place(id_of(before[0])) if before else Place(id_of(following[0]).before, facts.beginning.count)

    async def _place(self, key: str, facts: Facts, position: Position) -> Place:
        """One that was only counted is looked for, from the oldest on."""
        if position.sequence is None or position.offset != str(position.sequence) or position.sequence < 0:
            return place_of(position)
        if facts.added is None:
            raise PositionOutOfRange(f"{self}: this server does not count entries. Give the id of one, such as 17-0.")
        left = position.sequence - (facts.added - facts.length)
        if left < 0 or position.sequence >= facts.added:
            ends = f"the oldest is entry {facts.added - facts.length}, the newest {facts.added - 1}"
            raise PositionOutOfRange(f"Entry {position.sequence} of the stream {key} is not there: {ends}.")
        start = "-"
        while True:
            ids = await self._link.ids(key, start, str(facts.last), min(left + 1, COUNT_BY))
            if left < len(ids) or not ids:
                return Place(id_of(ids[left]) if ids else facts.last, position.sequence + 1)
            left, start = left - len(ids), f"({ids[-1]}"

    def _check(self, key: str, after: Place, facts: Facts) -> None:
        if after.id > facts.last:
            raise PositionOutOfRange(
                f"Position {after.id} is beyond the end of the stream {key} of {self}, which is {facts.last}. Was it"
                " deleted and made again, or has the server lost what it had?"
            )
        if facts.is_gone(after):
            raise PositionGone(gone(key, after, facts))

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        key = self._key(partition)
        facts = await self._facts(key)
        place = await self._place(key, facts, after)
        self._check(key, place, facts)
        lane = self._lane_for(key)
        return RedisStreamReader(lane, lane.open(key, place))

    def _lane_for(self, key: str) -> Lane:
        slot = self._link.slot(key)
        if slot not in self._lanes:
            self._lanes[slot] = Lane(self._link, self._fields)
        return self._lanes[slot]

    # --- what there is
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        facts = await self._link.facts([self._key(partition) for partition in partitions])
        return {partition: facts[self._key(partition)].bounds for partition in partitions}

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        keys = {self._key(partition): partition for partition in after}
        found = await self._link.following({key: str(place_of(after[name]).id) for key, name in keys.items()})
        times_ms = {keys[key]: id_of(name).time_ms for key, name in found.items()}
        return {
            name: datetime.fromtimestamp(time_ms / 1000, UTC)
            for name, time_ms in times_ms.items()
            if time_ms <= TIME_MOST_MS  # others have ids that are no times
        }

    # --- writing
    async def send(self, events: Sequence[Event], partition: PartitionId | None = None) -> None:
        """Into the partitions of their keys, as the embedded hub puts them; those without a key in turn."""
        total = await self._partition_count()
        names = [self._chosen(event, total) if partition is None else partition for event in events]
        entries = [(self._key(name), self._fields.fields_of(one)) for name, one in zip(names, events, strict=True)]
        if entries:
            await self._link.append(entries, self._limit)

    def _chosen(self, event: Event, total: int) -> PartitionId:
        return str(next(self._turns) % total if event.key is None else partition_of(event.key, total))

    async def aclose(self) -> None:
        for lane in self._lanes.values():
            await lane.aclose()
        self._lanes = {}
        await self._link.aclose()

    # --- inside
    async def _facts(self, key: str) -> Facts:
        return (await self._link.facts([key]))[key]

    def _key(self, partition: PartitionId) -> str:
        if not partition.isdecimal():
            raise Misconfigured(f"{self} has no partition {partition!r}: its partitions are numbers from 0.")
        return self._template.replace(TOKEN, partition)
