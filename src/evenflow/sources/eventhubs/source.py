"""Azure Event Hubs as a source, through the official client: one receiver for each partition.

A receiver's owner level is the lease's epoch. So the service itself disconnects the receiver of an older owner, whose
reader raises LeaseLost. The consumer group is the processor's group unless another one is named. Owner levels are
compared inside a consumer group, so two groups of ours in the same consumer group would disconnect each other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from evenflow.errors import (
    Corrupt,
    EvenflowError,
    LeaseLost,
    Misconfigured,
    PositionGone,
    PositionOutOfRange,
    SourceUnavailable,
)
from evenflow.model import Bounds, Identity, Partition, Position
from evenflow.sources.eventhubs.codec import annotated_event_of, event_of
from evenflow.sources.eventhubs.errors import meaning
from evenflow.sources.eventhubs.options import DEFAULT_GROUP, PREFETCH, SCHEME, EventHubsAccess, arguments_of
from evenflow.sources.eventhubs.reader import EventHubsReader, PartitionProperties, ReaderContext, StolenLinks
from evenflow.sources.eventhubs.sender import EventHubsSender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

PEEK_S = 10.0
"""How long reading a single event may take."""
BEFORE_ALL = "-1"
"""The offset before the first event, for the service and for all official clients."""
COUNTED = "#"
"""Prefix of a sequence in place of an unknown offset: `#1234`."""


def from_url(url: str) -> EventHubsSource:
    return EventHubsSource(**arguments_of(url))


class EventHubsSource:
    """Reads and writes an event hub. Keywords in `client` are passed to the official client."""

    def __init__(
        self,
        namespace: str | None = None,
        hub: str | None = None,
        *,
        connection_string: str | None = None,
        credential: Any = None,
        consumer_group: str | None = None,
        prefetch: int = PREFETCH,
        annotated: bool = False,
        **client: Any,
    ) -> None:
        """With `annotated`, events are AnnotatedEvents, which keep the original message."""
        if not isinstance(prefetch, int) or prefetch < 1:
            raise Misconfigured(f"eventhubs: prefetch={prefetch!r} is invalid: give a whole number of at least 1.")
        access = EventHubsAccess(
            namespace, hub, connection_string=connection_string, credential=credential, options=client
        )
        self._connections = EventHubsConnections(access)
        self._named_group, self._group, self._is_joined = consumer_group, consumer_group or DEFAULT_GROUP, False
        self._prefetch = prefetch
        self._track = False
        self._times: dict[tuple[PartitionId, datetime], Position] = {}
        self._event_of = annotated_event_of if annotated else event_of

    def of_group(self, name: str) -> EventHubsSource:
        """The same hub, read in this consumer group over the same connections."""
        joined = object.__new__(EventHubsSource)
        joined.__dict__.update(self.__dict__)
        joined._group, joined._is_joined = self._named_group or name, True
        return joined

    async def identity(self) -> Identity:
        return await self._connections.identity(self._group)

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(name) for name in await self._connections.partitions(self._group)]

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        properties = await self._properties(partition)
        if start == "earliest":
            return Position(BEFORE_ALL, properties.first - 1)
        if start == "latest":
            return Position(properties.last_offset, properties.last)
        if isinstance(start, datetime):
            return await self._before(partition, start, properties)
        if not isinstance(start, Position):
            raise Misconfigured(f'start={start!r} is invalid: give "earliest", "latest", a time or a position.')
        return await self._checked(partition, start, properties)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        owner_level = self.owner_level(epoch)

        def link(position: Position, arrived: Callable[[Any], None]) -> Any:
            return self._connections.link(
                self._group,
                partition,
                start_of(position),
                owner_level=owner_level,
                prefetch=self._prefetch,
                track=self._track,
                arrived=arrived,
            )

        context = ReaderContext(
            where=self._connections.where(partition),
            group=self._group,
            partition=partition,
            prefetch=self._prefetch,
            link=link,
            properties=self._properties,
            made=self._created,
            event_of=self._event_of,
            stolen_links=self._connections.stolen_links,
        )
        reader = EventHubsReader(context, after)
        self._connections.readers[reader.task] = reader
        reader.task.add_done_callback(self._connections.readers.pop)
        return await reader.opened()

    def owner_level(self, epoch: int) -> int | None:
        """None disconnects no other receiver. It is used without a group, for instance to read dead letters."""
        return epoch if epoch or self._is_joined else None

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        """Queries all at once. The properties that readers receive with events lack the oldest sequence."""
        # With return_exceptions, no query is left running when one fails.
        asked = await asyncio.gather(*map(self._properties, partitions), return_exceptions=True)
        found: dict[PartitionId, Bounds] = {}
        for name, properties in zip(partitions, asked, strict=True):
            if isinstance(properties, BaseException):
                raise properties
            found[name] = _bounds(properties)
        return found

    async def send(self, events: Sequence[Event]) -> None:
        await self._connections.sender().send(events)

    async def aclose(self) -> None:
        """Closes the connections, unless this source shares those of another one (see `of_group`)."""
        if not self._is_joined:
            await self._connections.aclose()

    def __repr__(self) -> str:
        return f"<EventHubsSource {self._connections.url()} as {self._group!r}>"

    # --- positions
    async def _properties(self, partition: PartitionId) -> PartitionProperties:
        return await self._connections.partition(self._group, partition)

    async def _created(self) -> str:
        return (await self.identity()).made

    async def _before(self, partition: PartitionId, time: datetime, properties: PartitionProperties) -> Position:
        """The position before the first event enqueued at or after the time. The service's times have milliseconds."""
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        time = time.astimezone(UTC) + timedelta(microseconds=-time.microsecond % 1000)
        if properties.last < properties.first or properties.last_at < time:
            return Position(properties.last_offset, properties.last)
        if (partition, time) not in self._times:
            found = await self._peek(partition, time)
            assert found.sequence is not None
            self._times[partition, time] = await self._at(partition, found.sequence - 1, properties)
        return self._times[partition, time]

    async def _checked(self, partition: PartitionId, position: Position, properties: PartitionProperties) -> Position:
        """The position itself if it has an offset and a sequence; otherwise the missing part is looked up."""
        sequence, offset = position.sequence, position.offset
        if sequence is None and offset.startswith(COUNTED) and offset[1:].isdecimal():
            sequence = int(offset[1:])
        if sequence is None:
            return await self._with_offset(partition, offset, properties)
        properties.check(self._connections.where(partition), Position(offset, sequence))
        is_counted = offset in (str(sequence), f"{COUNTED}{sequence}")
        return await self._at(partition, sequence, properties) if is_counted else position

    async def _with_offset(self, partition: PartitionId, offset: str, properties: PartitionProperties) -> Position:
        if offset == BEFORE_ALL:
            return Position(BEFORE_ALL, properties.first - 1)
        if offset == properties.last_offset:
            return Position(offset, properties.last)
        found: Position | None = None
        if properties.last >= properties.first:
            with suppress(PositionOutOfRange):
                found = (await self._peek(partition, offset)).position
        if found is not None and found.offset == offset:
            return found
        kind = PositionOutOfRange if found is None else PositionGone
        raise kind(
            f"{self._connections.where(partition)}: no event has the offset {offset!r}. For the event with a sequence"
            f" number, write {COUNTED}NUMBER."
        )

    async def _at(self, partition: PartitionId, sequence: int, properties: PartitionProperties) -> Position:
        """The position of this event, with the offset that official clients use."""
        if sequence < properties.first:
            return Position(BEFORE_ALL, sequence)
        if sequence == properties.last:
            return Position(properties.last_offset, sequence)
        with suppress(Corrupt):  # an event that cannot be decoded can still be a position
            found = (await self._peek(partition, sequence)).position
            if found.sequence == sequence:
                return found
        return Position(f"{COUNTED}{sequence}", sequence)

    async def _peek(self, partition: PartitionId, at: int | str | datetime) -> Event:
        """The first event at or after a position, read without an owner level, which disconnects no other receiver.

        While a receiver with an owner level is connected, the service rejects receivers without one in that consumer
        group, so this tries the default consumer group as well.
        """
        refusal: EvenflowError | None = None
        for group in dict.fromkeys((self._group, DEFAULT_GROUP)):
            try:
                return await self._connections.peek(group, partition, at)
            except (LeaseLost, Misconfigured) as error:
                refusal = refusal or error
        raise SourceUnavailable(
            f"{self._connections.where(partition)}: events cannot be looked up while receivers with an owner level read"
            f" all consumer groups that were tried ({self._group}, {DEFAULT_GROUP}). Start at 'earliest', 'latest' or"
            " a position with an offset and a sequence, or stop the group first."
        ) from refusal


class EventHubsConnections:
    """What all readers of one hub share: the credential, the management connection, the sender."""

    def __init__(self, access: EventHubsAccess) -> None:
        self._access = access
        self._clients: dict[str, Any] = {}
        self._client: Any = None
        self._sender: EventHubsSender | None = None
        self.readers: dict[asyncio.Task[None], EventHubsReader] = {}
        """The readers that have a link or are opening one."""
        self.stolen_links = StolenLinks()
        self._client = self.client(DEFAULT_GROUP)  # created now so that a wrong setting is reported at once

    def client(self, group: str) -> Any:
        if group not in self._clients:
            self._clients[group] = self._access.consumer(group)
        return self._clients[group]

    def url(self) -> str:
        return f"{SCHEME}{self._client.namespace}/{self._client.eventhub_name}"

    def where(self, partition: PartitionId | None = None) -> str:
        of_partition = "" if partition is None else f", partition {partition}"
        return f"event hub {self._client.eventhub_name} at {self._client.namespace}{of_partition}"

    async def identity(self, group: str) -> Identity:
        properties = await self._hub(group)
        made: datetime = properties["created_at"]
        return Identity(self._client.namespace, properties["eventhub_name"], made.isoformat(timespec="milliseconds"))

    async def partitions(self, group: str) -> Sequence[PartitionId]:
        found: list[str] = (await self._hub(group))["partition_ids"]
        return found

    async def partition(self, group: str, name: PartitionId) -> PartitionProperties:
        found = await self._request(group, name, lambda: self._client.get_partition_properties(name))
        last = found["last_enqueued_sequence_number"]
        first = last + 1 if found["is_empty"] else found["beginning_sequence_number"]
        return PartitionProperties(first, last, found["last_enqueued_offset"], found["last_enqueued_time_utc"])

    def link(
        self,
        group: str,
        partition: PartitionId,
        at: int | str | datetime,
        **options: Any,
    ) -> Any:
        from evenflow.sources.eventhubs.client import ReceiveLink

        return ReceiveLink(self.client(group), group, partition, after=at, **options)

    async def peek(self, group: str, partition: PartitionId, at: int | str | datetime) -> Event:
        came: list[Any] = []
        link = self.link(group, partition, at, owner_level=None, prefetch=1, arrived=came.append, inclusive=True)
        try:
            async with asyncio.timeout(PEEK_S):
                await link.attach()
                while not came:
                    await link.work()
        except Exception as error:
            raise meaning(error, self.where(partition), group) from error
        finally:
            await link.close()
        return event_of(came[0])

    def sender(self) -> EventHubsSender:
        if self._sender is None:
            self._sender = EventHubsSender(self._access.producer(), self.where())
        return self._sender

    async def aclose(self) -> None:
        await asyncio.gather(*(reader.aclose() for reader in self.readers.values()))
        if self._sender is not None:
            await self._sender.aclose()
            self._sender = None
        for client in self._clients.values():
            await client.close()
        await self._access.aclose()

    async def _hub(self, group: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._request(group, None, self._client.get_eventhub_properties)
        return found

    async def _request(self, group: str, partition: PartitionId | None, ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await ask()
        except Exception as error:
            raise meaning(error, self.where(partition), group) from error


def start_of(position: Position) -> int | str:
    """Where a receiver starts: at the sequence if it is known, since the offset may be a placeholder."""
    if position.offset == BEFORE_ALL or position.sequence is None:
        return position.offset
    return position.sequence


def _bounds(properties: PartitionProperties) -> Bounds:
    """The offset of the oldest event is unknown."""
    oldest = Position(f"{COUNTED}{properties.first}", properties.first)
    newest = Position(properties.last_offset, properties.last)
    return Bounds(oldest, newest, properties.last_at if properties.last >= properties.first else None)
