"""Whom `on_error` is called for when a container or a lease store is away: once when it begins, not with every try."""

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
"""In which it is tried again dozens of times."""


class Fickle(FakeSource):
    """A container that is away, or whose ranges cannot be read, while one says so."""

    is_away = False
    is_mute = False

    async def identity(self) -> Identity:
        self._answer()
        return await super().identity()

    async def partitions(self) -> Sequence[Partition]:
        self._answer()
        return await super().partitions()

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        if self.is_mute:
            raise SourceUnavailable("it cannot be read")
        return await super().open(partition, after, epoch=epoch)

    def _answer(self) -> None:
        if self.is_away:
            raise SourceUnavailable("it was deleted")


class Told(list[tuple[str, str | None]]):
    """An `on_error` that keeps what it was called with."""

    async def __call__(self, error: Exception, lease_token: str | None) -> None:
        self.append((str(error), lease_token))


@pytest.fixture
def source(stage: Stage) -> Fickle:
    stage.source = source = Fickle(2)
    return source


def host(stage: Stage, on_error: Any, **options: Any) -> ChangeFeedProcessor:
    processor = ChangeFeedProcessor(stage.source, stage.store, "group", clock=stage.clock(), **options)
    processor.listen(stage.happened.append)
    processor.on_error(on_error)

    @processor.on_changes
    async def handle(changes: list[Any], context: Any) -> None: ...

    return processor


async def test_a_container_that_goes_away_is_told_once_and_again_when_it_goes_again(
    stage: Stage, source: Fickle
) -> None:
    told = Told()
    async with host(stage, told) as processor:
        await until(lambda: len(processor.owned) == 2)
        for times in (1, 2):
            source.is_away = True
            await asyncio.sleep(LONG_S)
            assert told == [("it was deleted", None)] * times
            source.is_away = False
            await asyncio.sleep(LONG_S)
    assert len(stage.told(Trouble)) > 20, "the log tells of every try"


async def test_a_container_that_is_away_at_the_start_is_told_at_once(stage: Stage, source: Fickle) -> None:
    told, source.is_away = Told(), True
    processor = host(stage, told)
    serving = asyncio.create_task(processor.serve())
    await asyncio.sleep(LONG_S)
    assert told == [("it was deleted", None)]
    source.is_away = False
    await until(lambda: len(processor.owned) == 2)
    processor.stop()
    await serving
    assert told == [("it was deleted", None)]


async def test_a_range_that_cannot_be_read_is_told_once_with_its_token(stage: Stage, source: Fickle) -> None:
    told, source.is_mute = Told(), True
    async with host(stage, told):
        await asyncio.sleep(LONG_S)
    assert sorted(told) == [("it cannot be read", "0"), ("it cannot be read", "1")]


async def test_a_lease_for_a_range_that_there_is_not_is_told_with_where_it_is(stage: Stage) -> None:
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

    told, stage.source, stage.store = Told(), Lacking(2), Shown()
    async with host(stage, told) as processor:
        await asyncio.sleep(LONG_S)
        assert set(processor.owned) == {"0", "1"}, "it stops no other"
    assert told == [("There is no range '1'. It is row 1 of group. (It will be tried again.)", "1")]


async def test_a_lease_store_that_is_away_is_told_once(stage: Stage, source: Fickle) -> None:
    told = Told()
    async with host(stage, told) as processor:
        await until(lambda: len(processor.owned) == 2)
        stage.store.away = {"heartbeat"}
        await asyncio.sleep(LONG_S)
        stage.store.away = set()
        await until(lambda: len(processor.owned) == 2)
    assert told == [("no heartbeat for now", None)]


async def test_what_on_error_raises_is_logged_and_changes_nothing(stage: Stage, source: Fickle) -> None:
    async def on_error(error: Exception, lease_token: str | None) -> None:
        raise OSError("the pager is away, too")

    async with host(stage, on_error) as processor:
        await until(lambda: len(processor.owned) == 2)
        source.is_away = True
        await asyncio.sleep(LONG_S)
        source.is_away = False
        await asyncio.sleep(LONG_S)
        assert len(processor.owned) == 2
    assert [str(one.error) for one in stage.told(Trouble) if one.where == "hook"] == ["the pager is away, too"]


async def test_an_on_error_that_never_returns_holds_nobody_up(stage: Stage, source: Fickle) -> None:
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
