"""The source contract of identity, starts and bounds."""

from __future__ import annotations

from datetime import timedelta

from evenflow.errors import PositionGone, PositionOutOfRange
from evenflow.model import Position
from evenflow.ports import Source
from evenflow.testing.source.scene import (
    MUCH,
    SHORT_S,
    SourceStage,
    SourceWorld,
    bodies,
    events_of,
    first,
    is_before,
    is_same,
    numbered,
    opened,
    refused,
    sentence,
    texts,
)


class HubContract(SourceStage):
    """The hub's identity, and its partitions."""

    @sentence
    async def test_it_is_a_source(self, world: SourceWorld) -> None:
        assert isinstance(world.source, Source)

    @sentence
    async def test_identity_stays_while_the_hub_does(self, world: SourceWorld) -> None:
        before = await world.source.identity()
        await world.append(await first(world), numbered(0, 3))
        assert await world.source.identity() == before
        await world.restart()
        assert await world.source.identity() == before

    @sentence
    async def test_identity_changes_when_the_hub_is_recreated(self, world: SourceWorld) -> None:
        before = await world.source.identity()
        await world.remake()
        after = await world.source.identity()
        assert (after.namespace, after.hub) == (before.namespace, before.hub)
        assert after.made != before.made

    @sentence
    async def test_partitions_have_different_ids_and_stay(self, world: SourceWorld) -> None:
        ids = [partition.id for partition in await world.source.partitions()]
        assert len(ids) == len(set(ids)) == 2
        await world.restart()
        assert [partition.id for partition in await world.source.partitions()] == ids

    @sentence
    async def test_partitions_that_are_added_are_seen(self, world: SourceWorld) -> None:
        before = {partition.id for partition in await world.source.partitions()}
        await world.grow(3)
        after = {partition.id for partition in await world.source.partitions()}
        assert before < after
        assert len(after) == 5
        new = min(after - before)
        await world.append(new, numbered(0, 2))
        assert await bodies(await opened(world, new), 2) == texts(0, 2)

    @sentence
    async def test_partitions_are_apart(self, world: SourceWorld) -> None:
        one, other = [partition.id for partition in await world.source.partitions()]
        await world.append(one, numbered(0, 3))
        await world.append(other, numbered(10, 12))
        assert await bodies(await opened(world, one), 3) == texts(0, 3)
        assert await bodies(await opened(world, other), 2) == texts(10, 12)


class StartContract(SourceStage):
    """Starts: `resolve`, and positions that `open` accepts or refuses."""

    @sentence
    async def test_earliest_is_before_the_oldest_event(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 5))
        assert await bodies(await opened(world, partition, "earliest"), 5) == texts(0, 5)

    @sentence
    async def test_earliest_is_before_the_oldest_that_is_kept(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 5))
        await world.trim(partition, 2)
        assert await bodies(await opened(world, partition, "earliest"), 3) == texts(2, 5)

    @sentence
    async def test_latest_is_the_newest_event(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 5))
        reader = await opened(world, partition, "latest")
        assert not (await reader.read(10, MUCH, SHORT_S)).events
        await world.append(partition, numbered(5, 7))
        assert await bodies(reader, 2) == texts(5, 7)

    @sentence
    async def test_a_resolved_position_does_not_move_as_events_arrive(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 3))
        now = await world.later()
        starts = [await world.source.resolve(partition, start) for start in ("latest", now + timedelta(days=1))]
        await world.append(partition, numbered(3, 6))
        for start in starts:
            assert await bodies(await world.source.open(partition, start, epoch=1), 3) == texts(3, 6)

    @sentence
    async def test_an_empty_partition_has_an_earliest_and_a_latest(self, world: SourceWorld) -> None:
        partition = await first(world)
        starts = [await world.source.resolve(partition, start) for start in ("earliest", "latest")]
        await world.append(partition, numbered(0, 2))
        for start in starts:
            assert await bodies(await world.source.open(partition, start, epoch=1), 2) == texts(0, 2)

    @sentence
    async def test_an_emptied_partition_continues(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 4))
        await world.trim(partition, 4)
        starts = [await world.source.resolve(partition, start) for start in ("earliest", "latest")]
        await world.append(partition, numbered(4, 6))
        for start in starts:
            assert await bodies(await world.source.open(partition, start, epoch=1), 2) == texts(4, 6)

    @sentence
    async def test_a_time_is_before_the_first_event_at_or_after_it(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 3))
        noon = await world.later()
        await world.append(partition, numbered(3, 5))
        evening = await world.later()
        await world.append(partition, numbered(5, 8))
        assert await bodies(await opened(world, partition, noon), 5) == texts(3, 8)
        assert await bodies(await opened(world, partition, evening), 3) == texts(5, 8)
        assert await bodies(await opened(world, partition, noon - timedelta(days=1)), 8) == texts(0, 8)

    @sentence
    async def test_the_time_of_an_event_starts_with_that_event(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 2))
        await world.later()
        await world.append(partition, numbered(2, 4))
        events = (await events_of(world, partition, 4))[2:]
        assert await bodies(await opened(world, partition, events[0].enqueued_at), 2) == texts(2, 4)

    @sentence
    async def test_a_position_in_the_log_is_kept(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 4))
        events = await events_of(world, partition, 4)
        for event in events:
            assert await world.source.resolve(partition, event.position) == event.position

    @sentence
    async def test_a_position_with_only_a_sequence_is_a_position_in_the_log(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 5))
        event = (await events_of(world, partition, 5))[1]
        if event.sequence is None:
            raise NotImplementedError
        after = event.sequence + 1
        found = await world.source.resolve(partition, Position(str(after), after))
        assert await bodies(await world.source.open(partition, found, epoch=9), 2) == texts(3, 5)

    @sentence
    async def test_a_position_beyond_the_end_is_out_of_range(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 4))
        last = (await events_of(world, partition, 4))[-1]
        if last.sequence is None:
            raise NotImplementedError
        beyond = Position(str(last.sequence + 100), last.sequence + 100)
        await refused(PositionOutOfRange, world.source.resolve(partition, beyond))
        await refused(PositionOutOfRange, world.source.open(partition, beyond, epoch=1))

    @sentence
    async def test_a_position_whose_successors_are_trimmed_is_gone(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 6))
        events = await events_of(world, partition, 6)
        await world.trim(partition, 4)
        await refused(PositionOutOfRange, world.source.resolve(partition, events[0].position))
        await refused(PositionGone, world.source.open(partition, events[0].position, epoch=1))
        reader = await world.source.open(partition, events[3].position, epoch=1)
        assert await bodies(reader, 2) == texts(4, 6)


class BoundsContract(SourceStage):
    """The oldest and the newest position."""

    @sentence
    async def test_bounds_are_the_oldest_and_the_newest(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 4))
        events = await events_of(world, partition, 4)
        found = (await world.source.bounds([partition]))[partition]
        assert is_same(found.oldest, events[0].position)
        assert found.newest in (None, events[-1].position)
        assert found.newest_at in (None, events[-1].enqueued_at)

    @sentence
    async def test_bounds_follow_retention(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 4))
        events = await events_of(world, partition, 4)
        await world.trim(partition, 3)
        assert is_same((await world.source.bounds([partition]))[partition].oldest, events[3].position)
        await world.trim(partition, 1)
        found = (await world.source.bounds([partition]))[partition]
        assert found.newest in (None, events[3].position)
        assert is_before(found.newest, found.oldest)

    @sentence
    async def test_the_newest_of_an_empty_partition_is_before_its_oldest(self, world: SourceWorld) -> None:
        ids = [partition.id for partition in await world.source.partitions()]
        found = await world.source.bounds(ids)
        assert set(found) == set(ids)
        assert all(is_before(bounds.newest, bounds.oldest) for bounds in found.values())
