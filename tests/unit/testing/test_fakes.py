"""What is FakeSource's own, beyond the contract that all sources keep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Misconfigured, PositionGone, SourceUnavailable
from evenflow.model import BEGINNING, Position
from evenflow.testing.fakes import FakeSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.model import Batch

MUCH = 1 << 30


@pytest.fixture
def loops() -> Iterator[list[asyncio.AbstractEventLoop]]:
    loops = [asyncio.new_event_loop() for _ in range(2)]
    yield loops
    for loop in loops:
        loop.close()


async def read(source: FakeSource, wait_s: float = 10.0) -> Batch:
    reader = await source.open("0", BEGINNING, epoch=1)
    return await reader.read(10, MUCH, wait_s)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_readers_in_several_loops_are_woken_each_in_its_own(loops: list[asyncio.AbstractEventLoop]) -> None:
    source = FakeSource(1)
    reading = [loop.create_task(read(source)) for loop in loops]
    for loop in loops:
        loop.run_until_complete(turn())
    source.append("0", b"from outside of both")
    assert not any(task.done() for task in reading)
    for loop, task in zip(loops, reading, strict=True):
        assert len(loop.run_until_complete(task).events) == 1


def test_a_loop_that_was_closed_disturbs_nobody(loops: list[asyncio.AbstractEventLoop]) -> None:
    source = FakeSource(1)
    gone, here = loops
    lost = gone.create_task(read(source))
    gone.run_until_complete(turn())
    reading = here.create_task(read(source))
    here.run_until_complete(turn())
    gone.close()
    source.append("0", b"a")
    assert len(here.run_until_complete(reading).events) == 1
    lost.get_coro().close()
    lost._log_destroy_pending = False  # type: ignore[attr-defined]


def test_waits_that_are_over_leave_nothing_behind() -> None:
    async def main() -> None:
        source = FakeSource(1)
        await read(source, 0.001)
        cancelled = asyncio.create_task(read(source))
        await turn()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert source._logs["0"].waiters == []

    asyncio.run(main())


def test_time_is_the_loops_own() -> None:
    async def main() -> None:
        source = FakeSource(1)
        source.append("0", b"a")
        (event,) = (await read(source)).events
        assert event.enqueued_us == pytest.approx(asyncio.get_running_loop().time() * 1e6, abs=1e6)

    asyncio.run(main())


def test_a_merge_has_both_parents() -> None:
    async def main() -> None:
        source = FakeSource(2)
        source.append("0", b"a")
        source.merge(["0", "1"], "merged")
        (*_, merged) = await source.partitions()
        assert (merged.id, merged.parents) == ("merged", ("0", "1"))
        with pytest.raises(AssertionError, match="has ended"):
            source.append("0", b"b")

    asyncio.run(main())


def test_readers_of_a_hub_that_is_made_again_end() -> None:
    async def main() -> None:
        source = FakeSource(2)
        reading = asyncio.create_task(read(source))
        await turn()
        source.remake(3)
        with pytest.raises(SourceUnavailable):
            await reading
        assert source.partition_ids == ["0", "1", "2"]
        assert source.newest("0") == -1

    asyncio.run(main())


def test_a_reader_that_retention_overtakes_is_told() -> None:
    async def main() -> None:
        source = FakeSource(1)
        reader = await source.open("0", BEGINNING, epoch=1)
        for _ in range(5):
            source.append("0", b"x")
        source.trim("0", 3)
        with pytest.raises(PositionGone, match="the oldest is 3, the newest 4"):
            await reader.read(10, MUCH, 1.0)
        assert await source.resolve("0", "earliest") == Position("2", 2)
        with pytest.raises(Misconfigured, match="no partition '9'"):
            await source.open("9", BEGINNING, epoch=1)

    asyncio.run(main())
