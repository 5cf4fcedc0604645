"""How far behind each lease is: exact where it can be, unknown where not, and honest before the first checkpoint."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Every, HubReplaced
from evenflow.changefeed import ChangeContext, ChangeFeedProcessor
from evenflow.embedded.container import Container
from evenflow.model import MICROSECONDS
from evenflow.operate.inspect.ownership import PartitionContext
from evenflow.operate.inspect.survey import find_group, survey
from evenflow.sources.container.source import ContainerSource
from evenflow.stores.memory import MemoryStore
from evenflow.testing.fakes import FakeFeed
from tests.unit.runtime.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evenflow.changefeed import LeaseEstimate
    from evenflow.operate.inspect.ownership import PartitionRow

DEADLINE_S = 90.0


class Scene:
    def __init__(self, folder: Path) -> None:
        self.now_us = 1_700_000_000 * MICROSECONDS
        self.container = Container.create(folder / "orders", ranges=2, wall_us=lambda: self.now_us)
        self.store = MemoryStore()

    def fill(self, *names: str) -> datetime:
        """Writes documents; when."""
        self.now_us += 10 * MICROSECONDS
        for name in names:
            self.container.upsert({"id": name})
        return datetime.fromtimestamp(self.now_us / MICROSECONDS, UTC)

    def processor(self, **options: Any) -> ChangeFeedProcessor:
        async def handle(changes: list[Any], context: ChangeContext) -> None:
            pass

        given = {"start": "beginning", "instance_name": "one", **options}
        processor = ChangeFeedProcessor(self.container, self.store, "mails", **given)
        processor.on_changes(handle)
        return processor

    async def caught_up(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.processor().serve(until="caught_up")

    async def look(self) -> tuple[list[PartitionRow], tuple[str, ...]]:
        """As `evenflow lag` and metrics have it; and what is odd."""
        source = ContainerSource(self.container)
        found = await survey(self.store, await find_group(self.store, "mails", source), source)
        await source.aclose()
        return found.partition_rows(PartitionContext(wall_s=self.now_us / MICROSECONDS + 1)), found.problems

    @property
    def lsns(self) -> dict[str, int]:
        return {one.id: one.lsn for one in self.container.ranges()}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.container.close()


def remaining(found: list[LeaseEstimate]) -> dict[str, int | None]:
    return {one.lease_token: one.remaining for one in found}


NAMES = [f"o-{number}" for number in range(20)]


async def test_before_the_first_checkpoint_all_is_counted_from_where_it_would_begin(scene: Scene) -> None:
    written = scene.fill(*NAMES)
    found = await scene.processor().estimate()
    assert remaining(found) == scene.lsns
    assert {one.since for one in found} == {written}
    assert {(one.owner, one.continuation) for one in found} == {(None, None)}
    assert set(remaining(await scene.processor(start="now").estimate()).values()) == {0}
    later = scene.fill("o-1", "new")
    since = await scene.processor(start=later - timedelta(seconds=1)).estimate()
    assert sum(one.remaining or 0 for one in since) == 2


async def test_after_a_checkpoint_what_came_later_is_counted(scene: Scene) -> None:
    scene.fill(*NAMES)
    await scene.caught_up()
    before = scene.lsns
    found = await scene.processor().estimate()
    assert set(remaining(found).values()) == {0}
    assert {one.since for one in found} == {None}
    assert {one.lease_token: one.continuation for one in found} == {name: str(lsn) for name, lsn in before.items()}
    when = scene.fill("new-1", "new-2", "new-3")
    more = {name: lsn - before[name] for name, lsn in scene.lsns.items()}
    found = await scene.processor().estimate()
    assert remaining(found) == more
    assert {one.since for one in found if one.remaining} == {when}


async def test_the_owner_of_a_running_host_is_known(scene: Scene) -> None:
    scene.fill(*NAMES)
    async with asyncio.timeout(DEADLINE_S), scene.processor(checkpoint=Every(events=1)) as processor:
        assert isinstance(processor, ChangeFeedProcessor)
        await until(lambda: set(processor.owned) == {"0", "1"})
        found = await processor.estimate()
        assert {one.owner for one in found} == {"one"}
    assert {one.owner for one in await processor.estimate()} == {None}


async def test_a_child_is_as_far_behind_as_its_parents_were(scene: Scene) -> None:
    scene.fill(*NAMES)
    await scene.caught_up()
    scene.fill(*NAMES[:10])
    before = {one.lease_token: one for one in await scene.processor().estimate()}["0"]
    scene.container.split("0")
    found = await scene.processor().estimate()
    assert remaining(found)["0"] == 0, "its lease has not ended, and its children have all of it"
    after = int(before.continuation or "")
    changes = {name: len(scene.container.feed(name, after).changes) for name in ("2", "3")}
    assert sum(changes.values()) == before.remaining
    for name, count in changes.items():
        assert count <= (remaining(found)[name] or 0) <= (before.remaining or 0), "by LSN: some are the other one's"
    rows, problems = await scene.look()
    assert {row.partition: row.lag for row in rows} == remaining(found), "to operators, too"
    assert all(row.lag_s for row in rows if row.lag)
    assert problems == ()
    await scene.caught_up()
    assert set(remaining(await scene.processor().estimate())) == {"1", "2", "3"}
    assert set(remaining(await scene.processor().estimate()).values()) == {0}


async def test_a_merged_child_is_never_nearer_than_its_parents_together(scene: Scene) -> None:
    """It goes on in two logs, whose LSNs say nothing of each other."""
    scene.fill(*NAMES)
    await scene.caught_up()
    scene.fill(*NAMES)
    before = remaining(await scene.processor().estimate())
    assert all(before.values())
    child = scene.container.merge("0", "1").id
    found = remaining(await scene.processor().estimate())
    changes = sum(filter(None, before.values()))
    assert (found[child] or 0) >= changes
    rows, _ = await scene.look()
    assert {row.partition: row.lag for row in rows} == found
    await scene.caught_up()
    assert remaining(await scene.processor().estimate()) == {child: 0}


async def test_what_cannot_be_known_is_unknown() -> None:
    class Dark(FakeFeed):
        async def bounds(self, partitions: Any) -> Any:
            return {}

    feed = Dark(1)
    feed.append("0", b'{"id": "o-1"}')
    (found,) = await ChangeFeedProcessor(feed, MemoryStore(), "mails", start="beginning").estimate()
    assert (found.remaining, found.since) == (None, None)


async def test_checkpoints_of_another_container_are_not_counted(scene: Scene, tmp_path: Path) -> None:
    scene.fill(*NAMES)
    await scene.caught_up()
    scene.container.close()
    scene.container = Container.create(tmp_path / "other" / "orders")
    with pytest.raises(HubReplaced, match="two of one name share this store"):
        await scene.processor().estimate()
