"""A process has three clocks: timers follow one, deadlines another, and people read the third."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every
from evenflow.signals import Fenced
from evenflow.testing.simulated.clocks import BootClock, LoopClock
from evenflow.testing.simulated.timeline import ProcessLoop, Timeline
from tests.unit.runtime.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow import Event, OwnedPartition

PATIENCE_S = 7.0


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


def process(timeline: Timeline, rate: float = 1.0, start_s: float = 0.0) -> ProcessLoop:
    return ProcessLoop(timeline, rate=rate, start_s=start_s)  # type: ignore[abstract]


def fired(loop: ProcessLoop, timeline: Timeline, *delays_s: float) -> list[float]:
    """When timers with these delays fire, in true time."""
    found: list[float] = []
    for delay_s in delays_s:
        loop.call_later(delay_s, lambda: found.append(timeline.now_s))
    return found


def test_a_clock_that_stands_still_goes_on_where_it_stood() -> None:
    clock = LoopClock(rate=2.0, start_s=100.0)
    clock.stand_still(5.0, 10.0)
    assert [clock.at(true_s) for true_s in (5.0, 9.0, 15.0, 16.0)] == [110.0, 110.0, 110.0, 112.0]
    assert (clock.when(112.0), clock.when(110.0)) == (16.0, 0.0)


def test_it_stands_still_no_longer_when_it_does_so_twice_at_once() -> None:
    clock = LoopClock()
    clock.stand_still(5.0, 10.0)
    clock.stand_still(6.0, 4.0)
    assert (clock.at(15.0), clock.at(16.0)) == (5.0, 6.0)


def test_timers_are_late_by_as_much_as_the_clock_stood_still(timeline: Timeline) -> None:
    loop = process(timeline, start_s=1000.0)
    found = fired(loop, timeline, 1.0, 3.0, 8.0)
    timeline.run_until(2.0)
    loop.stand_still(5.0)
    later = fired(loop, timeline, 0.0, 1.0)
    timeline.run_until(30.0)
    assert found == [1.0, 8.0, 13.0]
    assert later == [2.0, 8.0]


def test_timers_are_early_when_the_clock_leaps_and_each_fires_once(timeline: Timeline) -> None:
    loop = process(timeline)
    found = fired(loop, timeline, 1.0, 3.0, 8.0)
    timeline.run_until(2.0)
    loop.leap(5.0)
    timeline.run_until(30.0)
    assert found == [1.0, 2.0, 3.0]


def test_a_suspended_machine_runs_nothing_and_its_timers_do_not_go_on(timeline: Timeline) -> None:
    loop, boot = process(timeline), BootClock(timeline)
    found = fired(loop, timeline, 1.0, 3.0)
    timeline.run_until(2.0)
    loop.suspend(10.0)
    loop.call_soon(found.append, -1.0)
    timeline.run_until(11.0)
    assert (found, loop.time(), boot.now()) == ([1.0], 2.0, 11.0)
    timeline.run_until(30.0)
    assert found == [1.0, -1.0, 13.0]


def test_a_rounding_error_makes_no_timer_fire_for_ever(timeline: Timeline) -> None:
    """What waits until a time, and looks at the clock when its timer fires, would wait for the same moment again."""
    woken = 0

    async def wait() -> None:
        nonlocal woken
        end_s = loop.time() + delay_s
        while loop.time() < end_s:
            woken += 1
            timer = loop.create_future()
            loop.call_at(end_s, timer.set_result, None)
            await timer

    rng = random.Random(1)
    for _ in range(2000):
        delay_s = rng.uniform(0.1, 0.9)
        loop = process(timeline, rate=rng.uniform(0.97, 1.03), start_s=rng.uniform(0.0, 1e6))
        loop.start(wait())
        timeline.run_until(timeline.now_s + rng.uniform(1.0, 2.0))
    assert 2000 < woken < 4000, "some had to wait again, and none of them for ever"


# --- the runtime on them
@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


@pytest.mark.parametrize("way", ["suspend", "stand_still"])
def test_after_the_machine_was_suspended_no_call_begins_though_the_timer_has_not_fired(stage: Stage, way: str) -> None:
    """By the loop's clock there is time left; by the boot clock the deadline has passed."""
    boot = BootClock(stage.timeline)
    begun: list[float] = []
    options: dict[str, Any] = {"checkpoint": Every(events=1), "ttl_s": 8.0, "margin_s": 1.0, "heartbeat_s": 2.0}

    async def handle(event: Event, partition: OwnedPartition) -> None:
        begun.append(stage.now_s)
        await asyncio.sleep(0)

    async def scene() -> float:
        processor = stage.processor(handle, clock=stage.clock(now=boot.now), batch=False, **options)
        async with processor:
            stage.fill(5)
            await until(lambda: len(begun) == 10)
            coordinator = processor._engine.coordinator  # type: ignore[union-attr]
            stage.store.away = {"heartbeat"}
            sent_s = coordinator._heartbeat_sent_s
            getattr(stage.loop, way)(20.0)
            stage.timeline.push(stage.now_s + 19.0, lambda: stage.fill(5))  # there when it wakes up
            await until(lambda: len(processor.owned) == 0)
            stage.store.away = set()
            await until(lambda: len(begun) == 20)
            return sent_s

    sent_s = stage.play(scene())
    assert all(at_s < sent_s + PATIENCE_S or at_s > sent_s + 20.0 for at_s in begun)
    assert {fenced.epoch for fenced in stage.told(Fenced)} == {1}
    assert all(fenced.silent_s >= PATIENCE_S for fenced in stage.told(Fenced))
