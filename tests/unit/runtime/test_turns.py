"""Calls that run together, and one that runs alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from evenflow.runtime.turns import PATIENCE_S, Turns
from tests.unit.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.runtime.stage import Stage


class Calls:
    def __init__(self) -> None:
        self.turns = Turns()
        self.running: list[str] = []
        self.log: list[tuple[str, ...]] = []

    async def together(self, name: str, seconds: float) -> None:
        async with self.turns.together(), self._run(name):
            await asyncio.sleep(seconds)

    async def alone(self, name: str, seconds: float) -> None:
        async with self.turns.alone(), self._run(name):
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def _run(self, name: str) -> AsyncIterator[None]:
        self.running.append(name)
        self.log.append(tuple(sorted(self.running)))
        try:
            yield
        finally:
            self.running.remove(name)


async def test_calls_run_together(stage: Stage) -> None:
    calls = Calls()
    await asyncio.gather(calls.together("a", 1.0), calls.together("b", 1.0))
    assert calls.log == [("a",), ("a", "b")]


async def test_one_that_is_alone_waits_for_those_that_run_and_others_wait_for_it(stage: Stage) -> None:
    calls = Calls()
    first = asyncio.create_task(calls.together("first", 1.0))
    await until(lambda: calls.running == ["first"])
    rest = [calls.alone("alone", 1.0), calls.alone("other", 1.0), calls.together("last", 1.0)]
    await asyncio.gather(first, *rest)
    assert sorted(calls.log) == [("alone",), ("first",), ("last",), ("other",)]
    assert calls.log.index(("alone",)) < calls.log.index(("last",))


async def test_a_call_that_hangs_is_waited_for_once_and_not_for_ever(stage: Stage) -> None:
    calls = Calls()
    endless = asyncio.create_task(calls.together("endless", 1e6))
    await until(lambda: calls.running == ["endless"])
    began_s = stage.now_s
    await calls.alone("a", 0.0)
    assert PATIENCE_S <= stage.now_s - began_s < PATIENCE_S + 1.0
    began_s = stage.now_s
    await calls.alone("b", 0.0)
    await calls.together("c", 0.0)
    assert stage.now_s - began_s < 1.0
    endless.cancel()


async def test_who_is_cancelled_while_it_waits_leaves_room(stage: Stage) -> None:
    calls = Calls()
    first = asyncio.create_task(calls.together("first", 3.0))
    await until(lambda: calls.running == ["first"])
    alone = asyncio.create_task(calls.alone("alone", 1.0))
    await asyncio.sleep(0.5)
    alone.cancel()
    await calls.together("next", 0.0)
    assert ("first", "next") in calls.log
    await first
