"""The four ways to call a handler: for each event or a batch, async or plain. The hottest lines of the project.

A caller begins no call unless the hold may begin one: it looks at the clock before each. It records progress after
each, and returns when all is handled, when the hold stops, or when its slice of time is over (so that other
partitions and the heartbeat get their turn). What a handler raises passes through; progress tells how far it came.
"""

from __future__ import annotations

import asyncio
import inspect
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from evenflow.errors import HandlerTimeout, Misconfigured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.model import Event, Position
    from evenflow.ports import Clock
    from evenflow.runtime.hold import Hold
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.runtime.threads import Threads

Handler: TypeAlias = "Callable[[Any, OwnedPartition], Awaitable[None] | None]"

SLICE_S = 0.02
"""How long a caller goes on from event to event before it lets others in."""


class Caller(Protocol):
    whole: bool
    """A call takes all the events it is given, so they must not be cut into pieces."""

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None: ...


def caller_for(
    handler: Handler, *, batch: bool, clock: Clock, threads: Threads, limit_s: float | None = None
) -> Caller:
    """A caller that cancels async calls after `limit_s`.

    Nothing can end a plain call: it runs on its thread until it returns, and counts for what it did.
    """
    if not is_async(handler):
        return PlainBatch(handler, clock, threads) if batch else PlainEach(handler, clock, threads)
    chosen = handler if limit_s is None else limited(handler, limit_s)
    return AsyncBatch(chosen, clock) if batch else AsyncEach(chosen, clock)


def limited(handler: Handler, limit_s: float) -> Handler:
    """Cancelled when it has run for so long. A call that completes all the same has succeeded."""

    async def handle(events: Any, partition: OwnedPartition) -> None:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                await handler(events, partition)  # type: ignore[misc]
        except TimeoutError as error:
            if not limit.expired():
                raise  # its own
            raise HandlerTimeout(
                f"the handler ran for more than {limit_s:g} s (handler_timeout_s) and was cancelled."
            ) from error

    return handle


def slice_ends_s(hold: Hold, now_s: float) -> float:
    """When a caller lets others in.

    The deadline only ever moves later while the hold runs, so the one of the slice's start is the careful one.
    """
    return min(hold.deadline_s, now_s + SLICE_S)


def is_async(function: object) -> bool:
    """Whether calling it gives something to await: an async def, or an object whose __call__ is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


ARGUMENTS = {
    "on_event": ("event", "partition"),
    "on_batch": ("events", "partition"),
    "on_error": ("error", "partition"),
    "on_partition_start": ("partition",),
    "on_partition_stop": ("partition", "reason"),
}


def check_handler(name: str, handler: object, arguments: tuple[str, ...] | None = None) -> None:
    """A handler or hook that could never be called is told where it is given, not when the first event comes."""
    if not callable(handler):
        raise Misconfigured(f"{name} needs a function, not {handler!r}: use @processor.{name} above a def.")
    if _is_generator(handler):
        raise Misconfigured(
            f"{name}: {getattr(handler, '__qualname__', handler)} has a yield, so that calling it would do nothing:"
            " leave the yield out."
        )
    arguments = arguments or ARGUMENTS[name]
    try:
        inspect.signature(handler).bind(*arguments)
    except TypeError:
        count = "one argument" if len(arguments) == 1 else "two arguments"
        raise Misconfigured(
            f"{name}: {getattr(handler, '__qualname__', handler)} must take {count}, ({', '.join(arguments)})."
        ) from None
    except ValueError:
        pass  # a builtin that does not tell its signature


def _is_generator(function: object) -> bool:
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(one) for kind in kinds for one in (function, getattr(function, "__call__", None)))  # noqa: B004


def refuse_awaitable(function: object, result: object) -> None:
    """A plain function around an async one or a generator: nothing runs what it returns, so nothing was done."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        name = getattr(function, "__qualname__", function)
        raise Misconfigured(
            f"{name} is a plain function, but what it returned is still to be run or awaited: make it an async def"
            " without a yield."
        )


class AsyncEach:
    whole = False

    def __init__(self, handler: Handler, clock: Clock) -> None:
        self._handler, self._clock = handler, clock

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        handler: Any = self._handler
        now, ordinal = self._clock.now, hold.done[0]
        began_s = hold.began_s = now()
        until_s = slice_ends_s(hold, began_s)
        if began_s >= until_s:
            return
        for event in events:
            if hold.stopping:
                return
            hold.current = event
            await handler(event, partition)
            ordinal += 1
            hold.done = (ordinal, event)
            if now() >= until_s:
                return


class PlainEach:
    whole = False

    def __init__(self, handler: Handler, clock: Clock, threads: Threads) -> None:
        self._handler, self._clock, self._threads = handler, clock, threads

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        await self._threads.run(self._on_thread, hold, partition, events)

    def _on_thread(self, hold: Hold, partition: OwnedPartition, events: Sequence[Event]) -> None:
        handler = self._handler
        now, ordinal = self._clock.now, hold.done[0]
        began_s = hold.began_s = now()
        until_s = slice_ends_s(hold, began_s)
        hold.thread = get_ident()
        if began_s >= until_s:
            return
        for event in events:
            if hold.stopping:
                return
            hold.current = event
            if (result := handler(event, partition)) is not None:
                refuse_awaitable(handler, result)
            ordinal += 1
            hold.done = (ordinal, event)
            if now() >= until_s:
                return


class AsyncBatch:
    whole = True

    def __init__(self, handler: Handler, clock: Clock) -> None:
        self._handler, self._clock = handler, clock

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        began_s = self._clock.now()
        if hold.may_begin(began_s):
            handler: Any = self._handler
            hold.current, hold.current_resume, hold.began_s = events, resume, began_s
            await handler(events, partition)
            hold.done = (hold.done[0] + len(events), events[-1] if resume is None else resume)


class PlainBatch:
    whole = True

    def __init__(self, handler: Handler, clock: Clock, threads: Threads) -> None:
        self._handler, self._clock, self._threads = handler, clock, threads

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        await self._threads.run(self._on_thread, hold, partition, events, resume)

    def _on_thread(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        hold.thread = get_ident()
        began_s = self._clock.now()
        if hold.may_begin(began_s):
            hold.current, hold.current_resume, hold.began_s = events, resume, began_s
            if (result := self._handler(events, partition)) is not None:
                refuse_awaitable(self._handler, result)
            hold.done = (hold.done[0] + len(events), events[-1] if resume is None else resume)
