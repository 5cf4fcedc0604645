"""The four ways to call a handler: for each event or a batch, async or plain. The hottest lines of the project.

A caller begins no call unless the hold may begin one: it looks at the clock before each. It records progress after
each, and returns when all is handled, when the hold stops, or when its slice of time is over (so that other
partitions and the beat get their turn). What a handler raises passes through; progress tells how far it came.
"""

from __future__ import annotations

import inspect
from math import inf
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
    """A caller whose calls count as failed when they took longer than `limit_s`, once they have returned."""
    plain = not is_async(handler)
    most_s = inf if limit_s is None else limit_s
    if batch:
        return PlainBatch(handler, clock, threads, most_s) if plain else AsyncBatch(handler, clock, most_s)
    return PlainEach(handler, clock, threads, most_s) if plain else AsyncEach(handler, clock, most_s)


def slice_ends_s(hold: Hold, now_s: float, limit_s: float) -> float:
    """When a caller lets others in. A call that takes longer than the limit always ends its slice.

    The deadline only ever moves later while the hold runs, so the one of the slice's start is the careful one.
    """
    return min(hold.deadline_s, now_s + min(SLICE_S, limit_s))


def overran(taken_s: float, limit_s: float) -> HandlerTimeout:
    return HandlerTimeout(
        f"the handler took {taken_s:.1f} s, and handler_timeout_s is {limit_s:g}: it counts as failed."
    )


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

    def __init__(self, handler: Handler, clock: Clock, limit_s: float = inf) -> None:
        self._handler, self._clock, self._limit_s = handler, clock, limit_s

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        handler: Any = self._handler
        now, limit_s = self._clock.now, self._limit_s
        ordinal = hold.done[0]
        began_s = hold.began_s = now()
        until_s = slice_ends_s(hold, began_s, limit_s)
        if began_s >= until_s:
            return
        for event in events:
            if hold.stopping:
                return
            hold.current = event
            await handler(event, partition)
            ended_s = now()
            if ended_s >= until_s and ended_s - began_s > limit_s:
                raise overran(ended_s - began_s, limit_s)
            ordinal += 1
            hold.done = (ordinal, event)
            if ended_s >= until_s:
                return
            began_s = ended_s


class PlainEach:
    whole = False

    def __init__(self, handler: Handler, clock: Clock, threads: Threads, limit_s: float = inf) -> None:
        self._handler, self._clock, self._threads, self._limit_s = handler, clock, threads, limit_s

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        await self._threads.run(self._on_thread, hold, partition, events)

    def _on_thread(self, hold: Hold, partition: OwnedPartition, events: Sequence[Event]) -> None:
        handler = self._handler
        now, limit_s = self._clock.now, self._limit_s
        ordinal = hold.done[0]
        began_s = hold.began_s = now()
        until_s = slice_ends_s(hold, began_s, limit_s)
        hold.thread = get_ident()
        if began_s >= until_s:
            return
        for event in events:
            if hold.stopping:
                return
            hold.current = event
            if (result := handler(event, partition)) is not None:
                refuse_awaitable(handler, result)
            ended_s = now()
            if ended_s >= until_s and ended_s - began_s > limit_s:
                raise overran(ended_s - began_s, limit_s)
            ordinal += 1
            hold.done = (ordinal, event)
            if ended_s >= until_s:
                return
            began_s = ended_s


class AsyncBatch:
    whole = True

    def __init__(self, handler: Handler, clock: Clock, limit_s: float = inf) -> None:
        self._handler, self._clock, self._limit_s = handler, clock, limit_s

    async def __call__(
        self, hold: Hold, partition: OwnedPartition, events: Sequence[Event], resume: Position | None
    ) -> None:
        began_s = self._clock.now()
        if hold.may_begin(began_s):
            handler: Any = self._handler
            hold.current, hold.current_resume, hold.began_s = events, resume, began_s
            await handler(events, partition)
            if (taken_s := self._clock.now() - began_s) > self._limit_s:
                raise overran(taken_s, self._limit_s)
            hold.done = (hold.done[0] + len(events), events[-1] if resume is None else resume)


class PlainBatch:
    whole = True

    def __init__(self, handler: Handler, clock: Clock, threads: Threads, limit_s: float = inf) -> None:
        self._handler, self._clock, self._threads, self._limit_s = handler, clock, threads, limit_s

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
            if (taken_s := self._clock.now() - began_s) > self._limit_s:
                raise overran(taken_s, self._limit_s)
            hold.done = (hold.done[0] + len(events), events[-1] if resume is None else resume)
