"""The public face: a processor is made with a source, a store and a group, given handlers, and run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from evenflow.core.checkpointing import Every, Manual
from evenflow.core.failure import Breaker, Retry
from evenflow.errors import Misconfigured, PartitionHalted
from evenflow.runtime.calls import check_handler
from evenflow.runtime.clock import system_clock
from evenflow.runtime.engine import Engine
from evenflow.runtime.parts import Handlers
from evenflow.runtime.settings import Settings, StartOption, check_is_past, check_start
from evenflow.runtime.watchdog import LoopWatch
from evenflow.signals import Announcer, Signal
from evenflow.urls import open_dead_letters, open_source, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from evenflow.model import PartitionId, Position
    from evenflow.ports import Clock, DeadLetters, Source, Start, Store

LEFTOVERS_S = 1.0
GIVE_UP_S = 60.0
"""So long a scheduled run tries in vain to reach its source or store, or whatever else it needs."""

Function = TypeVar("Function", bound="Callable[..., Any]")


class Processor:
    """Runs handlers over this instance's fair share of a hub's partitions.

    `source` and `store` are objects or URLs; all copies of an application that name the same source, store and
    group share the partitions between them.
    """

    def __init__(
        self,
        source: Source | str | object,
        store: Store | str | object,
        group: str,
        *,
        start: StartOption = "earliest",
        checkpoint: Every | Manual = Every(seconds=1.0),  # noqa: B008 - it is immutable
        retry: Retry = Retry(),  # noqa: B008
        on_poison: Literal["stop", "skip"] | None = None,
        on_gone: Literal["stop", "earliest", "latest"] = "stop",
        on_lost: Literal["earliest", "stop"] = "earliest",
        dead_letter: DeadLetters | str | object | None = None,
        dead_letter_order: Literal["key"] | None = None,
        breaker: Breaker | None = Breaker(),  # noqa: B008
        handler_timeout_s: float | None = None,
        stalled_after_s: float = 60.0,
        instance_id: str | None = None,
        concurrency: int | None = None,
        max_partitions: int | None = None,
        min_partitions: int | None = None,
        weight: float = 1.0,
        balance: Literal["count", "load"] = "count",
        load_s: float = 30.0,
        heartbeat_s: float = 2.0,
        ttl_s: float = 8.0,
        margin_s: float = 1.0,
        longest_ttl_s: float = 60.0,
        refresh_s: float = 10.0,
        stop_s: float = 30.0,
        batch_events: int = 1000,
        prefetch_events: int = 4000,
        prefetch_bytes: int = 16 * 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        self.settings = Settings(
            group=group,
            start=start,
            checkpoint=checkpoint,
            retry=retry,
            on_poison=on_poison,
            on_gone=on_gone,
            on_lost=on_lost,
            dead_letter=dead_letter,
            dead_letter_order=dead_letter_order,
            breaker=breaker,
            handler_timeout_s=handler_timeout_s,
            stalled_after_s=stalled_after_s,
            instance_id=instance_id,
            concurrency=concurrency,
            max_partitions=max_partitions,
            min_partitions=min_partitions,
            weight=weight,
            balance=balance,
            load_s=load_s,
            heartbeat_s=heartbeat_s,
            ttl_s=ttl_s,
            margin_s=margin_s,
            longest_ttl_s=longest_ttl_s,
            refresh_s=refresh_s,
            stop_s=stop_s,
            batch_events=batch_events,
            prefetch_events=prefetch_events,
            prefetch_bytes=prefetch_bytes,
        )
        self._source_given, self._store_given = source, store
        _check_parts(source, store, group)
        self._handlers = Handlers()
        self._clock = clock or system_clock()
        check_is_past(start, self._clock.wall())
        self._announce = Announcer(self._clock.wall)
        self._engine: Engine | None = None
        self._occupied = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._opened: list[Source | Store | DeadLetters] = []
        self._charges: Mapping[str, float] = {}
        self._instance_id = instance_id
        self._watch = LoopWatch(self._announce) if clock is None else None

    _decorators = "@processor.on_event or @processor.on_batch"
    """What gives it a handler."""
    id_option: ClassVar[str] = "instance_id"
    """What the option is called that gives it an id."""

    # --- handlers
    def on_event(self, handler: Function) -> Function:
        """Called with (event, partition) for each event, in order, one call at a time per partition."""
        return self._set_handler("event", handler)

    def on_batch(self, handler: Function) -> Function:
        """Called with (events, partition): some events of one partition, in order, at least one."""
        return self._set_handler("batch", handler)

    def on_error(self, hook: Function) -> Function:
        """Called with (error, partition) when a handler or the source failed; it is tried again afterwards."""
        return self._set_hook("error", hook)

    def on_partition_start(self, hook: Function) -> Function:
        """Called with (partition) before its first event."""
        return self._set_hook("partition_start", hook)

    def on_partition_stop(self, hook: Function) -> Function:
        """Called with (partition, reason) after its last event and before its last checkpoint."""
        return self._set_hook("partition_stop", hook)

    def listen(self, listener: Callable[[Signal], None]) -> None:
        """Be told of everything that happens, as typed records. Must be quick."""
        self._announce.listen(listener)

    # --- running
    def run(self, until: Literal["caught_up"] | None = None, *, give_up_s: float = GIVE_UP_S) -> bool:
        """Run until SIGTERM or SIGINT, then drain, commit, hand over and return.

        With until="caught_up", return once everything that was there is handled: for cron jobs and functions. True says
        that it is; False that it was stopped before, by a signal, `stop` or `evenflow retire`.
        PartitionHalted when a poison event, the breaker or events that are gone halted a partition, once all others
        are handled; and what was tried in vain for `give_up_s`, such as SourceUnavailable: it does not wait for ever.
        """
        _check_until(until, give_up_s)
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise Misconfigured("run() makes an event loop of its own; inside a running one, await serve() instead.")
        loop = _new_loop()
        try:
            return loop.run_until_complete(self._run_with_signals(until, give_up_s))
        finally:
            _close_loop(loop)

    async def serve(self, until: Literal["caught_up"] | None = None, *, give_up_s: float = GIVE_UP_S) -> bool:
        """As `run`, inside a running event loop and without touching signals. `stop` ends it."""
        _check_until(until, give_up_s)
        self._occupy()
        self._loop, self._stop_asked = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._start_unless_stopped(self._stop_asked, give_up_s if until == "caught_up" else inf)
        finally:
            self._occupied = self._engine is not None
        if self._engine is None:
            return False
        ends: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._engine.wait()),
            asyncio.create_task(self._stop_asked.wait()),
        ]
        if until == "caught_up":
            ends.append(asyncio.create_task(self._engine.wait_until_caught_up(give_up_s)))
        halted: Mapping[PartitionId, str] = {}
        is_done = False
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            halted = self._engine.halted() if until == "caught_up" else {}
            is_done = until == "caught_up" and _was_true(ends[-1])
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await self._stop(done=is_done and not halted)
        if until == "caught_up" and not ends[-1].cancelled():
            ends[-1].result()
        if halted:
            raise PartitionHalted(f"{_told_once(halted)}. What to do about it is in the log, and in `evenflow status`")
        return is_done

    def stop(self) -> None:
        """Ask `serve` or `run` to drain, hand over and return. It may be called from any thread."""
        if self._stop_asked is not None and self._loop is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop_asked.set)

    async def __aenter__(self) -> Processor:
        self._occupy()
        try:
            await self._start()
        finally:
            self._occupied = self._engine is not None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def seek(self, to: Start, partitions: Sequence[PartitionId] | None = None) -> Mapping[PartitionId, Position]:
        """Go on elsewhere, in all partitions that this instance owns or in those named: back, or ahead.

        Returns, once it is durable, after which position each goes on. Not to be awaited inside a handler: the seek
        waits for the call that runs to return.
        """
        if isinstance(to, Mapping):
            raise Misconfigured("seek() takes one place; call it once for each partition that goes elsewhere.")
        check_start(to)
        if any(not isinstance(one, str) for one in partitions or ()):
            raise Misconfigured(
                f"partitions={partitions!r}: give a list of partition ids, which are texts: ['0', '1']."
            )
        if self._engine is None:
            raise Misconfigured("seek() needs a running processor; to begin elsewhere, give start= instead.")
        return await self._engine.seek(to, partitions)

    @property
    def store(self) -> object:
        """As it was given: an object or a URL."""
        return self._store_given

    @property
    def instance_id(self) -> str | None:
        """Under which name this instance appears in the store, or did when it last ran; None before the first start."""
        return self._engine.coordinator.me.id if self._engine is not None else self._instance_id

    @property
    def owned(self) -> dict[PartitionId, int]:
        """The partitions that this instance handles now, each with its epoch."""
        holds = self._engine.coordinator.holds if self._engine is not None else {}
        return {partition: hold.epoch for partition, hold in sorted(holds.items())}

    @property
    def charges(self) -> Mapping[str, float]:
        """What the services of the source and the store have counted so far, of each kind of operation: request units
        of Cosmos DB, say. After the end, what it was then; nothing where no service counts."""
        return self._engine.charges() if self._engine is not None else self._charges

    # --- inside
    def _open_source(self) -> Source:
        return open_source(self._source_given)

    def _occupy(self) -> None:
        """At once, before anything is awaited: two who start it at the same time must not both pass."""
        if self._occupied:
            raise Misconfigured("this processor runs already; make a second one to run twice.")
        self._occupied = True

    async def _start_unless_stopped(self, stop_asked: asyncio.Event, give_up_s: float) -> None:
        """A source that is away at the start is waited for, but no longer than until one is asked to stop."""
        starting, asked = asyncio.create_task(self._start(give_up_s)), asyncio.create_task(stop_asked.wait())
        try:
            await asyncio.wait([starting, asked], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.wait([starting])
            await self._stop()
            raise
        finally:
            starting.cancel()
            asked.cancel()
            await asyncio.wait([starting, asked])
        if not starting.cancelled():
            starting.result()

    async def _start(self, give_up_s: float = inf) -> None:
        if self._handlers.event is None and self._handlers.batch is None:
            raise Misconfigured(f"there is no handler: put {self._decorators} above a def.")
        source, store = self._open_source(), open_store(self._store_given)
        wanted = self.settings.dead_letter
        dead_letters = open_dead_letters(wanted) if wanted is not None else None
        given = (self._source_given, self._store_given, wanted)
        parts = [part for part in (source, store, dead_letters) if part is not None]
        self._opened = [part for part in parts if not any(part is mine for mine in given)]
        try:
            self._engine = await Engine.open(
                source, store, self.settings, self._handlers, self._clock, self._announce, dead_letters, give_up_s
            )
            self._engine.start()
        except BaseException:
            await self._close()
            raise
        if self._watch is not None:
            self._watch.start()

    async def _stop(self, *, done: bool = False) -> None:
        try:
            if self._engine is not None:
                await self._engine.stop(done=done)
        finally:
            self._charges, self._instance_id = self.charges, self.instance_id
            await self._close()

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._engine, self._occupied = None, False
        opened, self._opened = self._opened, []
        for part in opened:
            await part.aclose()

    async def _run_with_signals(self, until: Literal["caught_up"] | None, give_up_s: float) -> bool:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread, or not here
                loop.add_signal_handler(number, self.stop)
        try:
            return await self.serve(until, give_up_s=give_up_s)
        finally:
            for number in signals:
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)

    def _set_handler(self, kind: str, handler: Function) -> Function:
        check_handler(f"on_{kind}", handler)
        if self._handlers.event is not None or self._handlers.batch is not None:
            raise Misconfigured("this processor has a handler already; it takes one on_event or one on_batch.")
        setattr(self._handlers, kind, handler)
        return handler

    def _set_hook(self, kind: str, hook: Function) -> Function:
        check_handler(f"on_{kind}", hook)
        setattr(self._handlers, kind, hook)
        return hook


def _told_once(halted: Mapping[PartitionId, str]) -> str:
    """Why each stands still, for people: those that do for the same reason in one go."""
    names: dict[str, list[PartitionId]] = {}
    for partition, why in halted.items():
        names.setdefault(why.removesuffix("."), []).append(partition)
    return "; ".join(f"partition{'s' * (len(some) > 1)} {', '.join(some)} {why}" for why, some in names.items())


def _was_true(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and bool(task.result())


def _check_until(until: str | None, give_up_s: float) -> None:
    if until not in (None, "caught_up"):
        raise Misconfigured(f"until={until!r}: give 'caught_up', or leave it out.")
    if not isinstance(give_up_s, int | float) or not give_up_s > 0:
        raise Misconfigured(f"give_up_s={give_up_s!r}: give a number of seconds above 0.")


def _check_parts(source: object, store: object, group: str) -> None:
    """A wrong URL is told when the processor is made, not when it runs."""
    from evenflow.urls import check_parts

    check_parts(source, store, group)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, when it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """A handler that does not let itself be cancelled must not keep the process from ending inside its deadline."""
    try:
        leftovers = asyncio.all_tasks(loop)
        for task in leftovers:
            task.cancel()
        if leftovers:
            loop.run_until_complete(asyncio.wait(leftovers, timeout=LEFTOVERS_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
