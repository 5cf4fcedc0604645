"""Virtual time: in order, as fast as it goes, with processes that stall, die and have clocks of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.testing.simulated import timeline as module
from evenflow.testing.simulated.timeline import ProcessLoop, Timeline, TimeStandsStill

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def process(timeline: Timeline, rate: float = 1.0, start_s: float = 0.0) -> ProcessLoop:
    return ProcessLoop(timeline, rate=rate, start_s=start_s)  # type: ignore[abstract]


def note(lines: list[object], line: object) -> Callable[[], None]:
    return lambda: lines.append(line)


# --- the timeline
def test_pieces_run_in_order_of_time_and_those_of_one_time_in_order_of_arrival(timeline: Timeline) -> None:
    lines: list[object] = []
    for at_s, line in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        timeline.push(at_s, note(lines, line))
    timeline.run_until(10.0)
    assert lines == ["a", "b", "c", "d"]
    assert timeline.is_empty


def test_it_stops_where_it_is_told_to(timeline: Timeline) -> None:
    lines: list[object] = []
    for at_s in (1.0, 2.0, 2.5):
        timeline.push(at_s, note(lines, at_s))
    timeline.run_until(2.0)
    assert (lines, timeline.now_s, timeline.is_empty) == ([1.0, 2.0], 2.0, False)
    timeline.run_until(1.0)
    assert timeline.now_s == 2.0, "and never goes back"


def test_each_piece_sees_its_own_time(timeline: Timeline) -> None:
    seen: list[float] = []
    for at_s in (0.5, 3.0, 7.25):
        timeline.push(at_s, lambda: seen.append(timeline.now_s))
    timeline.run_until(100.0)
    assert seen == [0.5, 3.0, 7.25]
    assert timeline.now_s == 100.0


def test_what_should_have_been_is_done_now(timeline: Timeline) -> None:
    timeline.run_until(5.0)
    seen: list[float] = []
    timeline.push(1.0, lambda: seen.append(timeline.now_s))
    timeline.run_until(5.0)
    assert seen == [5.0]


def test_something_that_spins_is_found(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECES_AT_ONCE_MAX", 100)

    def again() -> None:
        timeline.push(timeline.now_s, again)

    timeline.push(3.0, again)
    with pytest.raises(TimeStandsStill, match=r"at 3\.000 s"):
        timeline.run_until(10.0)


def test_many_pieces_are_no_spin_as_long_as_time_passes(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECES_AT_ONCE_MAX", 10)
    for number in range(1000):
        timeline.push(number / 10, lambda: None)
    timeline.run_until(1000.0)


# --- a process
def test_coroutines_run_and_sleep_in_virtual_time(timeline: Timeline) -> None:
    loop = process(timeline)

    async def main() -> tuple[float, str]:
        await asyncio.sleep(3600.0)
        return loop.time(), "done"

    task = loop.start(main())
    timeline.run_until(3599.0)
    assert not task.done()
    timeline.run_until(3601.0)
    assert task.result() == (3600.0, "done")


def test_what_asyncio_is_made_of_works(timeline: Timeline) -> None:
    loop = process(timeline)

    async def late() -> None:
        async with asyncio.timeout(5.0):
            await asyncio.sleep(10.0)

    async def main() -> list[object]:
        assert asyncio.get_running_loop() is loop
        queue: asyncio.Queue[int] = asyncio.Queue()
        loop.call_later(2.0, queue.put_nowait, 7)
        got = await queue.get()
        failed = await asyncio.gather(late(), return_exceptions=True)
        done, pending = await asyncio.wait([asyncio.create_task(asyncio.sleep(100.0))], timeout=1.0)
        for task in pending:
            task.cancel()
        return [got, type(failed[0]), len(done), loop.time()]

    task = loop.start(main())
    timeline.run_until(100.0)
    assert task.result() == [7, TimeoutError, 0, 8.0]


def test_a_cancelled_timer_does_not_run(timeline: Timeline) -> None:
    loop, lines = process(timeline), list[object]()
    timer = loop.call_later(1.0, lines.append, "never")
    loop.call_later(0.5, timer.cancel)
    timeline.run_until(2.0)
    assert lines == []


def test_clocks_start_anywhere_and_run_fast_or_slow(timeline: Timeline) -> None:
    fast, slow = process(timeline, rate=2.0, start_s=1000.0), process(timeline, rate=0.5)
    woken: dict[str, float] = {}

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken[name] = timeline.now_s

    fast.start(sleep("fast", 10.0))
    slow.start(sleep("slow", 10.0))
    assert (fast.time(), slow.time()) == (1000.0, 0.0)
    timeline.run_until(30.0)
    assert woken == {"fast": 5.0, "slow": 20.0}
    assert (fast.time(), slow.time()) == (1060.0, 15.0)


def test_a_stalled_process_does_nothing_and_then_all_at_once_in_order(timeline: Timeline) -> None:
    loop, other = process(timeline), process(timeline)
    lines: list[object] = []
    for at_s in (1.0, 2.0, 3.0):
        loop.call_at(at_s, lambda at_s=at_s: lines.append((at_s, timeline.now_s)))
    other.call_at(2.0, lines.append, "the other goes on")
    loop.stall()
    timeline.run_until(2.5)
    assert lines == ["the other goes on"]
    assert loop.stalled
    loop.resume()
    timeline.run_until(10.0)
    assert lines == ["the other goes on", (1.0, 2.5), (2.0, 2.5), (3.0, 3.0)]


def test_two_stalls_need_two_resumes(timeline: Timeline) -> None:
    loop, lines = process(timeline), list[object]()
    loop.stall()
    loop.stall()
    loop.call_soon(lines.append, "run")
    timeline.run_until(1.0)
    loop.resume()
    timeline.run_until(2.0)
    assert (lines, loop.stalled) == ([], True)
    loop.resume()
    timeline.run_until(3.0)
    assert (lines, loop.stalled) == (["run"], False)


def test_a_dead_process_does_nothing_any_more(timeline: Timeline) -> None:
    loop, lines = process(timeline), list[object]()
    loop.call_at(1.0, lines.append, "alive")
    loop.call_at(2.0, lines.append, "dead")
    timeline.run_until(1.5)
    loop.dead = True
    timeline.run_until(10.0)
    assert lines == ["alive"]


def test_a_process_may_freeze_in_the_middle_of_a_line(timeline: Timeline) -> None:
    loop, other = process(timeline), process(timeline)
    lines: list[object] = []

    async def freezes() -> None:
        lines.append(("before", loop.time()))
        loop.freeze(5.0)
        lines.append(("after", loop.time()))
        assert asyncio.get_running_loop() is loop

    loop.call_later(1.0, lines.append, "late")
    other.call_later(1.0, lines.append, "in time")
    task = loop.start(freezes())
    timeline.run_until(0.0)
    assert lines == [("before", 0.0), "in time", ("after", 5.0)]
    timeline.run_until(5.0)
    assert lines[3:] == ["late"]
    assert task.done()


def test_several_processes_take_turns_and_each_is_in_its_own_loop(timeline: Timeline) -> None:
    loops = [process(timeline) for _ in range(3)]

    async def where() -> asyncio.AbstractEventLoop:
        await asyncio.sleep(1.0)
        return asyncio.get_running_loop()

    tasks = [loop.start(where()) for loop in loops]
    timeline.run_until(2.0)
    assert [task.result() for task in tasks] == loops
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_an_error_that_nobody_catches_is_kept(timeline: Timeline) -> None:
    loop = process(timeline)

    def fail() -> None:
        raise ValueError("in a callback")

    loop.call_soon(fail)
    timeline.run_until(1.0)
    (error,) = loop.errors
    assert str(error["exception"]) == "in a callback"


def test_at_the_end_every_coroutine_is_ended_properly(timeline: Timeline) -> None:
    loop, lines = process(timeline), list[object]()

    async def long() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            lines.append("cleaned up")

    task = loop.start(long())
    timeline.run_until(1.0)
    assert loop.cancel_all() == 1
    timeline.run_until(2.0)
    assert (lines, task.cancelled(), loop.cancel_all()) == (["cleaned up"], True, 0)
