"""What the tests of the source contract share: a source, the means to change what it reads, and a few helpers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.model import Event, Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from evenflow.ports import Reader, Source, Start

LIMIT_S = 120.0
"""How long one test may take."""
LONG_S = 10.0
"""A wait that ends early if the source keeps the contract."""
SHORT_S = 0.05
"""A wait that passes in full."""
MUCH = 1 << 20


class SourceWorld(ABC):
    """A source under test, and the means to change what it reads."""

    source: Source
    exclusive = False
    """Opening a reader disconnects those of the same or a lower epoch."""

    @abstractmethod
    async def append(self, partition: str, events: Sequence[Event]) -> None:
        """Appends events to a partition, in order, and returns when they can be read."""

    async def later(self) -> datetime:
        """A time after all events so far, and not after any event to come."""
        await asyncio.sleep(0.01)
        now = datetime.now(UTC)
        await asyncio.sleep(0.01)
        return now

    async def trim(self, partition: str, count: int) -> None:
        """Removes this many of the oldest events."""
        raise NotImplementedError

    async def grow(self, more: int) -> None:
        """Adds partitions."""
        raise NotImplementedError

    async def end(self, partition: str) -> None:
        """Splits the partition in two."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Closes the source and replaces it by a new one on the same hub."""
        raise NotImplementedError

    async def remake(self) -> None:
        """Deletes the hub and creates it again, empty."""
        raise NotImplementedError


class SourceStage(ABC):
    """What a test class provides."""

    @abstractmethod
    def world(self, partitions: int) -> AbstractAsyncContextManager[SourceWorld]:
        """A new, empty hub with this many partitions, and a source that reads it."""


def sentence(test: Callable[[Any, SourceWorld], Awaitable[None]]) -> Callable[[SourceStage], None]:
    """Turns an async test into a plain one that runs in a new event loop, with a new hub of two partitions."""

    async def main(stage: SourceStage) -> None:
        async with asyncio.timeout(LIMIT_S), stage.world(2) as world:
            await test(stage, world)

    def run(self: SourceStage) -> None:
        try:
            asyncio.run(main(self))
        except NotImplementedError:
            pytest.skip("this source cannot do that")

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return run


async def bodies(reader: Reader, count: int, *, max_events: int = 1000, max_bytes: int = MUCH) -> list[bytes]:
    """The bodies of the next events, from as many reads as needed."""
    found: list[bytes] = []
    while len(found) < count:
        batch = await reader.read(min(max_events, count - len(found)), max_bytes, LONG_S)
        assert batch.events, f"{len(found)} of {count} events arrived"
        found += [event.body for event in batch.events]
    return found


def numbered(start: int, stop: int) -> list[Event]:
    return [Event(b"%d" % number) for number in range(start, stop)]


def texts(start: int, stop: int) -> list[bytes]:
    return [event.body for event in numbered(start, stop)]


async def first(world: SourceWorld) -> str:
    return (await world.source.partitions())[0].id


async def opened(world: SourceWorld, partition: str, start: Start = "earliest") -> Reader:
    return await world.source.open(partition, await world.source.resolve(partition, start), epoch=1)


async def events_of(world: SourceWorld, partition: str, count: int) -> list[Event]:
    """The first events of a partition, as the source returns them."""
    reader = await opened(world, partition)
    found: list[Event] = []
    while len(found) < count:
        found += (await reader.read(1000, MUCH, LONG_S)).events
    await reader.aclose()
    return found


def is_same(found: Position | None, expected: Position) -> bool:
    """Whether the positions are equal, or unknown. If both have a sequence, the offset may be unknown."""
    if found is None or found.sequence is None or expected.sequence is None:
        return found in (None, expected)
    return found.sequence == expected.sequence


async def refused(error: type[Exception], call: Awaitable[object]) -> None:
    try:
        await call
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


def is_before(newest: Position | None, oldest: Position | None) -> bool:
    if newest is None or oldest is None or newest.sequence is None or oldest.sequence is None:
        return True
    return newest.sequence < oldest.sequence
