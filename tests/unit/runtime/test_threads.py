"""Threads for plain handlers: as many as there are calls at the same time, reused, never waited for."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.runtime.threads import Threads
from tests.unit.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 60.0


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads("tested")
    yield threads
    threads.close()


def where() -> threading.Thread:
    return threading.current_thread()


async def test_it_runs_on_a_daemon_thread_that_is_named(threads: Threads) -> None:
    thread = await threads.run(where)
    assert thread is not threading.current_thread()
    assert thread.daemon, "a handler that hangs must not keep the process from leaving"
    assert thread.name == "tested-1"


async def test_arguments_go_in_and_the_result_comes_back(threads: Threads) -> None:
    assert await threads.run(divmod, 17, 5) == (3, 2)


async def test_one_after_the_other_runs_on_one_thread(threads: Threads) -> None:
    assert len({await threads.run(where) for _ in range(10)}) == 1


async def test_calls_at_the_same_time_have_a_thread_each(threads: Threads) -> None:
    together = threading.Barrier(5)

    def meet() -> threading.Thread:
        together.wait(WAIT_S)
        return where()

    met = await asyncio.gather(*(threads.run(meet) for _ in range(5)))
    assert len(set(met)) == 5
    again = await asyncio.gather(*(threads.run(meet) for _ in range(5)))
    assert set(again) == set(met), "they are reused"


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError("k"), asyncio.CancelledError()])
async def test_what_is_raised_comes_back(threads: Threads, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await threads.run(fail)
    assert await threads.run(where), "and the thread lives"


async def test_a_stop_iteration_becomes_an_error_that_a_future_can_carry(threads: Threads) -> None:
    def fail() -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match=r"a handler raised StopIteration\(\)"):
        await threads.run(fail)


async def test_when_cancelled_the_call_goes_on_and_its_result_is_dropped(threads: Threads) -> None:
    may_end, ended = threading.Event(), threading.Event()

    def slow() -> threading.Thread:
        may_end.wait(WAIT_S)
        ended.set()
        return where()

    running = asyncio.create_task(threads.run(slow))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    other = await threads.run(where)
    may_end.set()
    await until(lambda: len(threads._idle) == 2)
    assert ended.is_set()
    assert await threads.run(where) is not other, "the one that came back last is used first"


async def test_close_ends_the_idle_ones(threads: Threads) -> None:
    thread: threading.Thread = await threads.run(where)
    threads.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


async def test_after_close_the_busy_ones_end_when_their_call_returns(threads: Threads) -> None:
    may_end = threading.Event()
    found: list[threading.Thread] = []

    def slow() -> None:
        found.append(where())
        may_end.wait(WAIT_S)

    running = asyncio.create_task(threads.run(slow))
    await until(lambda: found)
    threads.close()
    may_end.set()
    await running
    await asyncio.to_thread(found[0].join, WAIT_S)
    assert not found[0].is_alive()


def test_a_call_that_outlives_its_loop_ends_its_thread() -> None:
    threads, may_end = Threads("outlived"), threading.Event()
    found: list[threading.Thread] = []

    def slow() -> None:
        found.append(where())
        may_end.wait(WAIT_S)

    async def main() -> Any:
        running = asyncio.create_task(threads.run(slow))
        await until(lambda: found)
        running.cancel()

    asyncio.run(main())
    may_end.set()
    found[0].join(WAIT_S)
    assert not found[0].is_alive()
