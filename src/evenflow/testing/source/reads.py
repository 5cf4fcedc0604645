"""The source contract of readers: what they return, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.errors import LeaseLost
from evenflow.model import Event
from evenflow.ports import Vanishing
from evenflow.testing.source.scene import (
    LONG_S,
    MUCH,
    SHORT_S,
    SourceStage,
    SourceWorld,
    bodies,
    events_of,
    first,
    numbered,
    opened,
    refused,
    sentence,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Partition, Position
    from evenflow.ports import Reader


async def _to_the_end(reader: Reader) -> None:
    """Reads until an error is raised. Events received before the error may still be returned."""
    while True:
        await reader.read(10, MUCH, LONG_S)


async def _opened_and_read(world: SourceWorld, partition: str, start: Position) -> None:
    await _to_the_end(await world.source.open(partition, start, epoch=7))


class ReadContract(SourceStage):
    """What a reader returns, and when."""

    @sentence
    async def test_events_arrive_complete_and_in_order(self, world: SourceWorld) -> None:
        partition = await first(world)
        sent = [Event(b"%d" % n, f"key-{n % 3}", {"n": n, "text": "Zürich"} if n % 2 else None) for n in range(50)]
        for event in sent:
            await world.append(partition, [event])
        found = await events_of(world, partition, 50)
        assert [(event.body, event.key) for event in found] == [(event.body, event.key) for event in sent]
        assert [event.properties or None for event in found] == [event.properties for event in sent]
        assert [event.enqueued_us for event in found] == sorted(event.enqueued_us for event in found)
        assert len({event.offset for event in found}) == 50
        sequences = [event.sequence for event in found if event.sequence is not None]
        assert sequences == sorted(set(sequences))

    @sentence
    async def test_reading_can_continue_after_every_position(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 6))
        for number, event in enumerate((await events_of(world, partition, 6))[:-1], 1):
            reader = await world.source.open(partition, event.position, epoch=number)
            assert await bodies(reader, 6 - number) == texts(number, 6)
            await reader.aclose()

    @sentence
    async def test_continuing_after_resume_neither_repeats_nor_skips(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 20))
        position = await world.source.resolve(partition, "earliest")
        found: list[bytes] = []
        while len(found) < 20:
            reader = await world.source.open(partition, position, epoch=1)
            batch = await reader.read(3, MUCH, LONG_S)
            found += [event.body for event in batch.events]
            position = batch.resume
            await reader.aclose()
        assert found == texts(0, 20)

    @sentence
    async def test_an_empty_batch_is_returned_when_the_wait_has_passed(self, world: SourceWorld) -> None:
        partition = await first(world)
        reader = await opened(world, partition)
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        batch = await reader.read(10, MUCH, SHORT_S)
        assert not batch.events
        assert loop.time() - before_s >= SHORT_S * 0.9
        await world.append(partition, numbered(0, 2))
        assert await bodies(reader, 2) == texts(0, 2)
        again = await world.source.open(partition, batch.resume, epoch=1)
        assert await bodies(again, 2) == texts(0, 2)

    @sentence
    async def test_a_waiting_read_returns_as_soon_as_an_event_arrives(self, world: SourceWorld) -> None:
        partition = await first(world)
        reader = await opened(world, partition)
        loop = asyncio.get_running_loop()
        for number in range(5):
            waiting = asyncio.create_task(reader.read(10, MUCH, LONG_S))
            await asyncio.sleep(0.01 * number)
            before_s = loop.time()
            await world.append(partition, numbered(number, number + 1))
            assert [event.body for event in (await waiting).events] == texts(number, number + 1)
            assert loop.time() - before_s < LONG_S / 4

    @sentence
    async def test_a_batch_has_at_most_max_events(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 25))
        reader = await opened(world, partition)
        sizes = []
        found: list[bytes] = []
        while len(found) < 25:
            batch = await reader.read(7, MUCH, LONG_S)
            sizes.append(len(batch.events))
            found += [event.body for event in batch.events]
        assert found == texts(0, 25)
        assert max(sizes) <= 7

    @sentence
    async def test_a_batch_has_about_max_bytes_and_at_least_one_event(self, world: SourceWorld) -> None:
        partition = await first(world)
        sent = [Event(b"%03d" % n + bytes(1000)) for n in range(30)] + [Event(b"large" + bytes(50_000)), Event(b"end")]
        await world.append(partition, sent)
        reader = await opened(world, partition)
        found: list[bytes] = []
        while len(found) < len(sent):
            batch = await reader.read(1000, 5_000, LONG_S)
            assert batch.events
            assert len(batch.events) == 1 or sum(len(event.body) for event in batch.events) <= 10_000
            found += [event.body for event in batch.events]
        assert found == [event.body for event in sent]

    @sentence
    async def test_a_cancelled_read_loses_nothing(self, world: SourceWorld) -> None:
        partition = await first(world)
        reader = await opened(world, partition)
        found: list[bytes] = []
        for number in range(40):
            reading = asyncio.create_task(reader.read(10, MUCH, LONG_S))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            if number % 3 == 0:
                await world.append(partition, numbered(number, number + 1))
                reading.cancel()
            else:
                reading.cancel()
                await world.append(partition, numbered(number, number + 1))
            for batch in await asyncio.gather(reading, return_exceptions=True):
                if not isinstance(batch, BaseException):
                    found += [event.body for event in batch.events]
        found += await bodies(reader, 40 - len(found))
        assert found == texts(0, 40)

    @sentence
    async def test_readers_of_one_partition_do_not_disturb_each_other(self, world: SourceWorld) -> None:
        if world.exclusive:
            raise NotImplementedError
        partition = await first(world)
        await world.append(partition, numbered(0, 10))
        one, other = await opened(world, partition), await opened(world, partition)
        assert await bodies(one, 4, max_events=4) == texts(0, 4)
        assert await bodies(other, 10) == texts(0, 10)
        await other.aclose()
        assert await bodies(one, 6) == texts(4, 10)

    @sentence
    async def test_a_reader_of_a_higher_epoch_ends_the_others(self, world: SourceWorld) -> None:
        if not world.exclusive:
            raise NotImplementedError
        partition = await first(world)
        await world.append(partition, numbered(0, 10))
        start = await world.source.resolve(partition, "earliest")
        older = await world.source.open(partition, start, epoch=5)
        assert await bodies(older, 4, max_events=4) == texts(0, 4)
        newer = await world.source.open(partition, start, epoch=6)
        assert await bodies(newer, 10) == texts(0, 10)
        await refused(LeaseLost, _to_the_end(older))
        await refused(LeaseLost, older.read(10, MUCH, LONG_S))
        await world.append(partition, numbered(10, 12))
        assert await bodies(newer, 2) == texts(10, 12)

    @sentence
    async def test_a_reader_of_a_lower_epoch_does_not_get_in(self, world: SourceWorld) -> None:
        if not world.exclusive:
            raise NotImplementedError
        partition = await first(world)
        start = await world.source.resolve(partition, "earliest")
        newer = await world.source.open(partition, start, epoch=1 << 40)
        await refused(LeaseLost, _opened_and_read(world, partition, start))
        await world.append(partition, numbered(0, 2))
        assert await bodies(newer, 2) == texts(0, 2)

    @sentence
    async def test_events_outlive_the_source(self, world: SourceWorld) -> None:
        partition = await first(world)
        await world.append(partition, numbered(0, 5))
        position = (await events_of(world, partition, 5))[1].position
        await world.restart()
        reader = await world.source.open(partition, position, epoch=2)
        assert await bodies(reader, 3) == texts(2, 5)
        await reader.aclose()
        await world.append(partition, numbered(5, 6))
        assert await bodies(await opened(world, partition), 6) == texts(0, 6)

    @sentence
    async def test_an_ended_partition_returns_all_its_events_and_then_its_children(self, world: SourceWorld) -> None:
        if isinstance(world.source, Vanishing):
            raise NotImplementedError
        partition = await first(world)
        reader = await opened(world, partition)
        await world.append(partition, numbered(0, 5))
        waiting = await opened(world, partition, "latest")
        end = asyncio.create_task(waiting.read(10, MUCH, LONG_S))
        await world.end(partition)
        assert (await end).ended is not None
        found: list[bytes] = []
        ended: Sequence[Partition] | None = None
        while ended is None:
            batch = await reader.read(2, MUCH, LONG_S)
            found += [event.body for event in batch.events]
            ended = batch.ended
        assert found == texts(0, 5)
        assert [child.parents for child in ended] == [(partition,)] * len(ended)
        assert {child.id for child in ended} <= {one.id for one in await world.source.partitions()}
        late = await world.source.open(partition, batch.resume, epoch=2)
        assert (await late.read(10, MUCH, LONG_S)).ended == ended

    @sentence
    async def test_a_removed_partition_returns_its_children_which_have_the_rest(self, world: SourceWorld) -> None:
        source = world.source
        if not isinstance(source, Vanishing):
            raise NotImplementedError
        partition = await first(world)
        await world.append(partition, numbered(0, 6))
        handled = (await events_of(world, partition, 6))[3].position
        waiting = await opened(world, partition, "latest")
        end = asyncio.create_task(waiting.read(10, MUCH, LONG_S))
        await world.end(partition)
        assert (await end).ended is not None
        reader = await world.source.open(partition, handled, epoch=2)
        batch = await reader.read(10, MUCH, LONG_S)
        assert (batch.events, batch.resume) == ([], handled)
        children = batch.ended or ()
        assert {child.id for child in children} <= {one.id for one in await world.source.partitions()}
        assert all(partition in child.parents for child in children)
        assert await world.source.resolve(partition, "earliest")
        assert (await world.source.bounds([partition]))[partition].newest is None
        found: list[bytes] = []
        for child in children:
            start = await source.child_start(child.id, {partition: handled})
            rest = await world.source.open(child.id, start, epoch=1)
            while events := (await rest.read(10, MUCH, SHORT_S)).events:
                found += [event.body for event in events]
        assert sorted(found) == texts(4, 6)
