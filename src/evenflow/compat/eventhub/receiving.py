"""One `receive` of a consumer client: a processor whose handlers call the client's callbacks.

A callback that raises ends its partition as it does with the official client: `on_error`, `on_partition_close`, and
after a rest again from the checkpoint, with `on_partition_initialize`. Nothing is skipped, and nothing stops for good.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from azure.eventhub import CloseReason
from azure.eventhub.exceptions import EventHubError, OwnershipLostError
from msgspec import Struct

from evenflow.compat.eventhub.source import ReceivingSource
from evenflow.compat.eventhub.stores import Solo, store_of
from evenflow.core.checkpointing import Manual
from evenflow.core.failure import pause_s
from evenflow.errors import EvenflowError
from evenflow.observe.happenings import Trouble
from evenflow.runtime.processor import Processor

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.compat.eventhub.contexts import AsyncContext, PlainContext
    from evenflow.compat.eventhub.terms import Terms
    from evenflow.model import PartitionId
    from evenflow.observe.happenings import Happening
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.sources.eventhubs_events import AnnotatedEvent

logger = logging.getLogger("evenflow")

STEADY_S = 60.0
"""A partition that went well for so long has its failures forgotten."""


class Calling(Protocol):
    """How callbacks are called: awaited, or on the thread of whoever called `receive`."""

    async def __call__(self, callback: Callable[..., Any], *arguments: Any) -> None: ...


class Client(Struct, frozen=True):
    """What a receiving needs of its client."""

    namespace: str
    hub: str
    group: str
    access: dict[str, Any]
    """How to get in: the arguments of an EventHubsSource."""
    checkpoint_store: Any
    times: dict[str, float]
    most_rest_s: float
    peers_expire_s: float


class Receiving:
    def __init__(
        self, client: Client, terms: Terms, calling: Calling, context: type[AsyncContext] | type[PlainContext]
    ) -> None:
        self._client, self._terms, self._calling, self._context = client, terms, calling, context
        self._contexts: dict[PartitionId, AsyncContext | PlainContext] = {}
        self._failures: dict[PartitionId, tuple[int, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._processor: Processor | None = None
        self._is_stopping = False
        self._ended = asyncio.Event()

    async def start(self) -> None:
        """Until `stop`, or an error that no time will mend."""
        loop, client, terms = asyncio.get_running_loop(), self._client, self._terms
        self._loop = loop
        store, is_mine = store_of(client.checkpoint_store, client.peers_expire_s)
        source = ReceivingSource(terms, client.group, shares=client.checkpoint_store is not None, **client.access)
        alone = terms.partition_id is not None
        self._processor = processor = Processor(
            source,
            Solo(store) if alone else store,
            client.group,
            start="latest",
            checkpoint=Manual(),
            breaker=None,
            batch_events=terms.max_batch_size if terms.batch else 300,
            prefetch_events=max(terms.prefetch, terms.max_batch_size, 300),
            **client.times,  # type: ignore[arg-type]
        )
        self._set_up(processor)
        try:
            if not self._is_stopping:
                await processor.serve()
        except EvenflowError as error:
            await self._error(None, error)
            raise official(error) from error
        finally:
            for task in self._tasks:
                task.cancel()
            with suppress(Exception):
                await source.aclose()
            with suppress(Exception):
                if is_mine:
                    await store.aclose()
            self._ended.set()

    async def stop(self) -> None:
        """Drain, hand over, leave. From inside a callback it only asks: waiting for oneself would take for ever."""
        self.ask_to_stop()
        if self._processor is not None and asyncio.current_task() not in self._calls:
            await self._ended.wait()

    def ask_to_stop(self) -> None:
        self._is_stopping = True
        if self._processor is not None:
            self._processor.stop()

    def _set_up(self, processor: Processor) -> None:
        if self._terms.batch:
            processor.on_batch(self._on_batch)
        else:
            processor.on_event(self._on_event)
        processor.on_error(self._on_trouble)
        processor.on_partition_start(self._on_start)
        processor.on_partition_stop(self._on_stop)
        processor.listen(self._heard)
        if self._terms.max_wait_time:
            processor._handlers.idle, processor._handlers.idle_s = self._on_idle, self._terms.max_wait_time

    # --- what the processor calls
    async def _on_event(self, event: AnnotatedEvent, partition: OwnedPartition) -> None:
        context = self._contexts[partition.id]
        (data,) = context.given([event], partition.ordinal)
        await self._handle(partition, context, data)

    async def _on_batch(self, events: list[AnnotatedEvent], partition: OwnedPartition) -> None:
        context = self._contexts[partition.id]
        await self._handle(partition, context, context.given(events, partition.ordinal))

    async def _on_idle(self, partition: OwnedPartition) -> None:
        await self._handle(partition, self._contexts[partition.id], [] if self._terms.batch else None)

    async def _handle(self, partition: OwnedPartition, context: Any, given: Any) -> None:
        if self._is_stopping:
            return  # it is not marked, so whoever comes next gets it
        try:
            await self._called(self._terms.handler, context, given)
        except Exception as error:
            await self._failed(partition, context, error)

    async def _failed(self, partition: OwnedPartition, context: Any, error: Exception) -> None:
        """Again from the checkpoint, after a rest."""
        if isinstance(error, OwnershipLostError) and partition.is_stopping:
            return  # a checkpoint that came too late: the other owner goes on from the one before
        await self._error(context, error)
        now_s = self._loop.time()
        count, last_s = self._failures.get(partition.id, (0, now_s))
        count = 1 if now_s - last_s > STEADY_S else count + 1
        rest_s = pause_s(count, 1.0, first_s=0.1, most_s=self._client.most_rest_s)
        self._failures[partition.id] = (count, now_s + rest_s)
        await partition.give_up(rest_s)

    async def _on_trouble(self, error: Exception, partition: OwnedPartition) -> None:
        await self._error(self._context_of(partition), official(error))

    async def _on_start(self, partition: OwnedPartition) -> None:
        context = self._context_of(partition)
        context.belongs_to(partition)
        await self._told(self._terms.on_partition_initialize, context)

    async def _on_stop(self, partition: OwnedPartition, reason: str) -> None:
        shutdown = self._is_stopping or reason == "leaving"
        context = self._context_of(partition)
        await self._told(
            self._terms.on_partition_close, context, CloseReason.SHUTDOWN if shutdown else CloseReason.OWNERSHIP_LOST
        )

    def _heard(self, happening: Happening) -> None:
        """Trouble that is no partition's: the store's, or the source's as a whole."""
        if isinstance(happening, Trouble) and happening.partition is None and isinstance(happening.error, Exception):
            task = self._loop.create_task(self._error(None, official(happening.error)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # --- what the client's user is called with
    def _context_of(self, partition: OwnedPartition) -> AsyncContext | PlainContext:
        if partition.id not in self._contexts:
            client = self._client
            context = self._context(client.namespace, client.hub, client.group, partition.id)
            context._loop = self._loop
            self._contexts[partition.id] = context
        return self._contexts[partition.id]

    async def _told(self, callback: Callable[..., Any] | None, context: Any, *more: Any) -> None:
        """What a hook raises is told, and changes nothing else."""
        if callback is not None:
            try:
                await self._called(callback, context, *more)
            except Exception as error:
                await self._error(context, error)

    async def _error(self, context: Any, error: Exception) -> None:
        if self._terms.on_error is not None:
            try:
                await self._called(self._terms.on_error, context, error)
            except Exception:
                logger.exception("on_error failed")

    async def _called(self, callback: Callable[..., Any], *arguments: Any) -> None:
        task = asyncio.current_task()
        self._calls.add(task)
        try:
            await self._calling(callback, *arguments)
        finally:
            self._calls.discard(task)


def official(error: Exception) -> Exception:
    """As the official client would have it: one of its own errors, where it began as one of those."""
    cause = error.__cause__
    if isinstance(error, EvenflowError) and isinstance(cause, Exception) and hasattr(cause, "condition"):
        from azure.eventhub._transport._pyamqp_transport import PyamqpTransport

        transport: Any = PyamqpTransport
        found = transport._create_eventhub_exception(cause)
        return found if isinstance(found, EventHubError) else error
    return error
