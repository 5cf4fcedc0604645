"""Threads in virtual time: one at a time, at moments that the timeline gives them."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING

import pytest

from evenflow.runtime.threads import Threads
from evenflow.testing.simulated.threads import SimulatedThreads
from evenflow.testing.simulated.timeline import ProcessLoop, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator


class Scene:
    """A process with threads that are never late by more than two milliseconds."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.loop = ProcessLoop(self.timeline)  # type: ignore[abstract]
        self.system = SimulatedThreads(self.timeline, self.loop, random.Random(1), calm=True)
        self.threads = Threads("test", self.system)
        self.lines: list[tuple[str, int]] = []

    def note(self, line: str) -> None:
        self.lines.append((line, int(self.timeline.now_s)))

    def call(self, seconds: float) -> str:
        """On a thread."""
        self.note("begin")
        self.system.sleep(seconds)
        self.note("end")
        return "done"


@pytest.fixture
def scene() -> Iterator[Scene]:
    before = threading.active_count()
    scene = Scene()
    yield scene
    scene.system.end()
    assert threading.active_count() == before


def test_a_call_takes_its_time_while_the_loop_goes_on(scene: Scene) -> None:
    task = scene.loop.start(scene.threads.run(scene.call, 5.5))
    scene.loop.call_later(3.0, scene.note, "loop")
    scene.timeline.run_until(10.0)
    assert scene.lines == [("begin", 0), ("loop", 3), ("end", 5)]
    assert task.result() == "done"


def test_a_thread_is_used_again(scene: Scene) -> None:
    async def twice() -> set[int]:
        return {await scene.threads.run(threading.get_ident) for _ in range(2)}

    task = scene.loop.start(twice())
    scene.timeline.run_until(1.0)
    assert len(task.result()) == 1
    assert threading.get_ident() not in task.result()


def test_a_thread_goes_on_while_its_loop_is_blocked(scene: Scene) -> None:
    task = scene.loop.start(scene.threads.run(scene.call, 2.5))

    async def block() -> None:
        scene.loop.freeze(8.0, loop_alone=True)
        scene.note("free")
        assert not task.done(), "its answer waits for the loop"

    scene.loop.call_later(1.0, lambda: scene.loop.start(block()))
    scene.timeline.run_until(10.0)
    assert scene.lines == [("begin", 0), ("end", 2), ("free", 9)]
    assert task.done()
    assert scene.loop.errors == []


def test_a_thread_stands_still_while_its_process_does(scene: Scene) -> None:
    scene.loop.start(scene.threads.run(scene.call, 2.5))
    scene.timeline.push(1.0, scene.loop.stall)
    scene.timeline.push(7.0, scene.loop.resume)
    scene.timeline.run_until(10.0)
    assert scene.lines == [("begin", 0), ("end", 7)]


def test_a_thread_may_stop_its_process(scene: Scene) -> None:
    def call() -> None:
        scene.system.freeze(6.5)
        scene.note("after")

    scene.loop.start(scene.threads.run(call))
    scene.loop.call_later(1.0, scene.note, "loop")
    scene.timeline.run_until(10.0)
    assert sorted(scene.lines) == [("after", 6), ("loop", 6)]


def test_a_thread_of_a_dead_process_never_goes_on(scene: Scene) -> None:
    scene.loop.start(scene.threads.run(scene.call, 2.5))
    scene.timeline.run_until(1.0)
    scene.loop.dead = True
    scene.timeline.run_until(10.0)
    assert scene.lines == [("begin", 0)]


def test_a_thread_waits_for_what_it_asks_of_its_loop(scene: Scene) -> None:
    async def work() -> str:
        await asyncio.sleep(3.5)
        return "worked"

    async def fail() -> None:
        raise ValueError("no")

    def call() -> str:
        scene.note(scene.system.wait_for(work(), scene.loop))
        with pytest.raises(ValueError, match="no"):
            scene.system.wait_for(fail(), scene.loop)
        return "done"

    task = scene.loop.start(scene.threads.run(call))
    scene.timeline.run_until(10.0)
    assert scene.lines == [("worked", 3)]
    assert task.result() == "done"
    assert scene.loop.errors == []
