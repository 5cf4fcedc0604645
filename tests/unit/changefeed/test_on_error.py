"""`on_error` when a container or a lease store is unreachable: called once when it begins, not on every retry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import NoSuchPartition, SourceUnavailable
from evenflow.changefeed import ChangeFeedProcessor
from evenflow.signals import Fenced, Trouble
from evenflow.testing.fakes import FakeSource
from tests.unit.runtime.stage import PatchyStore, Stage, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Group, Identity, Partition, Position
    from evenflow.ports import Reader

LONG_S = 300.0
"""Long enough for dozens of retries."""


class UnreliableSource(FakeSource):
    """A container that the test makes unreachable, or whose ranges it makes unreadable."""

    is_unreachable = False
    is_unreadable = False

    async def identity(self) -> Identity:
        self._answer()
        return await super().identity()

    async def partitions(self) -> Sequence[Partition]:
        self._answer()
        return await super().partitions()

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        if self.is_unreadable:
            raise SourceUnavailable("it cannot be read")
        return await super().open(partition, after, epoch=epoch)

    def _answer(self) -> None:
        if self.is_unreachable:
            raise SourceUnavailable("it was deleted")


class ErrorLog(list[tuple[str, str | None]]):
    """An `on_error` that records its calls."""

    async def __call__(self, error: Exception, lease_token: str | None) -> None:
        self.append((str(error), lease_token))


@pytest.fixture
def source(stage: Stage) -> UnreliableSource:
    stage.source = source = UnreliableSource(2)
    return source


def host(stage: Stage, on_error: Any, **options: Any) -> ChangeFeedProcessor:
    processor = ChangeFeedProcessor(stage.source, stage.store, "group", clock=stage.clock(), **options)
    processor.listen(stage.happened.append)
    processor.on_error(on_error)

    @processor.on_changes
    async def handle(changes: list[Any], context: Any) -> None: ...

    return processor


async def test_each_outage_of_a_container_is_reported_once(stage: Stage, source: UnreliableSource) -> None:
    errors = ErrorLog()
    async with host(stage, errors) as processor:
        await until(lambda: len(processor.owned) == 2)
        for times in (1, 2):
            source.is_unreachable = True
            await asyncio.sleep(LONG_S)
            assert errors == [("it was deleted", None)] * times
            source.is_unreachable = False
            await asyncio.sleep(LONG_S)
    assert len(stage.told(Trouble)) > 20, "the log has every retry"


async def test_a_container_that_is_unreachable_at_the_start_is_reported_at_once(
    stage: Stage, source: UnreliableSource
) -> None:
    errors, source.is_unreachable = ErrorLog(), True
    processor = host(stage, errors)
    serving = asyncio.create_task(processor.serve())
    await asyncio.sleep(LONG_S)
    assert errors == [("it was deleted", None)]
    source.is_unreachable = False
    await until(lambda: len(processor.owned) == 2)
    processor.stop()
    await serving
    assert errors == [("it was deleted", None)]


async def test_an_unreadable_range_is_reported_once_with_its_token(stage: Stage, source: UnreliableSource) -> None:
    errors, source.is_unreadable = ErrorLog(), True
    async with host(stage, errors):
        await asyncio.sleep(LONG_S)
    assert sorted(errors) == [("it cannot be read", "0"), ("it cannot be read", "1")]


async def test_a_lease_of_a_missing_range_is_reported_with_its_location(stage: Stage) -> None:
    class Lacking(FakeSource):
        async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
            if partition == "1":
                unknown = NoSuchPartition("There is no range '1'.")
                unknown.partition = partition
                raise unknown
            return await super().open(partition, after, epoch=epoch)

    class Shown(PatchyStore):
        def lease_at(self, group: Group, partition: str) -> str:
            return f"row {partition} of {group.name}"

    errors, stage.source, stage.store = ErrorLog(), Lacking(2), Shown()
    async with host(stage, errors) as processor:
        await asyncio.sleep(LONG_S)
        assert set(processor.owned) == {"0", "1"}, "it stops no other"
    assert errors == [("There is no range '1'. It is row 1 of group. (It will be tried again.)", "1")]


async def test_an_outage_of_the_lease_store_is_reported_once(stage: Stage, source: UnreliableSource) -> None:
    errors = ErrorLog()
    async with host(stage, errors) as processor:
        await until(lambda: len(processor.owned) == 2)
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(LONG_S)
        stage.store.away = set()
        await until(lambda: len(processor.owned) == 2)
    assert errors == [("no heartbeat for now", None)]


async def test_what_on_error_raises_is_logged_and_changes_nothing(stage: Stage, source: UnreliableSource) -> None:
    async def on_error(error: Exception, lease_token: str | None) -> None:
        raise OSError("the pager is unreachable, too")

    async with host(stage, on_error) as processor:
        await until(lambda: len(processor.owned) == 2)
        source.is_unreachable = True
        await asyncio.sleep(LONG_S)
        source.is_unreachable = False
        await asyncio.sleep(LONG_S)
        assert len(processor.owned) == 2
    assert [str(one.error) for one in stage.told(Trouble) if one.where == "hook"] == ["the pager is unreachable, too"]


async def test_an_on_error_that_never_returns_blocks_nothing(stage: Stage, source: UnreliableSource) -> None:
    async def on_error(error: Exception, lease_token: str | None) -> None:
        await asyncio.Event().wait()

    async with host(stage, on_error) as processor:
        await until(lambda: len(processor.owned) == 2)
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(1.5 * processor.settings.heartbeat_s)
        stage.store.away = set()
        await asyncio.sleep(LONG_S)
        assert len(processor.owned) == 2
    assert stage.told(Fenced) == []
