"""A look from outside survives what it looks at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import Corrupt, Misconfigured, SourceUnavailable
from evenflow.model import Bounds, Change, Group, Identity, Member, Partition, Position
from evenflow.operate.inspect.survey import Survey, find_group, find_group_to_look, operable, survey
from evenflow.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.model import PartitionId
    from evenflow.ports import Reader, Start

GROUP = Group("local", "homes", "alerts")


class BrokenSource:
    """Two partitions, one of which cannot be read; or none at all while it is unreachable."""

    def __init__(self, *, away: bool = False) -> None:
        self._away = away

    async def identity(self) -> Identity:
        if self._away:
            raise SourceUnavailable("the hub is unreachable")
        return Identity("local", "homes", "x")

    async def partitions(self) -> Sequence[Partition]:
        if self._away:
            raise SourceUnavailable("the hub is unreachable")
        return [Partition("0"), Partition("1")]

    async def bounds(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Bounds]:
        assert not self._away, "it is queried although it is unreachable"
        if "1" in partitions:
            raise Corrupt("a file is damaged")
        return {partition: Bounds(newest=Position("7", 7)) for partition in partitions}

    async def resolve(self, partition: PartitionId, start: Start) -> Position:
        raise NotImplementedError

    async def open(self, partition: PartitionId, after: Position, *, epoch: int) -> Reader:
        raise NotImplementedError

    async def aclose(self) -> None: ...


async def store_with(*groups: Group) -> MemoryStore:
    store = MemoryStore()
    for group in groups:
        await store.heartbeat(group, Member(id="ada", nonce="a", ttl_s=8.0), None)
    return store


async def survey_of(source: BrokenSource) -> Survey:
    store = await store_with(GROUP)
    seen = await store.peek(GROUP)
    assert seen is not None
    claim = Change(partition="0", revision=0, history=seen.cursor.history, owner=seen.members[0].owner, epoch=1)
    assert [outcome.ok for outcome in await store.swap(GROUP, [claim])] == [True]
    return await survey(store, GROUP, source)


def find(name: str, source: BrokenSource | None, *, to_look: bool = False) -> Group:
    async def scenario() -> Group:
        store = await store_with(GROUP, Group("local", "homes", "stats"), Group("local", "cars", "stats"))
        return await (find_group_to_look if to_look else find_group)(store, name, source)

    return asyncio.run(scenario())


def test_one_broken_partition_hides_no_other() -> None:
    found = asyncio.run(survey_of(BrokenSource()))
    assert [(row.partition, row.newest) for row in found.partition_rows()] == [("0", 7), ("1", None)]
    assert found.problems == ("partition 1: a file is damaged",)


def test_an_unreachable_source_leaves_what_the_store_says() -> None:
    found = asyncio.run(survey_of(BrokenSource(away=True)))
    assert [row.id for row in found.member_rows()] == ["ada"]
    assert found.problems == ("the hub is unreachable",)


def test_while_the_source_is_away_a_look_goes_by_the_name_alone() -> None:
    assert find("alerts", BrokenSource(away=True), to_look=True) == GROUP
    for name in ("stats", "nope"):
        with pytest.raises(SourceUnavailable):
            find(name, BrokenSource(away=True), to_look=True)
    with pytest.raises(SourceUnavailable):
        find("alerts", BrokenSource(away=True))


def test_a_group_is_found_by_its_name_where_that_is_enough() -> None:
    assert find("alerts", None) == GROUP
    assert find("stats", BrokenSource()) == Group("local", "homes", "stats")


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("stats", None, "Several hubs have a group 'stats'"),
        ("nope", None, r"no group 'nope'\. It has: local/cars/stats, "),
        ("nope", BrokenSource(), "no group 'nope' of hub 'homes'"),
    ],
)
def test_an_ambiguous_name_is_an_error_that_lists_the_groups(
    name: str, source: BrokenSource | None, message: str
) -> None:
    with pytest.raises(Misconfigured, match=message):
        find(name, source)


def test_a_store_must_be_operable() -> None:
    with pytest.raises(Misconfigured, match="object cannot be inspected"):
        operable(object())  # type: ignore[arg-type]
