"""Azure Event Hubs as a source, through the official client: one receiver a partition, the epoch as its owner level.

So the service itself disconnects an older owner: its reader raises LeaseLost. The consumer group is the processor's
group, unless another one is named: owner levels count inside a consumer group, and two groups of ours in one of theirs
would disconnect each other.
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
from evenflow.sources.eventhubs.options import DEFAULT_GROUP, PREFETCH, SCHEME, Access, arguments_of
from evenflow.sources.eventhubs.reader import Desk, EventHubsReader, PartitionFacts, Thefts
from evenflow.sources.eventhubs.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from evenflow.model import Event, PartitionId
    from evenflow.ports import Reader, Start

PEEK_S = 10.0
"""How long a look at one event may take."""
BEFORE_ALL = "-1"
"""The offset before the first event, for the service and for all official clients."""
COUNTED = "#"
"""Before a sequence, in place of an offset that is not known: `#1234`."""


def from_url(url: str) -> EventHubsSource:
    return EventHubsSource(**arguments_of(url))


class EventHubsSource:
    """Reads and writes an event hub. `client` is whatever keyword the official client takes."""

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
        """`annotated`: events are AnnotatedEvents, which keep the message that they came in."""
        if not isinstance(prefetch, int) or prefetch < 1:
            raise Misconfigured(f"eventhubs: prefetch={prefetch!r}: give a whole number of at least 1.")
        access = Access(namespace, hub, connection_string=connection_string, credential=credential, options=client)
        self._premises = Premises(access)
        self._named_group, self._group, self._is_joined = consumer_group, consumer_group or DEFAULT_GROUP, False
        self._prefetch = prefetch
        self._track = False
        self._times: dict[tuple[PartitionId, datetime], Position] = {}
        self._event_of = annotated_event_of if annotated else event_of

    def of_group(self, name: str) -> EventHubsSource:
        """The same hub as this consumer group reads it, over the same connections."""
        joined = object.__new__(EventHubsSource)
        joined.__dict__.update(self.__dict__)
        joined._group, joined._is_joined = self._named_group or name, True
        return joined

    async def identity(self) -> Identity:
        return await self._premises.identity(self._group)

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(name) for name in await self._premises.partitions(self._group)]

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        facts = await self._facts(partition)
        if start == "earliest":
            return Position(BEFORE_ALL, facts.first - 1)
        if start == "latest":
            return Position(facts.last_offset, facts.last)
        if isinstance(start, datetime):
            return await self._before(partition, start, facts)
        if not isinstance(start, Position):
            raise Misconfigured(f'A start is "earliest", "latest", a time or a position, not {start!r}.')
        return await self._checked(partition, start, facts)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        owner_level = self.owner_level(epoch)

        def link(position: Position, arrived: Callable[[Any], None]) -> Any:
            return self._premises.link(
                self._group,
                partition,
                place_of(position),
                owner_level=owner_level,
                prefetch=self._prefetch,
                track=self._track,
                arrived=arrived,
            )

        desk = Desk(
            where=self._premises.where(partition),
            group=self._group,
            partition=partition,
            prefetch=self._prefetch,
            link=link,
            facts=self._facts,
            made=self._made,
            event_of=self._event_of,
            thefts=self._premises.thefts,
        )
        reader = EventHubsReader(desk, after)
        self._premises.readers[reader.task] = reader
        reader.task.add_done_callback(self._premises.readers.pop)
        return await reader.opened()

    def owner_level(self, epoch: int) -> int | None:
        """None disconnects nobody. So dead letters are read, say: nobody owns a hub that no group has joined."""
        return epoch if epoch or self._is_joined else None

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        """All are asked at once. What open readers hear with their events would not do: it does not tell the oldest."""
        asked = await asyncio.gather(*map(self._facts, partitions), return_exceptions=True)  # nobody is left asking
        found: dict[PartitionId, Bounds] = {}
        for name, facts in zip(partitions, asked, strict=True):
            if isinstance(facts, BaseException):
                raise facts
            found[name] = _bounds(facts)
        return found

    async def send(self, events: Sequence[Event]) -> None:
        await self._premises.sender().send(events)

    async def aclose(self) -> None:
        """A source that joined a group leaves the connections to the one that it came from."""
        if not self._is_joined:
            await self._premises.aclose()

    def __repr__(self) -> str:
        return f"<EventHubsSource {self._premises.url()} as {self._group!r}>"

    # --- places
    async def _facts(self, partition: PartitionId) -> PartitionFacts:
        return await self._premises.partition(self._group, partition)

    async def _made(self) -> str:
        return (await self.identity()).made

    async def _before(self, partition: PartitionId, time: datetime, facts: PartitionFacts) -> Position:
        """Just before the first event enqueued at or after this time. The service's times have milliseconds."""
        if time.tzinfo is None:
            raise Misconfigured(f"The start {time} has no time zone. Give it one, for instance tzinfo=UTC.")
        time = time.astimezone(UTC) + timedelta(microseconds=-time.microsecond % 1000)
        if facts.last < facts.first or facts.last_at < time:
            return Position(facts.last_offset, facts.last)
        if (partition, time) not in self._times:
            found = await self._peek(partition, time)
            assert found.sequence is not None
            self._times[partition, time] = await self._at(partition, found.sequence - 1, facts)
        return self._times[partition, time]

    async def _checked(self, partition: PartitionId, position: Position, facts: PartitionFacts) -> Position:
        """As it is if it is whole; what was only counted, or only has an offset, is looked up."""
        sequence, offset = position.sequence, position.offset
        if sequence is None and offset.startswith(COUNTED) and offset[1:].isdecimal():
            sequence = int(offset[1:])
        if sequence is None:
            return await self._with_offset(partition, offset, facts)
        facts.check(self._premises.where(partition), Position(offset, sequence))
        is_counted = offset in (str(sequence), f"{COUNTED}{sequence}")
        return await self._at(partition, sequence, facts) if is_counted else position

    async def _with_offset(self, partition: PartitionId, offset: str, facts: PartitionFacts) -> Position:
        if offset == BEFORE_ALL:
            return Position(BEFORE_ALL, facts.first - 1)
        if offset == facts.last_offset:
            return Position(offset, facts.last)
        found: Position | None = None
        if facts.last >= facts.first:
            with suppress(PositionOutOfRange):
                found = (await self._peek(partition, offset)).position
        if found is not None and found.offset == offset:
            return found
        kind = PositionOutOfRange if found is None else PositionGone
        raise kind(
            f"{self._premises.where(partition)}: no event has the offset {offset!r}. For the event with a sequence"
            f" number, write {COUNTED}NUMBER."
        )

    async def _at(self, partition: PartitionId, sequence: int, facts: PartitionFacts) -> Position:
        """The position of this event, with the offset that official clients go by."""
        if sequence < facts.first:
            return Position(BEFORE_ALL, sequence)
        if sequence == facts.last:
            return Position(facts.last_offset, sequence)
        with suppress(Corrupt):  # where an event cannot be read, one can still go on after it
            found = (await self._peek(partition, sequence)).position
            if found.sequence == sequence:
                return found
        return Position(f"{COUNTED}{sequence}", sequence)

    async def _peek(self, partition: PartitionId, place: int | str | datetime) -> Event:
        """The first event at or after a place, read without an owner level, which disconnects nobody.

        But where somebody reads with one, the service lets nobody in without: another group has to do then.
        """
        refusal: EvenflowError | None = None
        for group in dict.fromkeys((self._group, DEFAULT_GROUP)):
            try:
                return await self._premises.peek(group, partition, place)
            except (LeaseLost, Misconfigured) as error:
                refusal = refusal or error
        raise SourceUnavailable(
            f"{self._premises.where(partition)}: its events cannot be looked at while somebody reads them with an owner"
            f" level in all groups tried ({self._group}, {DEFAULT_GROUP}). Start at 'earliest', 'latest' or a whole"
            " position, or stop the group first."
        ) from refusal


class Premises:
    """What all readers of one hub share: the way in, the connection for questions, the sender."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._clients: dict[str, Any] = {}
        self._client: Any = None
        self._sender: Sender | None = None
        self.readers: dict[asyncio.Task[None], EventHubsReader] = {}
        """Those that still have a link, or try to get one."""
        self.thefts = Thefts()
        self._client = self.client(DEFAULT_GROUP)  # so that a wrong setting is told at once

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
        facts = await self._hub(group)
        made: datetime = facts["created_at"]
        return Identity(self._client.namespace, facts["eventhub_name"], made.isoformat(timespec="milliseconds"))

    async def partitions(self, group: str) -> Sequence[PartitionId]:
        found: list[str] = (await self._hub(group))["partition_ids"]
        return found

    async def partition(self, group: str, name: PartitionId) -> PartitionFacts:
        found = await self._asked(group, name, lambda: self._client.get_partition_properties(name))
        last = found["last_enqueued_sequence_number"]
        first = last + 1 if found["is_empty"] else found["beginning_sequence_number"]
        return PartitionFacts(first, last, found["last_enqueued_offset"], found["last_enqueued_time_utc"])

    def link(
        self,
        group: str,
        partition: PartitionId,
        place: int | str | datetime,
        **terms: Any,
    ) -> Any:
        from evenflow.sources.eventhubs.client import ReceiveLink

        return ReceiveLink(self.client(group), group, partition, after=place, **terms)

    async def peek(self, group: str, partition: PartitionId, place: int | str | datetime) -> Event:
        came: list[Any] = []
        link = self.link(group, partition, place, owner_level=None, prefetch=1, arrived=came.append, inclusive=True)
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

    def sender(self) -> Sender:
        if self._sender is None:
            self._sender = Sender(self._access.producer(), self.where())
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
        found: dict[str, Any] = await self._asked(group, None, self._client.get_eventhub_properties)
        return found

    async def _asked(self, group: str, partition: PartitionId | None, ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await ask()
        except Exception as error:
            raise meaning(error, self.where(partition), group) from error


def place_of(position: Position) -> int | str:
    """Where a receiver begins: the sequence where it is known, since an offset may only have been counted."""
    if position.offset == BEFORE_ALL or position.sequence is None:
        return position.offset
    return position.sequence


def _bounds(facts: PartitionFacts) -> Bounds:
    """The offset of the oldest event is not known."""
    oldest = Position(f"{COUNTED}{facts.first}", facts.first)
    newest = Position(facts.last_offset, facts.last)
    return Bounds(oldest, newest, facts.last_at if facts.last >= facts.first else None)
