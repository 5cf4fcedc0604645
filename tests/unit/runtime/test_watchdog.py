"""A handler that blocks the event loop is reported, with its stack."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from evenflow.runtime import watchdog
from evenflow.runtime.watchdog import LoopWatch
from evenflow.signals import LoopBlocked, Signal
from tests.unit.runtime.stage import until

WAIT_S = 10.0
LIMIT_S = 0.02


class Told:
    """Stands where the announcer does, and knows when a stack was taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[tuple[type[Signal], dict[str, Any]]] = []
        self.stack_taken = threading.Event()
        stack_of = watchdog._stack_of

        def taken(thread_id: int) -> str:
            stack = stack_of(thread_id)
            if "a_handler_that_blocks" in stack:  # on a busy machine, others may be slow as well
                self.stack_taken.set()
            return stack

        monkeypatch.setattr(watchdog, "_stack_of", taken)

    def __call__(self, kind: type[Signal], **facts: Any) -> None:
        self.all.append((kind, facts))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def watch(told: Told) -> LoopWatch:
    return LoopWatch(told, LIMIT_S)  # type: ignore[arg-type]


def a_handler_that_blocks(told: Told) -> None:
    told.stack_taken.wait(WAIT_S)


async def test_a_blocked_loop_is_told_with_the_stack_that_blocks_it(told: Told) -> None:
    watching = watch(told)
    watching.start()
    try:
        a_handler_that_blocks(told)
        await until(lambda: "a_handler_that_blocks" in str(told.all), WAIT_S)
    finally:
        watching.stop()
    kind, facts = told.all[-1]
    assert kind is LoopBlocked
    assert facts["seconds"] >= LIMIT_S


class Rounds(threading.Event):
    """Lets the watch go round so many times, without a wait."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


async def test_a_loop_that_runs_is_not_told_of(told: Told) -> None:
    rounds = Rounds(5)
    watching = LoopWatch(told, WAIT_S)  # type: ignore[arg-type]
    await asyncio.to_thread(watching._live, rounds, asyncio.get_running_loop(), threading.get_ident())
    assert rounds.left < 0
    assert told.all == []
    assert not told.stack_taken.is_set()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "evenflow-loop-watch"]


async def test_it_ends_when_it_is_stopped_and_can_start_again(told: Told) -> None:
    watching = watch(told)
    for _ in range(2):
        watching.start()
        (thread,) = threads()
        assert thread.daemon
        watching.stop()
        await asyncio.to_thread(thread.join, WAIT_S)
        assert not thread.is_alive()


def test_it_ends_with_its_loop(told: Told) -> None:
    watching = watch(told)

    async def main() -> None:
        watching.start()

    asyncio.run(main())
    for thread in threads():
        thread.join(WAIT_S)
    assert threads() == []


def test_the_stack_of_a_thread_that_is_gone() -> None:
    assert watchdog._stack_of(-1) == "(the thread is gone)"
