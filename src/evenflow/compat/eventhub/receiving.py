"""One `receive` of a consumer client: a processor whose handlers call the client's callbacks.

A callback that raises closes its partition, as in the official client: `on_error`, then `on_partition_close`. After a
delay the partition starts again from the checkpoint, with `on_partition_initialize`. No event is skipped, and no
partition stops permanently.
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
from evenflow.compat.eventhub.stores import SinglePartitionStore, store_of
from evenflow.core.checkpointing import Manual
from evenflow.core.failure import pause_s
from evenflow.errors import EvenflowError, LeaseLost, Misconfigured, PartitionHalted, PositionOutOfRange
from evenflow.runtime.processor import Processor
from evenflow.signals import Stopped, Trouble
from evenflow.sources.eventhubs.options import PREFETCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.compat.eventhub.contexts import AsyncContext, PlainContext
    from evenflow.compat.eventhub.options import ReceiveOptions
    from evenflow.model import PartitionId
    from evenflow.ports import Store
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.signals import Signal
    from evenflow.sources.eventhubs.codec import AnnotatedEvent

logger = logging.getLogger("evenflow")

FATAL = "processor"
"""`Trouble.where` of an error that ends the processor. `start` raises it and reports it itself."""
STEADY_S = 60.0
"""After this time without a failure, the failures of a partition no longer count."""


class CallbackRunner(Protocol):
    """How callbacks are called: awaited, or on the thread that called `receive`.

    It returns what they raised, because an await cannot raise everything: a StopIteration would become another error.
    """

    async def __call__(self, callback: Callable[..., Any], *arguments: Any) -> BaseException | None: ...


class ClientSettings(Struct, frozen=True):
    """The settings of a consumer client that a receive session needs."""

    namespace: str
    hub: str
    group: str
    access: dict[str, Any]
    """Namespace, hub and credential: arguments of an EventHubsSource."""
    checkpoint_store: Any
    timing: dict[str, float]
    retry_delay_most_s: float
    peers_expire_s: float


class ReceiveSession:
    """With `gathers`, a batch waits for more events for up to `max_wait_time`, as in the official blocking client; the
    official asyncio client does not wait."""

    def __init__(
        self,
        client: ClientSettings,
        options: ReceiveOptions,
        calling: CallbackRunner,
        context: type[AsyncContext] | type[PlainContext],
        *,
        gathers: bool = False,
    ) -> None:
        self._client, self._options, self._calling, self._context = client, options, calling, context
        self._gathers = gathers and options.batch
        self._contexts: dict[PartitionId, AsyncContext | PlainContext] = {}
        self._failures: dict[PartitionId, tuple[int, float]] = {}
        self._stolen: dict[PartitionId, LeaseLost] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._processor: Processor | None = None
        self._is_stopping = False
        self._has_opened = False
        self._ended = asyncio.Event()
        self._fatal: BaseException | None = None

    async def start(self) -> None:
        """Receive until `stop`. Raises errors that a retry cannot fix, and a callback's error that ends the program."""
        self._loop = asyncio.get_running_loop()
        client = self._client
        store, is_own_store = store_of(client.checkpoint_store, client.peers_expire_s)
        source = ReceivingSource(
            self._options,
            client.group,
            shares=client.checkpoint_store is not None,
            on_open=self._opened,
            on_stolen=self._stolen.__setitem__,
            **client.access,
        )
        self._processor = self._create_processor(source, store)
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
                if is_own_store:
                    await store.aclose()
            self._ended.set()
        if self._fatal is not None:
            raise self._fatal

    async def stop(self) -> None:
        """Drain, hand over and leave. Called inside a callback, it does not wait: that would be a deadlock."""
        self.request_stop()
        if self._processor is not None and asyncio.current_task() not in self._calls:
            await self._ended.wait()

    def request_stop(self) -> None:
        self._is_stopping = True
        if self._processor is not None:
            self._processor.stop()

    def _create_processor(self, source: ReceivingSource, store: Store) -> Processor:
        options = self._options
        batch_events = options.max_batch_size if options.batch else PREFETCH
        processor = Processor(
            source,
            store if options.partition_id is None else SinglePartitionStore(store),
            self._client.group,
            start="latest",
            checkpoint=Manual(),
            breaker=None,
            batch_events=batch_events,
            prefetch_events=max(options.credit, batch_events * 2 if self._gathers else batch_events, PREFETCH),
            **self._client.timing,  # type: ignore[arg-type]
        )
        if options.batch:
            processor.on_batch(self._on_batch)
        else:
            processor.on_event(self._on_event)
        processor.on_error(self._on_trouble)
        processor.on_partition_start(self._on_start)
        processor.on_partition_stop(self._on_stop)
        processor.listen(self._on_signal)
        if options.max_wait_time:
            handlers = processor._handlers
            handlers.idle, handlers.idle_s, handlers.gathers = self._on_idle, options.max_wait_time, self._gathers
        return processor

    # --- handlers of the processor
    async def _on_event(self, event: AnnotatedEvent, partition: OwnedPartition) -> None:
        context = self._contexts[partition.id]
        (data,) = context.given([event], partition.ordinal)
        await self._handle(partition, context, data)

    async def _on_batch(self, events: list[AnnotatedEvent], partition: OwnedPartition) -> None:
        context = self._contexts[partition.id]
        await self._handle(partition, context, context.given(events, partition.ordinal))

    async def _on_idle(self, partition: OwnedPartition) -> None:
        await self._handle(partition, self._contexts[partition.id], [] if self._options.batch else None)

    async def _handle(self, partition: OwnedPartition, context: Any, given: Any) -> None:
        if self._is_stopping:
            return  # no checkpoint covers it, so the next owner gets it
        error = await self._call(self._options.handler, context, given)
        if error is not None:
            await self._restart(partition, context, error)

    async def _restart(self, partition: OwnedPartition, context: Any, error: Exception) -> None:
        """Start the partition again from its checkpoint, after a delay."""
        if isinstance(error, OwnershipLostError) and partition.is_stopping:
            return  # its checkpoint came too late: the new owner continues from the previous one
        await self._log_and_report(context, error, "a callback failed; restarting from the checkpoint")
        now_s = self._loop.time()
        count, last_s = self._failures.get(partition.id, (0, now_s))
        count = 1 if now_s - last_s > STEADY_S else count + 1
        delay_s = pause_s(count, 1.0, first_s=0.1, most_s=self._client.retry_delay_most_s)
        self._failures[partition.id] = (count, now_s + delay_s)
        await partition.give_up(delay_s)

    async def _on_trouble(self, error: Exception, partition: OwnedPartition) -> None:
        """An error of the source. It is a wrong setting, and fatal, if no partition could ever be opened."""
        if isinstance(error, NotYet | PositionOutOfRange):
            return  # the runtime has logged it; the official client does not report it
        context = self._context_of(partition)
        if isinstance(error, Misconfigured) and not self._has_opened:
            await self._fail(context, error)
        else:
            await self._report(context, official(error))

    async def _on_start(self, partition: OwnedPartition) -> None:
        context = self._context_of(partition)
        context.belongs_to(partition)
        await self._call_hook(self._options.on_partition_initialize, context)

    async def _on_stop(self, partition: OwnedPartition, reason: str) -> None:
        context = self._context_of(partition)
        stolen = self._stolen.pop(partition.id, None)
        if stolen is not None:
            await self._log_and_report(context, official(stolen), "another receiver took it over")
        shutdown = self._is_stopping or reason == "leaving"
        close_reason = CloseReason.SHUTDOWN if shutdown else CloseReason.OWNERSHIP_LOST
        await self._call_hook(self._options.on_partition_close, context, close_reason)

    def _opened(self) -> None:
        self._has_opened = True

    def _on_signal(self, signal: Signal) -> None:
        """Report a stopped partition, and errors of the store or of the whole source, which belong to no partition."""
        if isinstance(signal, Stopped):
            self._report_later(self._contexts[signal.partition], PartitionHalted(str(signal)))
        elif (
            isinstance(signal, Trouble)
            and signal.partition is None
            and signal.where != FATAL
            and isinstance(signal.error, Exception)
        ):
            self._report_later(None, official(signal.error))

    def _report_later(self, context: Any, error: Exception) -> None:
        task = self._loop.create_task(self._report(context, error))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- callbacks of the client
    async def _fail(self, context: Any, error: Exception) -> None:
        """End the session: report the error once, and raise the same error from `start`."""
        if self._fatal is None:
            self._fatal = official(error)
            self.request_stop()
            await self._report(context, self._fatal)

    def _context_of(self, partition: OwnedPartition) -> AsyncContext | PlainContext:
        if partition.id not in self._contexts:
            client = self._client
            context = self._context(client.namespace, client.hub, client.group, partition.id)
            context._loop = self._loop
            self._contexts[partition.id] = context
        return self._contexts[partition.id]

    async def _call_hook(self, callback: Callable[..., Any] | None, context: Any, *more: Any) -> None:
        """Call a hook. An error that it raises is reported and has no other effect."""
        if callback is not None and (error := await self._call(callback, context, *more)) is not None:
            await self._log_and_report(context, error, "a hook failed")

    async def _log_and_report(self, context: Any, error: Exception, what: str) -> None:
        """For an error that the processor has not logged; without an `on_error` it would go unnoticed."""
        logger.warning("partition %s: %s", context.partition_id, what, exc_info=error)
        await self._report(context, error)

    async def _report(self, context: Any, error: Exception) -> None:
        hook = self._options.on_error
        if hook is not None and (raised := await self._call(hook, context, error)) is not None:
            logger.error("on_error failed", exc_info=raised)

    async def _call(self, callback: Callable[..., Any], *arguments: Any) -> Exception | None:
        """The exception that the callback raised. A BaseException, such as SystemExit, ends the session in order, and
        `start` raises it."""
        task = asyncio.current_task()
        self._calls.add(task)
        try:
            raised = await self._calling(callback, *arguments)
        finally:
            self._calls.discard(task)
        if raised is None or isinstance(raised, Exception):
            return raised
        self._fatal = self._fatal or raised
        self.request_stop()
        return None
