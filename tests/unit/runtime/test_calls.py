"""The four ways to call a handler: each looks before every call, and progress tells how far it came."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest

from evenflow import Misconfigured
from evenflow.model import Checkpoint
from evenflow.runtime.calls import (
    SLICE_S,
    AsyncBatch,
    AsyncEach,
    Caller,
    PlainBatch,
    PlainEach,
    caller_for,
    check_handler,
    is_async,
)
from evenflow.runtime.hold import Hold
from tests.unit.runtime.stage import at, events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow import Event, OwnedPartition
    from evenflow.ports import Clock
    from evenflow.runtime.threads import Threads

PARTITION = cast("OwnedPartition", object())
KINDS = ["async event", "plain event", "async batch", "plain batch"]
EACH = KINDS[:2]
WHOLE = KINDS[2:]


class HandClock:
    """Stands still unless a handler moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s


class Here:
    """Runs what belongs on a thread in place."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Call:
    """A caller with a hold, and a handler that notes what it sees and then does as it is told."""

    def __init__(self, kind: str, do: Callable[[Call], None] | None = None) -> None:
        self.clock = HandClock()
        self.hold = Hold("0", 3, deadline_s=100.0)
        self.hold.begin(Checkpoint(partition="0", epoch=3, position=at(-1), ordinal=20), 0.0)
        self.given: list[Any] = []
        self.done_before: list[int] = []
        self._do = do

        def note(given: Any, partition: OwnedPartition) -> None:
            assert partition is PARTITION
            assert self.hold.current is given
            self.given.append(given)
            self.done_before.append(self.hold.done[0])
            if self._do is not None:
                self._do(self)

        async def note_async(given: Any, partition: OwnedPartition) -> None:
            note(given, partition)

        self.caller: Caller = caller_for(
            note_async if "async" in kind else note,
            batch="batch" in kind,
            clock=cast("Clock", self.clock),
            threads=cast("Threads", Here()),
        )

    async def __call__(self, events: Sequence[Event], resume: int | None = None) -> None:
        await self.caller(self.hold, PARTITION, events, at(resume) if resume is not None else None)


@pytest.mark.parametrize(
    ("kind", "caller", "whole"),
    [
        ("async event", AsyncEach, False),
        ("plain event", PlainEach, False),
        ("async batch", AsyncBatch, True),
        ("plain batch", PlainBatch, True),
    ],
)
def test_the_handler_chooses_its_caller(kind: str, caller: type, whole: bool) -> None:
    chosen = Call(kind).caller
    assert type(chosen) is caller
    assert chosen.whole is whole


@pytest.mark.parametrize("kind", EACH)
async def test_each_event_in_order_with_progress_after_each(kind: str) -> None:
    call, given = Call(kind), events(3)
    await call(given)
    assert call.given == given
    assert call.done_before == [20, 21, 22]
    assert call.hold.done == (23, given[-1])


@pytest.mark.parametrize("kind", WHOLE)
async def test_a_batch_at_once_with_progress_after_it(kind: str) -> None:
    call, given = Call(kind), events(3)
    await call(given, resume=9)
    assert call.given == [given]
    assert call.done_before == [20]
    assert call.hold.done == (23, at(9))


@pytest.mark.parametrize("kind", WHOLE)
async def test_a_batch_without_a_position_of_its_own_ends_at_its_last_event(kind: str) -> None:
    call, given = Call(kind), events(3)
    await call(given)
    assert call.hold.done == (23, given[-1])


@pytest.mark.parametrize("kind", WHOLE)
async def test_a_batch_handler_can_mark_where_the_batch_resumes(kind: str) -> None:
    resumes: list[Any] = []
    call = Call(kind, lambda call: resumes.append(call.hold.current_resume))
    await call(events(3), resume=9)
    assert resumes == [at(9)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("now_s", "calls"), [(99.9, True), (100.0, False)])
async def test_no_call_begins_after_the_deadline(kind: str, now_s: float, calls: bool) -> None:
    call = Call(kind)
    call.clock.now_s = now_s
    await call(events(3))
    assert bool(call.given) is calls
    assert (call.hold.done[0] > 20) is calls


@pytest.mark.parametrize("kind", KINDS)
async def test_no_call_begins_once_the_hold_stops(kind: str) -> None:
    call = Call(kind)
    call.hold.stop("handed over")
    await call(events(3))
    assert call.given == []
    assert call.hold.done == (20, at(-1))


@pytest.mark.parametrize("kind", EACH)
async def test_it_looks_at_the_clock_before_each_call(kind: str) -> None:
    """The process was stopped inside the second call, and went on after the deadline."""

    def stall(call: Call) -> None:
        call.clock.now_s += 200.0 if len(call.given) == 2 else 0.0

    call = Call(kind, stall)
    await call(events(5))
    assert len(call.given) == 2
    assert call.hold.done[0] == 22, "the call that ran is done, whatever the time"


@pytest.mark.parametrize("kind", EACH)
async def test_it_looks_at_the_hold_before_each_call(kind: str) -> None:
    call = Call(kind, lambda call: call.hold.stop("lost") if len(call.given) == 2 else None)
    await call(events(5))
    assert len(call.given) == 2
    assert call.hold.done[0] == 22


@pytest.mark.parametrize("kind", EACH)
async def test_others_get_their_turn_after_a_slice_of_time(kind: str) -> None:
    def take(call: Call) -> None:
        call.clock.now_s += SLICE_S / 2

    call, given = Call(kind, take), events(5)
    await call(given)
    assert call.given == given[:2]
    await call(given[2:])
    assert call.given == given[:4]
    assert call.done_before == [20, 21, 22, 23]


@pytest.mark.parametrize("kind", EACH)
async def test_a_deadline_that_moves_later_counts_from_the_next_slice_on(kind: str) -> None:
    def heartbeat(call: Call) -> None:
        call.hold.deadline_s, call.clock.now_s = 300.0, 100.0

    call, given = Call(kind, heartbeat), events(3)
    call.clock.now_s = 99.99
    await call(given)
    assert call.given == given[:1]
    await call(given[1:])
    assert call.given == given


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_handler_raises_passes_through_and_progress_tells_how_far_it_came(kind: str) -> None:
    def fail(call: Call) -> None:
        if len(call.given) == (1 if "batch" in kind else 3):
            raise KeyError("broken")

    call, given = Call(kind, fail), events(5)
    with pytest.raises(KeyError, match="broken"):
        await call(given)
    assert call.hold.done == ((20, at(-1)) if "batch" in kind else (22, given[1]))


@pytest.mark.parametrize("kind", ["plain event", "plain batch"])
async def test_a_plain_function_around_an_async_one_is_refused_and_nothing_counts_as_handled(kind: str) -> None:
    """Nobody would await what it returns: all events would count as handled, and none would be."""

    async def handle(*_: object) -> None:
        raise AssertionError("it never runs")

    made: list[Any] = []

    def wrapped(*args: object) -> Any:
        made.append(handle(*args))
        return made[0]

    call = Call(kind)
    caller = caller_for(
        wrapped, batch="batch" in kind, clock=cast("Clock", call.clock), threads=cast("Threads", Here())
    )
    with pytest.raises(Misconfigured, match=r"wrapped is a plain function.*make it an async def"):
        await caller(call.hold, PARTITION, events(2), None)
    assert call.hold.done == (20, at(-1))
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


@pytest.mark.parametrize("batch", [True, False])
async def test_what_a_plain_handler_returns_otherwise_does_not_matter(batch: bool) -> None:
    call = Call("plain event")
    caller = caller_for(
        lambda event, partition: cast("None", 7),
        batch=batch,
        clock=cast("Clock", call.clock),
        threads=cast("Threads", Here()),
    )
    await caller(call.hold, PARTITION, events(2), None)
    assert call.hold.done[0] == 22


# --- what is a handler
class Callable_:
    def __call__(self, event: object, partition: object) -> None: ...


class AsyncCallable:
    async def __call__(self, event: object, partition: object) -> None: ...

    async def method(self, event: object, partition: object) -> None: ...


async def handle(event: object, partition: object, extra: int = 0) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (handle, True),
        (AsyncCallable(), True),
        (AsyncCallable().method, True),
        (functools.partial(handle, extra=1), True),
        (Callable_(), False),
        (lambda event, partition: None, False),
        (print, False),
    ],
)
def test_async_is_what_gives_something_to_await(function: object, expected: bool) -> None:
    assert is_async(function) is expected


@pytest.mark.parametrize("handler", [handle, AsyncCallable(), Callable_(), print, lambda *everything: None])
def test_whatever_takes_two_arguments_is_a_handler(handler: object) -> None:
    check_handler("on_event", handler)


@pytest.mark.parametrize("handler", [None, "handle", 7])
def test_what_is_no_callable_is_refused(handler: object) -> None:
    with pytest.raises(Misconfigured, match=rf"on_event needs a function, not {handler!r}: use @processor.on_event"):
        check_handler("on_event", handler)


def test_a_wrong_number_of_arguments_is_refused() -> None:
    def lonely(event: object) -> None: ...

    with pytest.raises(Misconfigured, match=r"lonely must take two arguments, \(event, partition\)"):
        check_handler("on_event", lonely)
    with pytest.raises(Misconfigured, match=r"must take two arguments, \(events, partition\)"):
        check_handler("on_batch", lambda one, two, three: None)


def test_a_builtin_that_does_not_tell_its_arguments_is_taken_at_its_word() -> None:
    check_handler("on_event", max)
