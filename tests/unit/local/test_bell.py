from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.local import inotify
from evenflow.local.bell import Bell

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    Run = Callable[[Coroutine[Any, Any, None]], None]

DEADLINE_S = 60.0


def run_in_uvloop(main: Coroutine[Any, Any, None]) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


@pytest.fixture(params=["asyncio", "uvloop", "polling"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    if request.param == "polling":

        def absent(path: str) -> int:
            raise OSError("no inotify")

        monkeypatch.setattr(inotify, "watch_file", absent)
    return run_in_uvloop if request.param == "uvloop" else asyncio.run


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[tuple[Bell, Bell]]:
    """Two bells on one file, as two processes would have them."""
    path = tmp_path / "bell"
    here, there = Bell(path, 4), Bell(path, 4)
    yield here, there
    here.close()
    there.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        await asyncio.sleep(0.001)


def test_a_slot_that_was_never_rung_has_the_value_zero(bells: tuple[Bell, Bell]) -> None:
    assert [bells[0].value(slot) for slot in range(4)] == [0, 0, 0, 0]


def test_every_ring_leaves_a_value_that_was_never_there(bells: tuple[Bell, Bell]) -> None:
    values = []
    for turn in range(200):
        bells[turn % 2].ring(3)
        values.append(bells[0].value(3))
    assert len(set(values)) == 200
    assert bells[0].value(2) == 0


def test_a_forked_process_does_not_repeat_its_parents_values(bells: tuple[Bell, Bell]) -> None:
    bell = bells[0]
    bell.ring(0)
    child = os.fork()
    if child == 0:
        bell.ring(1)
        os._exit(0)
    os.waitpid(child, 0)
    bell.ring(2)
    assert bell.value(1) != 0
    assert bell.value(1) >> 32 != bell.value(2) >> 32


def test_a_ring_elsewhere_calls_the_watchers(run: Run, bells: tuple[Bell, Bell]) -> None:
    async def main() -> None:
        here, there = bells
        calls: list[str] = []
        end_any = here.watch(lambda: calls.append("any"))
        end_one = here.watch(lambda: calls.append("one"), slot=1)
        here.watch(lambda: calls.append("two"), slot=2)
        there.ring(1)
        await until(lambda: {"any", "one"} <= set(calls))
        assert "two" not in calls
        end_any()
        end_one()
        calls.clear()
        there.ring(1)
        there.ring(2)
        await until(lambda: "two" in calls)
        assert set(calls) == {"two"}

    run(main())


def test_a_reader_that_compares_values_misses_no_ring(run: Run, bells: tuple[Bell, Bell]) -> None:
    """A writer counts up and rings; the reader waits only while the value is the one from before it looked."""
    goal = 300

    async def main() -> None:
        here, there = bells
        done = 0
        wakes = 0
        called = asyncio.Event()
        here.watch(called.set, slot=0)

        def write() -> None:
            nonlocal done
            for _ in range(goal):
                done += 1
                there.ring(0)
                time.sleep(0.0002)

        writer = asyncio.create_task(asyncio.to_thread(write))
        seen = 0
        async with asyncio.timeout(DEADLINE_S):
            while seen < goal:
                called.clear()
                value = here.value(0)
                seen = done
                if seen < goal and here.value(0) == value:
                    await called.wait()
                    wakes += 1
        await writer
        assert wakes > 0

    run(main())


def test_the_files_deletion_calls_everybody(run: Run, bells: tuple[Bell, Bell]) -> None:
    async def main() -> None:
        bell = bells[0]
        calls: list[int] = []
        bell.watch(lambda: calls.append(1), slot=1)
        assert not bell.gone()
        os.unlink(bell.path)
        await until(lambda: bool(calls))
        assert bell.gone()

    run(main())


def test_watchers_of_a_loop_share_one_descriptor_and_give_it_back(bells: tuple[Bell, Bell]) -> None:
    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        ends = [bells[0].watch(lambda: None, slot=slot) for slot in range(4)]
        assert len(os.listdir("/proc/self/fd")) == before + 1
        for end in ends:
            end()
            end()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


@pytest.mark.parametrize("run", ["polling"], indirect=True)
def test_a_watch_that_ends_in_its_own_call_stops_the_polling(run: Run, bells: tuple[Bell, Bell]) -> None:
    async def main() -> None:
        calls: list[int] = []

        def called() -> None:
            calls.append(1)
            end()

        end = bells[0].watch(called)
        bells[1].ring(0)
        await until(lambda: bool(calls))
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert [timer for timer in timers if not timer.cancelled()] == []

    run(main())


def test_a_ring_on_a_full_disk_does_not_fail(bells: tuple[Bell, Bell], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    bells[0].ring(0)


def test_there_may_be_more_slots_later(bells: tuple[Bell, Bell]) -> None:
    here, there = bells
    there.grow(9)
    there.ring(8)
    here.grow(9)
    assert here.value(8) == there.value(8) != 0
    with pytest.raises(AssertionError):
        here.ring(9)


def test_inotify_says_why_a_file_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inotify.watch_file(str(tmp_path / "missing"))
