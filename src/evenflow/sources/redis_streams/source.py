"""Redis streams as a source: a stream is a partition.

    RedisStreamsSource(RedisStreamsServer("localhost"), "homes", partitions=16)       # the streams homes:0 ... homes:15

A position is an entry's id. Since Redis 7.0 the server counts entries, and a position also has the entry's number.
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
from evenflow.sources.redis_streams.client import RedisStreamsClient
from evenflow.sources.redis_streams.codec import EntryFields
from evenflow.sources.redis_streams.options import OPTIONS as OF_THE_SERVER
from evenflow.sources.redis_streams.options import RedisStreamsServer, parse, whole
from evenflow.sources.redis_streams.positions import TIME_MOST_MS, StreamPosition, id_of, parse_position
from evenflow.sources.redis_streams.reader import RedisStreamReader, StreamPoller, gone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start
    from evenflow.sources.redis_streams.positions import StreamState

__all__ = ["RedisStreamsServer", "RedisStreamsSource", "from_url"]

logger = logging.getLogger("evenflow.redis_streams")

TOKEN = "{partition}"
MARK = "evenflow-made:"
"""Prefix of an unused consumer group of the first stream. Its name distinguishes the stream from a recreated one."""
CHECK_STREAMS = 64
"""How many streams beyond the last known one are checked for existence."""
COUNT_BY = 10_000
OPTIONS = ("partitions", "stream", "namespace", "body_field", "key_field", "maxlen")


def from_url(url: str) -> RedisStreamsSource:
    """`redis-streams://[USER:PASSWORD@]HOST[:PORT]/NAME[?partitions=16&...]`; `rediss-streams://` with TLS."""
    address, name, given = parse(url)
    unknown = set(given) - set(OPTIONS)
    if unknown:
        known = ", ".join((*OPTIONS, *OF_THE_SERVER))
        raise Misconfigured(
            f"Unknown option in the URL of Redis streams: {', '.join(sorted(unknown))}. Its options are {known}."
        )
    numbers = {option: whole(option, given[option], 1) for option in ("partitions", "maxlen") if option in given}
    texts = {option: given[option] for option in ("stream", "namespace", "body_field", "key_field") if option in given}
    return RedisStreamsSource(address, name, **numbers, **texts)  # type: ignore[arg-type]


class RedisStreamsSource:
    def __init__(
        self,
        address: RedisStreamsServer,
        name: str,
        *,
        partitions: int | None = None,
        stream: str | None = None,
        namespace: str = "redis",
        body_field: str = "body",
        key_field: str = "key",
        maxlen: int | None = None,
    ) -> None:
        """`stream` contains {partition} in place of the partition's number. Without `partitions`, all streams up to the
        last existing one are read. When sending, each stream is trimmed to approximately `maxlen` entries.
        """
        template = stream or f"{name}:{TOKEN}"
        if template.count(TOKEN) != 1:
            raise Misconfigured(f"stream={template!r} must contain {TOKEN} once, for instance {name}:{TOKEN}.")
        for option, number in (("partitions", partitions), ("maxlen", maxlen)):
            if number is not None and number < 1:
                raise Misconfigured(f"{option}={number} is invalid: give a whole number of at least 1.")
        if not body_field or not key_field or body_field == key_field:
            raise Misconfigured(
                f"body_field={body_field!r} and key_field={key_field!r} are invalid: give two different field names."
            )
        self._client = RedisStreamsClient(address)
        self._name, self._template, self._namespace = name, template, namespace
        self._count = partitions
        self._is_beyond_logged = False
        self._fields = EntryFields(body_field, key_field)
        self._limit = () if maxlen is None else ("MAXLEN", "~", str(maxlen))
        self._pollers: dict[int, StreamPoller] = {}
        self._turns = count()

    def __repr__(self) -> str:
        return f"<RedisStreamsSource {self}>"

    def __str__(self) -> str:
        return f"{self._template} at {self._client.address}"

    # --- identity and partitions
    async def identity(self) -> Identity:
        await self._partition_count()
        try:
            made = await self._client.made(self._key("0"), MARK, secrets.token_hex(8))
        except Misconfigured as error:
            logger.debug("recreated streams cannot be detected: %s", error)
            await self._client.state([self._key("0")])  # raises if reading is not allowed, either
            made = ""
        return Identity(self._namespace, self._name, made)

    async def partitions(self) -> Sequence[Partition]:
        if self._pollers and self._count is not None and not self._is_beyond_logged:  # while it is read
            await self._warn_if_beyond(self._key(str(self._count)))
        return [Partition(str(number)) for number in range(await self._partition_count())]

    async def _warn_if_beyond(self, key: str) -> None:
        """Warns of a stream that is never read. Producers that use more partitions than given create one."""
        with suppress(Misconfigured):  # this user has no rights on that stream
            if (await self._client.exist([key]))[0]:
                self._is_beyond_logged = True
                logger.warning(
                    "the stream %s at %s exists, but is not read with partitions=%d. Check how many partitions the"
                    " producers use.",
                    key,
                    self._client.address,
                    self._count,
                )

    async def _partition_count(self) -> int:
        if self._count is not None:
            return self._count
        found = first = 0
        while True:
            block = range(first, first + CHECK_STREAMS)
            there = await self._client.exist([self._key(str(number)) for number in block])
            if not any(there):
                break
            found = max(number for number, exists in zip(block, there, strict=True) if exists) + 1
            first += CHECK_STREAMS
        if not found:
            raise Misconfigured(
                f"There is no stream {self._key('0')} at {self._client.address}, nor any after it. Correct the name;"
                " or, if nothing has been sent yet, set partitions=."
            )
        return found

    # --- starts
    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        key = self._key(partition)
        state = await self._state(key)
        if start == "earliest":
            return state.beginning.position
        if start == "latest":
            return state.end.position
        if isinstance(start, datetime):
            return (await self._at_time(key, state, start)).position
        if not isinstance(start, Position):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        place = await self._with_id(key, state, start)
        self._check(key, place, state)
        return place.position

    async def _at_time(self, key: str, state: StreamState, time: datetime) -> StreamPosition:
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        time_ms = max(0, math.ceil(round(time.timestamp() * 1_000_000) / 1000))
        if not (following := await self._client.ids(key, f"{time_ms}-0", str(state.last), 1)):
            return state.end
        before = await self._client.ids(key, f"({following[0]}", "-", 1, back=True)
        return (
            StreamPosition(id_of(before[0]))
            if before
            else StreamPosition(id_of(following[0]).before, state.beginning.count)
        )

    async def _with_id(self, key: str, state: StreamState, position: Position) -> StreamPosition:
        """The position with an id. If only its number is known, it is counted from the oldest entry."""
        if position.sequence is None or position.offset != str(position.sequence) or position.sequence < 0:
            return parse_position(position)
        if state.added is None:
            raise PositionOutOfRange(f"{self}: this server does not count entries. Give an entry's id, such as 17-0.")
        left = position.sequence - (state.added - state.length)
        if left < 0 or position.sequence >= state.added:
            ends = f"the oldest is entry {state.added - state.length}, the newest {state.added - 1}"
            raise PositionOutOfRange(f"Entry {position.sequence} of the stream {key} does not exist: {ends}.")
        start = "-"
        while True:
            ids = await self._client.ids(key, start, str(state.last), min(left + 1, COUNT_BY))
            if left < len(ids) or not ids:
                return StreamPosition(id_of(ids[left]) if ids else state.last, position.sequence + 1)
            left, start = left - len(ids), f"({ids[-1]}"

    def _check(self, key: str, after: StreamPosition, state: StreamState) -> None:
        if after.id > state.last:
            raise PositionOutOfRange(
                f"Position {after.id} is beyond the end of the stream {key} of {self}, which is {state.last}. Was it"
                " deleted and recreated, or has the server lost data?"
            )
        if state.is_removed(after):
            raise PositionGone(gone(key, after, state))

    # --- reading
    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        key = self._key(partition)
        state = await self._state(key)
        place = await self._with_id(key, state, after)
        self._check(key, place, state)
        poller = self._poller_for(key)
        return RedisStreamReader(poller, poller.open(key, place))

    def _poller_for(self, key: str) -> StreamPoller:
        slot = self._client.slot(key)
        if slot not in self._pollers:
            self._pollers[slot] = StreamPoller(self._client, self._fields)
        return self._pollers[slot]

    # --- bounds
    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        state = await self._client.state([self._key(partition) for partition in partitions])
        return {partition: state[self._key(partition)].bounds for partition in partitions}

    async def waiting_since(self, after: Mapping[PartitionId, Position]) -> Mapping[PartitionId, datetime]:
        keys = {self._key(partition): partition for partition in after}
        found = await self._client.following({key: str(parse_position(after[name]).id) for key, name in keys.items()})
        times_ms = {keys[key]: id_of(name).time_ms for key, name in found.items()}
        return {
            name: datetime.fromtimestamp(time_ms / 1000, UTC)
            for name, time_ms in times_ms.items()
            if time_ms <= TIME_MOST_MS  # ids chosen by a producer may not be times
        }

    # --- writing
    async def send(self, events: Sequence[Event], partition: PartitionId | None = None) -> None:
        """To the partitions of their keys, as in the embedded hub; events without a key round-robin."""
        total = await self._partition_count()
        names = [self._chosen(event, total) if partition is None else partition for event in events]
        entries = [(self._key(name), self._fields.fields_of(one)) for name, one in zip(names, events, strict=True)]
        if entries:
            await self._client.append(entries, self._limit)

    def _chosen(self, event: Event, total: int) -> PartitionId:
        return str(next(self._turns) % total if event.key is None else partition_of(event.key, total))

    async def aclose(self) -> None:
        for poller in self._pollers.values():
            await poller.aclose()
        self._pollers = {}
        await self._client.aclose()

    # --- inside
    async def _state(self, key: str) -> StreamState:
        return (await self._client.state([key]))[key]

    def _key(self, partition: PartitionId) -> str:
        if not partition.isdecimal():
            raise Misconfigured(f"{self} has no partition {partition!r}: its partitions are numbers from 0.")
        return self._template.replace(TOKEN, partition)
