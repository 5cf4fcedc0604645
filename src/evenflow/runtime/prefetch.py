"""Reads ahead of the handler, within bounds of events and bytes, so that memory stays bounded when it is slow."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.errors import LeaseLost
from evenflow.model import Batch
from evenflow.ports import Revocable

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.ports import Reader

READ_WAIT_S = 1.0
"""An idle read returns this often; nothing is lost or delayed by it."""


class Prefetch:
    """`next` gives batches in order, raises what the reader raised once all before it was given, and gives None
    once `cut` was called: what was read ahead is then not handled. Nor is it when the reader raises LeaseLost, of
    which `lost` is told at once: somebody else reads the partition by now."""

    def __init__(
        self,
        reader: Reader,
        *,
        batch_events: int,
        most_events: int,
        most_bytes: Callable[[], int],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._lost = lost
        self._batch_events = min(batch_events, most_events)
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._batches: deque[Batch] = deque()
        self._events = 0
        self._bytes = 0
        self._is_cut = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks = [asyncio.create_task(self._fill())]
        if isinstance(reader, Revocable):
            self._tasks.append(asyncio.create_task(self._heed(reader)))

    def cut(self) -> None:
        self._is_cut = True
        self._changed.set()

    async def next(self) -> Batch | None:
        while not self._batches and not self._is_cut:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        if isinstance(self._error, LeaseLost):
            raise self._error
        if self._is_cut:
            return None
        batch = self._batches.popleft()
        self._events -= len(batch.events)
        self._bytes -= batch.size_bytes
        self._room.set()
        return batch

    async def full(self) -> Batch | None:
        """As `next`, but once there are as many events as a call takes, or no room for more."""
        while not (self._is_full or self._is_cut or self._error is not None):
            self._changed.clear()
            await self._changed.wait()
        return await self.joined()

    async def joined(self) -> Batch | None:
        """As `next`, with all that there is, up to as many events as a call takes."""
        batch = await self.next()
        while batch is not None and self._batches and (room := self._batch_events - len(batch.events)):
            if len(self._batches[0].events) > room:
                self._batches[0], first = _cut(self._batches[0], room)
                self._batches.appendleft(first)
            more = await self.next()
            assert more is not None
            batch = Batch([*batch.events, *more.events], more.resume, batch.size_bytes + more.size_bytes, more.ended)
        return batch

    @property
    def has_events(self) -> bool:
        return self._events > 0

    @property
    def _is_full(self) -> bool:
        return self._events >= self._batch_events or not self._has_room

    @property
    def _has_room(self) -> bool:
        """Room for a whole read: less would make small reads of what is left."""
        if not self._batches:
            return True
        return self._events + self._batch_events <= self._most_events and self._bytes < self._most_bytes()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            if running := [task for task in self._tasks if not task.done()]:
                await asyncio.wait(running)
        finally:
            with suppress(Exception):
                await self._reader.aclose()

    async def _fill(self) -> None:
        try:
            while True:
                await self._wait_for_room()
                room_bytes = max(1, self._most_bytes() - self._bytes)
                batch = await self._reader.read(self._batch_events, room_bytes, READ_WAIT_S)
                if self._batches and _is_idle(self._batches[-1]) and not batch.events:
                    self._batches.pop()  # a partition that is idle during a long call fills no queue
                self._batches.append(batch)
                self._events += len(batch.events)
                self._bytes += batch.size_bytes
                self._changed.set()
                if batch.ended is not None:
                    return
        except Exception as error:
            self._fail(error)

    async def _heed(self, reader: Revocable) -> None:
        """Also while there is no room, and nobody reads."""
        self._fail(await reader.revoked())

    def _fail(self, error: Exception) -> None:
        if isinstance(self._error, LeaseLost):
            return
        self._error = error
        self._changed.set()
        if isinstance(error, LeaseLost):
            self._lost()

    async def _wait_for_room(self) -> None:
        while not self._has_room:
            self._room.clear()
            await self._room.wait()


def _is_idle(batch: Batch) -> bool:
    return not batch.events and batch.ended is None


def _cut(batch: Batch, count: int) -> tuple[Batch, Batch]:
    """What is left of a batch, and its first events."""
    first = list(batch.events[:count])
    size_bytes = sum(len(event.body) for event in first)
    left = Batch(list(batch.events[count:]), batch.resume, batch.size_bytes - size_bytes, batch.ended)
    return left, Batch(first, first[-1].position, size_bytes)
