"""Reading ahead of the handler, within bounds of events and of bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.errors import LeaseLost, SourceUnavailable
from evenflow.model import Batch, Event, Partition
from evenflow.runtime.prefetch import Prefetch
from tests.unit.runtime.stage import Stage, at

if TYPE_CHECKING:
    from collections.abc import Sequence

EVENT_BYTES = 10


class Endless:
    """Gives events of so many bytes as long as it is asked, as many as it may; then an end, an error, or silence."""

    def __init__(self, sizes: Sequence[int] = (), *, error: Exception | None = None, ended: bool = False) -> None:
        self.sizes = sizes
        self.given = 0
        self.reads: list[tuple[int, int]] = []
        self.is_open = True
        self._error, self._ended = error, ended

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        self.reads.append((max_events, max_bytes))
        await asyncio.sleep(0)
        if self.sizes and self.given >= len(self.sizes):
            return await self._end()
        events: list[Event] = []
        size_bytes = 0
        while len(events) < max_events and not (self.sizes and self.given + len(events) >= len(self.sizes)):
            size = self.sizes[self.given + len(events)] if self.sizes else EVENT_BYTES
            if events and size_bytes + size > max_bytes:
                break
            events.append(Event(b"x" * size, sequence=self.given + len(events)))
            size_bytes += size
        self.given += len(events)
        return Batch(events, at(self.given - 1), size_bytes)

    async def _end(self) -> Batch:
        if self._error is not None:
            raise self._error
        if self._ended:
            return Batch([], at(self.given - 1), 0, (Partition("child"),))
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def aclose(self) -> None:
        self.is_open = False


def reading(reader: Endless, events: int = 10, most: int = 25, most_bytes: int = 10**6) -> Prefetch:
    return Prefetch(reader, batch_events=events, most_events=most, most_bytes=lambda: most_bytes)


def sequences(batch: Batch | None) -> list[int | None]:
    assert batch is not None
    return [event.sequence for event in batch.events]


async def pause() -> None:
    """Long enough, in virtual time, for everything that can go on to go on."""
    await asyncio.sleep(100.0)


class Idle:
    """A partition of which nothing comes, each read after its wait."""

    reads = 0

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        await asyncio.sleep(max_wait_s)
        self.reads += 1
        return Batch([], at(self.reads))

    async def aclose(self) -> None: ...


async def test_an_idle_partition_fills_no_queue_during_a_long_call(stage: Stage) -> None:
    reader = Idle()
    prefetch = Prefetch(reader, batch_events=10, most_events=25, most_bytes=lambda: 10**6)
    await pause()
    assert reader.reads > 50
    batch = await prefetch.next()
    assert batch is not None
    assert batch.resume == at(reader.reads), "the latest is as good as all of them"
    assert not prefetch._batches
    await prefetch.aclose()


async def test_it_reads_no_more_events_than_it_may_keep(stage: Stage) -> None:
    reader = Endless()
    prefetch = reading(reader, events=10, most=25)
    await pause()
    assert reader.given == 20, "there is no room for a third whole read"
    assert sequences(await prefetch.next()) == list(range(10))
    await pause()
    assert reader.given == 30, "room again"
    await prefetch.aclose()


async def test_it_reads_as_many_events_as_it_may_keep(stage: Stage) -> None:
    reader = Endless()
    prefetch = reading(reader, events=10, most=20)
    await pause()
    assert reader.given == 20
    await prefetch.aclose()


async def test_a_read_is_never_larger_than_all_that_may_be_kept(stage: Stage) -> None:
    reader = Endless()
    prefetch = reading(reader, events=1000, most=25)
    await pause()
    assert reader.given == 25
    assert reader.reads == [(25, 10**6)]
    await prefetch.aclose()


async def test_it_reads_no_more_bytes_than_it_may_keep(stage: Stage) -> None:
    reader = Endless()
    prefetch = reading(reader, events=3, most=1000, most_bytes=5 * EVENT_BYTES)
    await pause()
    assert reader.given == 5
    assert [max_bytes for _, max_bytes in reader.reads] == [50, 20]
    await prefetch.next()
    await pause()
    assert reader.given == 8
    await prefetch.aclose()


async def test_an_event_that_is_larger_than_all_that_may_be_kept_comes_alone(stage: Stage) -> None:
    reader = Endless([1000, 1000, 1000])
    prefetch = reading(reader, most_bytes=100)
    await pause()
    assert reader.given == 1
    assert [sequences(await prefetch.next()) for _ in range(3)] == [[0], [1], [2]]
    await prefetch.aclose()


async def test_the_bound_in_bytes_may_change_while_it_reads(stage: Stage) -> None:
    """Partitions come and go, and share what a processor may keep."""
    bound = 30
    reader = Endless()
    prefetch = Prefetch(reader, batch_events=3, most_events=1000, most_bytes=lambda: bound)
    await pause()
    assert reader.given == 3
    bound = 60
    await prefetch.next()
    await pause()
    assert reader.given == 9
    await prefetch.aclose()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 30), st.integers(1, 200)
)
def test_whatever_comes_the_bounds_hold_and_nothing_is_lost(
    sizes: list[int], batch_events: int, most_events: int, most_bytes: int
) -> None:
    stage = Stage()

    async def scene() -> None:
        reader = Endless(sizes, error=SourceUnavailable("the end"))
        prefetch = reading(reader, batch_events, most_events, most_bytes)
        taken: list[int | None] = []
        while len(taken) < len(sizes):
            await pause()
            ahead = sizes[len(taken) : reader.given]
            assert 1 <= len(ahead) <= most_events
            assert sum(ahead[:-1]) <= most_bytes
            taken += sequences(await prefetch.next())
        assert taken == list(range(len(sizes)))
        with pytest.raises(SourceUnavailable):
            await prefetch.next()
        await prefetch.aclose()

    stage.play(scene())
    stage.close()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 30), st.integers(1, 200)
)
def test_joined_batches_are_no_larger_than_a_call_takes_and_nothing_is_lost(
    sizes: list[int], batch_events: int, most_events: int, most_bytes: int
) -> None:
    stage = Stage()

    async def scene() -> None:
        prefetch = reading(Endless(sizes, error=SourceUnavailable("the end")), batch_events, most_events, most_bytes)
        taken: list[int | None] = []
        while len(taken) < len(sizes):
            batch = await prefetch.full()
            assert batch is not None
            assert 1 <= len(batch.events) <= batch_events
            assert batch.size_bytes == sum(len(event.body) for event in batch.events)
            assert batch.resume.sequence == batch.events[-1].sequence
            taken += sequences(batch)
        assert taken == list(range(len(sizes)))
        with pytest.raises(SourceUnavailable):
            await prefetch.full()
        await prefetch.aclose()

    stage.play(scene())
    stage.close()


async def test_a_full_batch_is_waited_for_and_cut_off_what_comes_after(stage: Stage) -> None:
    reader = await stage.source.open("0", at(-1), epoch=1)
    prefetch = Prefetch(reader, batch_events=4, most_events=8, most_bytes=lambda: 1000)
    waiting = asyncio.create_task(prefetch.full())
    assert not prefetch.has_events
    for count in (1, 2):
        stage.fill(count, "0")
        await pause()
        assert not waiting.done()
    stage.fill(3, "0")
    assert sequences(await waiting) == [0, 1, 2, 3]
    assert sequences(await prefetch.joined()) == [4, 5]
    await prefetch.aclose()


async def test_who_waits_for_a_full_batch_is_told_that_it_is_cut(stage: Stage) -> None:
    prefetch = reading(Endless([1]))
    waiting = asyncio.create_task(prefetch.full())
    await pause()
    prefetch.cut()
    assert await waiting is None
    await prefetch.aclose()


async def test_what_was_read_is_given_before_the_error_is_raised(stage: Stage) -> None:
    prefetch = reading(Endless([1] * 15, error=SourceUnavailable("gone")))
    await pause()
    assert sequences(await prefetch.next()) == list(range(10))
    assert sequences(await prefetch.next()) == list(range(10, 15))
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="gone"):
            await prefetch.next()
    await prefetch.aclose()


async def test_who_waits_is_told_of_an_error(stage: Stage) -> None:
    prefetch = reading(Endless([1], error=SourceUnavailable("gone")))
    await prefetch.next()
    with pytest.raises(SourceUnavailable, match="gone"):
        await prefetch.next()
    await prefetch.aclose()


async def test_who_waits_is_given_what_comes(stage: Stage) -> None:
    stage.source.append("0", b"first")
    reader = await stage.source.open("0", at(-1), epoch=1)
    prefetch = Prefetch(reader, batch_events=10, most_events=20, most_bytes=lambda: 1000)
    assert sequences(await prefetch.next()) == [0]
    assert sequences(await prefetch.next()) == [], "an idle read returns now and then"
    waiting = asyncio.create_task(prefetch.next())
    await asyncio.sleep(0.5)
    stage.source.append("0", b"second")
    assert sequences(await waiting) == [1]
    await prefetch.aclose()


async def test_once_cut_nothing_more_is_given(stage: Stage) -> None:
    prefetch = reading(Endless())
    await pause()
    prefetch.cut()
    assert await prefetch.next() is None
    assert await prefetch.next() is None
    await prefetch.aclose()


async def test_a_cut_wakes_who_waits(stage: Stage) -> None:
    prefetch = reading(Endless([1]))
    await prefetch.next()
    waiting = asyncio.create_task(prefetch.next())
    await pause()
    assert not waiting.done()
    prefetch.cut()
    assert await waiting is None
    await prefetch.aclose()


async def test_a_partition_that_has_ended_is_not_read_on(stage: Stage) -> None:
    reader = Endless([1], ended=True)
    prefetch = reading(reader)
    assert sequences(await prefetch.next()) == [0]
    last = await prefetch.next()
    assert last is not None
    assert last.ended == (Partition("child"),)
    await pause()
    assert len(reader.reads) == 2
    await prefetch.aclose()


async def test_closing_ends_the_read_and_the_reader(stage: Stage) -> None:
    reader = Endless([1])
    prefetch = reading(reader)
    await prefetch.next()
    await pause()
    await prefetch.aclose()
    assert not reader.is_open
    reads = len(reader.reads)
    await pause()
    assert len(reader.reads) == reads


async def test_a_reader_that_fails_to_close_disturbs_nobody(stage: Stage) -> None:
    class Stubborn(Endless):
        async def aclose(self) -> None:
            raise SourceUnavailable("too late")

    await reading(Stubborn()).aclose()


async def test_a_cancel_while_closing_is_not_swallowed(stage: Stage) -> None:
    class Slow(Endless):
        async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
            try:
                return await super().read(max_events, max_bytes, max_wait_s)
            except asyncio.CancelledError:
                await asyncio.sleep(5.0)
                raise

    reader = Slow([1])
    prefetch = reading(reader)
    await prefetch.next()
    await pause()
    closing = asyncio.create_task(prefetch.aclose())
    await asyncio.sleep(1.0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not reader.is_open
    await pause()


async def test_once_somebody_else_reads_nothing_that_was_read_ahead_is_given(stage: Stage) -> None:
    """Otherwise two would handle the partition at the same time."""
    reader, told = Endless([EVENT_BYTES] * 6, error=LeaseLost("stolen")), []
    prefetch = Prefetch(
        reader, batch_events=2, most_events=100, most_bytes=lambda: 1_000, lost=lambda: told.append(True)
    )
    assert await prefetch.next() is not None
    await pause()
    assert (reader.given, told) == (6, [True])
    with pytest.raises(LeaseLost):
        await prefetch.next()
    await prefetch.aclose()


async def test_who_is_told_that_somebody_else_reads_stops_although_it_has_read_enough(stage: Stage) -> None:
    class Told(Endless):
        def __init__(self) -> None:
            super().__init__()
            self.is_stolen = asyncio.Event()

        async def revoked(self) -> LeaseLost:
            await self.is_stolen.wait()
            return LeaseLost("stolen")

    reader, told = Told(), []
    prefetch = Prefetch(reader, batch_events=2, most_events=4, most_bytes=lambda: 1_000, lost=lambda: told.append(True))
    assert await prefetch.next() is not None
    await pause()
    reads = len(reader.reads)
    reader.is_stolen.set()
    await pause()
    assert (len(reader.reads), told) == (reads, [True])
    with pytest.raises(LeaseLost):
        await prefetch.next()
    await prefetch.aclose()
