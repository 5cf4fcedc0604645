"""An application of a consumer client, official or drop-in; and an event hub in memory, for the drop-in one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from azure.eventhub._pyamqp.message import Message
from msgspec.structs import replace

import evenflow.compat.eventhub
import evenflow.compat.eventhub.aio
from evenflow.model import MICROSECONDS
from evenflow.sources.eventhubs.codec import ENQUEUED, OFFSET, SEQUENCE, AnnotatedEvent, annotated_event_of
from evenflow.testing.fakes import FakeSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from azure.eventhub import CloseReason, EventData

    from evenflow import Event
    from evenflow.compat.eventhub.options import ReceiveOptions
    from evenflow.model import Batch, Bounds, Identity, Partition, PartitionId, Position
    from evenflow.ports import Reader, Start

GROUP = "alerts"
PATIENCE_S = 60.0
QUICK: dict[str, Any] = {"load_balancing_interval": 0.3}
START: dict[str, Any] = {"starting_position": "-1"}
OURS = evenflow.compat.eventhub.aio.EventHubConsumerClient
OURS_PLAIN = evenflow.compat.eventhub.EventHubConsumerClient


class Connectable(Protocol):
    @property
    def connection_string(self) -> str: ...


async def until(look: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not look():  # noqa: ASYNC110 - it comes from callbacks
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited too long for {what}") from None


class Program:
    """An application: what its callbacks were given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.batches: list[list[EventData]] = []
        self.opened: list[str] = []
        self.closed: list[tuple[str, CloseReason]] = []
        self.errors: list[tuple[str | None, Exception]] = []
        self.contexts: dict[str, Any] = {}
        self.idle = 0
        self.marked = 0
        self.checkpoints = True
        self.fails: Callable[[Any, Any], bool] = lambda context, event: False

    async def on_event(self, context: Any, event: Any) -> None:
        if event is None:
            self.idle += 1
            return
        self.contexts[context.partition_id] = context
        if self.fails(context, event):
            raise ZeroDivisionError("as asked")
        self.seen.append((context.partition_id, event.body_as_str()))
        if self.checkpoints:
            await context.update_checkpoint(event)
            self.marked += 1

    async def on_event_batch(self, context: Any, events: list[Any]) -> None:
        self.contexts[context.partition_id] = context
        self.batches.append(events)
        for event in events:
            self.seen.append((context.partition_id, event.body_as_str()))
        if events:
            await context.update_checkpoint()

    async def on_error(self, context: Any, error: Exception) -> None:
        self.errors.append((context.partition_id if context is not None else None, error))

    async def on_partition_initialize(self, context: Any) -> None:
        self.opened.append(context.partition_id)

    async def on_partition_close(self, context: Any, reason: CloseReason) -> None:
        self.closed.append((context.partition_id, reason))

    @property
    def hooks(self) -> dict[str, Any]:
        return {
            "on_error": self.on_error,
            "on_partition_initialize": self.on_partition_initialize,
            "on_partition_close": self.on_partition_close,
        }


class Running:
    """A client that receives, until the block ends."""

    def __init__(
        self, kind: Any, served: Connectable, receive: dict[str, Any], *, group: str = GROUP, **client: Any
    ) -> None:
        self.program = Program()
        self.client = kind.from_connection_string(served.connection_string, group, **{**QUICK, **client})
        self._receive = receive

    async def __aenter__(self) -> Running:
        program, options = self.program, dict(self._receive)
        if options.pop("batch", False):
            call = self.client.receive_batch(program.on_event_batch, **program.hooks, **options)
        else:
            call = self.client.receive(program.on_event, **program.hooks, **options)
        self.task = asyncio.create_task(call)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def bodies(program: Program, partition: str = "0") -> list[str]:
    return [body for where, body in program.seen if where == partition]


def has_come_to(program: Program, last: str, partition: str = "0") -> Callable[[], bool]:
    """Whether this body was the last one that it was given."""
    return lambda: bodies(program, partition)[-1:] == [last]


def has_seen(program: Program, count: int) -> Callable[[], bool]:
    return lambda: len(program.seen) == count


class HubInMemory(FakeSource):
    """An event hub of two partitions, whose events come with the messages that a real one would send."""

    connection_string = "Endpoint=sb://fake/;SharedAccessKeyName=key;SharedAccessKey=value;EntityPath=hub"

    def __init__(self) -> None:
        super().__init__(2)
        self.refusal: Exception | None = None
        """What it answers to every request, where there is one."""

    def fill(self, count: int, *partitions: PartitionId) -> None:
        """Append events whose bodies are their own numbers."""
        for partition in partitions or ("0",):
            for _ in range(count):
                self.append(partition, b"%d" % (self.newest(partition) + 1))

    def source(
        self, options: ReceiveOptions, group: str, *, on_open: Callable[[], None], **rest: Any
    ) -> SourceInMemory:
        """In place of the ReceivingSource of one `receive`."""
        return SourceInMemory(self, options, on_open)


class SourceInMemory:
    """The hub as one `receive` reads it: its partitions, and from where."""

    def __init__(self, hub: HubInMemory, options: ReceiveOptions, on_open: Callable[[], None]) -> None:
        self._hub, self._terms, self._on_open = hub, options, on_open

    async def identity(self) -> Identity:
        if self._hub.refusal is not None:
            raise self._hub.refusal
        return await self._hub.identity()

    async def partitions(self) -> Sequence[Partition]:
        only = self._terms.partition_id
        return [one for one in await self._hub.partitions() if only in (None, one.id)]

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        return await self._hub.resolve(partition, self._terms.start_of(partition) if start == "latest" else start)

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        reader = await self._hub.open(partition, after, epoch=epoch)
        self._on_open()
        return AnnotatedReader(reader)

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        return await self._hub.bounds(partitions)

    async def aclose(self) -> None:
        pass


class AnnotatedReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        return replace(batch, events=[_annotated(event) for event in batch.events])

    async def aclose(self) -> None:
        await self._reader.aclose()


def _annotated(event: Event) -> AnnotatedEvent:
    sequence = event.sequence or 0
    place: dict[str | bytes, Any] = {
        OFFSET: b"%d" % sequence,
        SEQUENCE: sequence,
        ENQUEUED: event.enqueued_us * 1_000 // MICROSECONDS,
    }
    return annotated_event_of(Message(message_annotations=place, data=[event.body]))
