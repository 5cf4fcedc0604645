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
from azure.eventhub.exceptions import OwnershipLostError
from msgspec import Struct

from evenflow.compat.eventhub.errors import official
from evenflow.compat.eventhub.source import NotYet, ReceivingSource
from evenflow.compat.eventhub.stores import Solo, store_of
from evenflow.core.checkpointing import Manual
from evenflow.core.failure import pause_s
from evenflow.errors import EvenflowError, LeaseLost, Misconfigured, PartitionHalted, PositionOutOfRange
from evenflow.runtime.processor import Processor
from evenflow.signals import Stopped, Trouble
from evenflow.sources.eventhubs.options import PREFETCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.compat.eventhub.contexts import AsyncContext, PlainContext
    from evenflow.compat.eventhub.terms import Terms
    from evenflow.model import PartitionId
    from evenflow.ports import Store
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.signals import Signal
    from evenflow.sources.eventhubs.codec import AnnotatedEvent

logger = logging.getLogger("evenflow")

ENDING = "processor"
"""Where there is trouble that ends a processor: `start` raises it, and tells it then."""
STEADY_S = 60.0
"""A partition that went well for so long has its failures forgotten."""


class Calling(Protocol):
    """How callbacks are called: awaited, or on the thread of whoever called `receive`.

    It returns what they raised: an await cannot raise all of it (a StopIteration would become another error).
    """

    async def __call__(self, callback: Callable[..., Any], *arguments: Any) -> BaseException | None: ...


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
    """`gathers`: a batch waits for more events, for up to `max_wait_time`. So it is in the official client for threads,
    and not in the other."""

    def __init__(
        self,
        client: Client,
        terms: Terms,
        calling: Calling,
        context: type[AsyncContext] | type[PlainContext],
        *,
        gathers: bool = False,
    ) -> None:
        self._client, self._terms, self._calling, self._context = client, terms, calling, context
        self._gathers = gathers and terms.batch
        self._contexts: dict[PartitionId, AsyncContext | PlainContext] = {}
        self._failures: dict[PartitionId, tuple[int, float]] = {}
        self._stolen: dict[PartitionId, LeaseLost] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._processor: Processor | None = None
        self._is_stopping = False
        self._got_in = False
        self._ended = asyncio.Event()
        self._end: BaseException | None = None

    async def start(self) -> None:
        """Until `stop`, or an error that no time will mend, or a callback that wants to end the program."""
        self._loop = asyncio.get_running_loop()
        client = self._client
        store, is_mine = store_of(client.checkpoint_store, client.peers_expire_s)
        source = ReceivingSource(
            self._terms,
            client.group,
            shares=client.checkpoint_store is not None,
            on_open=self._opened,
            on_stolen=self._stolen.__setitem__,
            **client.access,
        )
        self._processor = self._made(source, store)
        try:
            if not self._is_stopping:
                await self._processor.serve()
        except (EvenflowError, ValueError) as error:
            await self._fail(None, error)
        finally:
            for task in self._tasks:
                task.cancel()
            with suppress(Exception):
                await source.aclose()
            with suppress(Exception):
                if is_mine:
                    await store.aclose()
            self._ended.set()
        if self._end is not None:
            raise self._end

    async def stop(self) -> None:
        """Drain, hand over, leave. From inside a callback it only asks: waiting for oneself would take for ever."""
        self.ask_to_stop()
        if self._processor is not None and asyncio.current_task() not in self._calls:
            await self._ended.wait()

    def ask_to_stop(self) -> None:
        self._is_stopping = True
        if self._processor is not None:
            self._processor.stop()

    def _made(self, source: ReceivingSource, store: Store) -> Processor:
        terms = self._terms
        batch_events = terms.max_batch_size if terms.batch else PREFETCH
        processor = Processor(
            source,
            store if terms.partition_id is None else Solo(store),
            self._client.group,
            start="latest",
            checkpoint=Manual(),
            breaker=None,
            batch_events=batch_events,
            prefetch_events=max(terms.credit, batch_events * 2 if self._gathers else batch_events, PREFETCH),
            **self._client.times,  # type: ignore[arg-type]
        )
        if terms.batch:
            processor.on_batch(self._on_batch)
        else:
            processor.on_event(self._on_event)
        processor.on_error(self._on_trouble)
        processor.on_partition_start(self._on_start)
        processor.on_partition_stop(self._on_stop)
        processor.listen(self._heard)
        if terms.max_wait_time:
            handlers = processor._handlers
            handlers.idle, handlers.idle_s, handlers.gathers = self._on_idle, terms.max_wait_time, self._gathers
        return processor

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
        error = await self._called(self._terms.handler, context, given)
        if error is not None:
            await self._failed(partition, context, error)

    async def _failed(self, partition: OwnedPartition, context: Any, error: Exception) -> None:
        """Again from the checkpoint, after a rest."""
        if isinstance(error, OwnershipLostError) and partition.is_stopping:
            return  # a checkpoint that came too late: the other owner goes on from the one before
        await self._logged(context, error, "a callback failed; it begins again from its checkpoint")
        now_s = self._loop.time()
        count, last_s = self._failures.get(partition.id, (0, now_s))
        count = 1 if now_s - last_s > STEADY_S else count + 1
        rest_s = pause_s(count, 1.0, first_s=0.1, most_s=self._client.most_rest_s)
        self._failures[partition.id] = (count, now_s + rest_s)
        await partition.give_up(rest_s)

    async def _on_trouble(self, error: Exception, partition: OwnedPartition) -> None:
        """What the source said of a partition. One that nobody has ever got into says that a setting is wrong."""
        if isinstance(error, NotYet | PositionOutOfRange):
            return  # the log has it; the official client says nothing at all
        context = self._context_of(partition)
        if isinstance(error, Misconfigured) and not self._got_in:
            await self._fail(context, error)
        else:
            await self._error(context, official(error))

    async def _on_start(self, partition: OwnedPartition) -> None:
        context = self._context_of(partition)
        context.belongs_to(partition)
        await self._told(self._terms.on_partition_initialize, context)

    async def _on_stop(self, partition: OwnedPartition, reason: str) -> None:
        context = self._context_of(partition)
        stolen = self._stolen.pop(partition.id, None)
        if stolen is not None:
            await self._logged(context, official(stolen), "another receiver has it")
        shutdown = self._is_stopping or reason == "leaving"
        await self._told(
            self._terms.on_partition_close, context, CloseReason.SHUTDOWN if shutdown else CloseReason.OWNERSHIP_LOST
        )

    def _opened(self) -> None:
        self._got_in = True

    def _heard(self, signal: Signal) -> None:
        """Trouble that is no partition's own: the store's, or the whole source's. And a partition that stands still."""
        if isinstance(signal, Stopped):
            self._tell(self._contexts[signal.partition], PartitionHalted(str(signal)))
        elif (
            isinstance(signal, Trouble)
            and signal.partition is None
            and signal.where != ENDING
            and isinstance(signal.error, Exception)
        ):
            self._tell(None, official(signal.error))

    def _tell(self, context: Any, error: Exception) -> None:
        task = self._loop.create_task(self._error(context, error))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what the client's user is called with
    async def _fail(self, context: Any, error: Exception) -> None:
        """This ends it. It is told once, and raised as what was told."""
        if self._end is None:
            self._end = official(error)
            self.ask_to_stop()
            await self._error(context, self._end)

    def _context_of(self, partition: OwnedPartition) -> AsyncContext | PlainContext:
        if partition.id not in self._contexts:
            client = self._client
            context = self._context(client.namespace, client.hub, client.group, partition.id)
            context._loop = self._loop
            self._contexts[partition.id] = context
        return self._contexts[partition.id]

    async def _told(self, callback: Callable[..., Any] | None, context: Any, *more: Any) -> None:
        """What a hook raises is told, and changes nothing else."""
        if callback is not None and (error := await self._called(callback, context, *more)) is not None:
            await self._logged(context, error, "a hook failed")

    async def _logged(self, context: Any, error: Exception, what: str) -> None:
        """What the processor itself has not logged: without an on_error nobody else would hear of it."""
        logger.warning("partition %s: %s", context.partition_id, what, exc_info=error)
        await self._error(context, error)

    async def _error(self, context: Any, error: Exception) -> None:
        hook = self._terms.on_error
        if hook is not None and (raised := await self._called(hook, context, error)) is not None:
            logger.error("on_error failed", exc_info=raised)

    async def _called(self, callback: Callable[..., Any], *arguments: Any) -> Exception | None:
        """What it raised. What is no Exception, such as a SystemExit, ends it all, properly, and is raised then."""
        task = asyncio.current_task()
        self._calls.add(task)
        try:
            raised = await self._calling(callback, *arguments)
        finally:
            self._calls.discard(task)
        if raised is None or isinstance(raised, Exception):
            return raised
        self._end = self._end or raised
        self.ask_to_stop()
        return None
