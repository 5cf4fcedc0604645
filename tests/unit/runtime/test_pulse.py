"""For how long an event loop did not run, and what an instance says when its leases ran out."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from evenflow import Processor
from evenflow.runtime.clock import system_clock
from evenflow.runtime.pulse import EVERY_S, LEAST_S, LoopPulse
from evenflow.signals import Fenced, Signal
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import Seen, Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow import Event, OwnedPartition
    from evenflow.testing.simulated.timeline import ProcessLoop


async def stalled(stage: Stage, process: ProcessLoop, seconds: float) -> None:
    process.stall()
    await asyncio.sleep(seconds)
    process.resume()
    await asyncio.sleep(0.001)


@pytest.fixture
def process(stage: Stage) -> ProcessLoop:
    return stage.new_process()


@pytest.fixture
def pulse(stage: Stage, process: ProcessLoop) -> Iterator[LoopPulse]:
    made: list[LoopPulse] = []

    async def begin() -> None:
        made.append(LoopPulse(process.time))
        made[0].start()

    process.start(begin())
    stage.timeline.run_until(0.01)
    yield made[0]
    made[0].stop()


# --- the measure
async def test_a_loop_that_runs_is_not_blocked(stage: Stage, pulse: LoopPulse) -> None:
    await asyncio.sleep(100.3)
    assert pulse.blocked_s(0.0) == 0


def test_a_loop_that_is_a_little_late_is_busy_and_not_blocked() -> None:
    now_s = 0.0
    pulse = LoopPulse(lambda: now_s)
    now_s = EVERY_S + LEAST_S - 0.01
    assert pulse.blocked_s(0.0) == 0
    now_s = EVERY_S + LEAST_S + 0.01
    assert pulse.blocked_s(0.0) == pytest.approx(LEAST_S + 0.01)


async def test_each_time_it_did_not_run_counts(stage: Stage, process: ProcessLoop, pulse: LoopPulse) -> None:
    began_s = process.time()
    for seconds in (3.0, 5.0):
        await asyncio.sleep(10.0)
        await stalled(stage, process, seconds)
    assert 8.0 - 2 * EVERY_S <= pulse.blocked_s(began_s) <= 8.0
    since_s = process.time() - 2.0
    assert pulse.blocked_s(since_s) == pytest.approx(2.0, abs=0.01), "of a block, what came since then"
    assert pulse.blocked_s(process.time()) == 0


async def test_one_that_is_just_over_counts_though_its_timer_has_not_run_yet(
    stage: Stage, process: ProcessLoop, pulse: LoopPulse
) -> None:
    found: list[float] = []
    began_s = process.time()
    process.call_later(0.2, lambda: found.append(pulse.blocked_s(began_s)))
    await stalled(stage, process, 5.0)
    assert 5.0 - EVERY_S - 0.01 <= found[0] <= 5.0


async def test_a_loop_that_is_a_little_late_is_busy(stage: Stage, process: ProcessLoop, pulse: LoopPulse) -> None:
    began_s = process.time()
    for _ in range(100):
        await asyncio.sleep(1.0)
        await stalled(stage, process, 0.09)
    assert pulse.blocked_s(began_s) == 0


# --- what is said
async def test_a_store_that_does_not_answer_is_named(stage: Stage) -> None:
    async with stage.processor(Seen()) as processor:
        await until(lambda: processor.owned)
        await asyncio.sleep(60.0)
        stage.store.away = {"heartbeat"}
        await until(lambda: stage.told(Fenced))
        stage.store.away = set()
    fenced = stage.told(Fenced)[0]
    assert fenced.silent_s == pytest.approx(7.0, abs=0.01)
    assert fenced.blocked_s == 0
    assert 8 <= fenced.attempts <= 12
    assert fenced.error == "no heartbeat for now"
    assert str(fenced).endswith(
        "its lease was not renewed for 7.0 s (epoch 1);"
        f" the store did not answer {fenced.attempts} heartbeats (no heartbeat for now)"
    )


async def test_a_loop_that_was_blocked_is_named(stage: Stage) -> None:
    process = stage.new_process()
    processor = stage.processor(Seen(), loop=process)
    process.start(processor.serve())
    await until(lambda: processor.owned)
    await asyncio.sleep(10.0)
    await stalled(stage, process, 15.0)
    await until(lambda: stage.told(Fenced))
    fenced = stage.told(Fenced)[0]
    assert 15.0 <= fenced.silent_s <= 17.1
    assert 15.0 - EVERY_S <= fenced.blocked_s <= 15.01
    assert fenced.error == ""
    assert "store" not in str(fenced)
    assert f"the event loop was blocked for {fenced.blocked_s:.1f} s of that time" in str(fenced)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"blocked_s": 0.4, "attempts": 1}, "the store did not answer 1 heartbeat"),
        ({"blocked_s": 0.0, "attempts": 0}, "no heartbeat was sent"),
        (
            {"blocked_s": 2.0, "attempts": 2, "error": "refused"},
            "the store did not answer 2 heartbeats (refused); the event loop was blocked for 2.0 s of that time (by a"
            " handler, or the process was suspended)",
        ),
        (
            {"blocked_s": 4.0, "attempts": 1, "error": "refused"},
            "the event loop was blocked for 4.0 s of that time (by a handler, or the process was suspended); the store"
            " did not answer 1 heartbeat (refused)",
        ),
        (
            {"blocked_s": 4.0, "attempts": 1},
            "the event loop was blocked for 4.0 s of that time (by a handler, or the process was suspended)",
        ),
    ],
)
def test_what_was_measured_is_said(facts: dict[str, float | str], cause: str) -> None:
    fenced = Fenced(partition="0", epoch=3, silent_s=7.0, **facts)  # type: ignore[arg-type]
    assert fenced.cause == cause
    assert str(fenced) == f"partition 0 stopped: its lease was not renewed for 7.0 s (epoch 3); {cause}"


async def test_a_handler_that_really_blocks_the_loop_is_not_the_stores_fault() -> None:
    source, told, clock = FakeSource(1), list[Signal](), system_clock()
    source.append("0", b"x")
    processor = Processor(source, MemoryStore(), "group", heartbeat_s=0.1, ttl_s=0.4, margin_s=0.1)
    processor.listen(told.append)

    @processor.on_event
    async def greedy(event: Event, partition: OwnedPartition) -> None:
        end_s = clock.now() + 1.5
        while clock.now() < end_s:
            time.sleep(0.01)  # noqa: ASYNC251 - the fault that is tested

    async with processor:
        await until(lambda: any(isinstance(one, Fenced) for one in told), 10.0)
    fenced = next(one for one in told if isinstance(one, Fenced))
    assert fenced.blocked_s >= 1.5 - 2 * EVERY_S
    assert "the event loop was blocked for" in str(fenced)
