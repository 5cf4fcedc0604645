"""What an application may do to a processor by mistake: it is told, and nothing is lost, hung or spun."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Misconfigured, Processor
from evenflow.core.plan import plan
from evenflow.model import Seat
from evenflow.signals import Trouble
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import Seen, Stage, until

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow import Event, OwnedPartition


def generator(event: Any, partition: Any) -> Any:
    yield event


async def async_generator(event: Any, partition: Any) -> Any:
    yield event


class CallableGenerator:
    def __call__(self, event: Any, partition: Any) -> Any:
        yield event


@pytest.mark.parametrize(
    "handler",
    [generator, async_generator, functools.partial(generator), CallableGenerator()],
    ids=["plain", "async", "partial", "object"],
)
def test_a_handler_with_a_yield_is_refused(handler: Any) -> None:
    processor = Processor(FakeSource(), MemoryStore(), "group")
    with pytest.raises(Misconfigured, match="yield"):
        processor.on_event(handler)


def test_a_plain_handler_that_returns_a_generator_handled_nothing() -> None:
    def handle(event: Any, partition: Any) -> Any:
        return generator(event, partition)

    async def run() -> int:
        source = FakeSource(partitions=1)
        source.append("0", b"x")
        processor = Processor(source, MemoryStore(), "group")
        processor.on_event(handle)
        told = asyncio.Event()
        processor.listen(lambda signal: told.set() if isinstance(signal, Trouble) else None)
        async with processor:
            await asyncio.wait_for(told.wait(), 10)
            assert processor._engine is not None
            return processor._engine.coordinator.holds["0"].handled

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize("weight", [1e308, float("inf"), float("nan"), -1.0, 0.0])
def test_no_weight_of_another_breaks_the_plan(weight: float) -> None:
    owners: dict[str, str | None] = {str(number): None for number in range(8)}
    planned = plan(owners, [Seat("odd", weight), Seat("even")])
    assert set(planned.owners.values()) <= {"odd", "even"}


@pytest.mark.parametrize("weight", [1e308, True, 0, 1e-9, float("nan")])
def test_an_unreasonable_weight_is_refused(weight: float) -> None:
    with pytest.raises(Misconfigured, match="weight"):
        Processor(FakeSource(), MemoryStore(), "group", weight=weight)


async def test_a_handler_that_cancels_itself_has_failed_and_is_tried_again_with_pauses(stage: Stage) -> None:
    stage.fill(1, "0")
    calls = []

    async def handle(event: Event, partition: OwnedPartition) -> None:
        calls.append(stage.now_s)
        if len(calls) < 4:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    processor = stage.processor(handle)
    async with processor:
        await until(lambda: len(calls) == 4)
        assert list(processor.owned.values()) == [1, 1], "it never let go"
    assert [type(trouble.error) for trouble in stage.told(Trouble)] == [RuntimeError] * 3
    assert calls == sorted(set(calls)), "there were pauses"


async def test_a_seek_awaited_inside_a_handler_is_refused(stage: Stage) -> None:
    stage.fill(1, "0")
    refused: list[str] = []

    async def handle(event: Event, partition: OwnedPartition) -> None:
        try:
            await processor.seek("earliest")
        except Misconfigured as error:
            refused.append(str(error))

    processor = stage.processor(handle)
    async with processor:
        await until(lambda: refused)
    assert "start it in a task" in refused[0]


async def test_two_starts_at_the_same_time_are_one_too_many(stage: Stage) -> None:
    processor = stage.processor(Seen())
    first, second = asyncio.create_task(processor.serve()), asyncio.create_task(processor.serve())
    await until(second.done)
    with pytest.raises(Misconfigured, match="runs already"):
        second.result()
    await until(lambda: processor.owned)
    processor.stop()
    await first


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import asyncio, os, signal
            from evenflow import Processor
            from evenflow.testing import FakeSource, MemoryStore

            source = FakeSource(partitions=1)
            source.append("0", b"x")
            processor = Processor(source, MemoryStore(), "group", stop_s=0.5)

            @processor.on_event
            async def handle(event, partition):
                os.kill(os.getpid(), signal.SIGTERM)
                while True:
                    try:
                        await asyncio.sleep(1)
                    except asyncio.CancelledError:
                        pass

            processor.run()
            """
        )
    )
    ended = subprocess.run([sys.executable, program], timeout=30, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
