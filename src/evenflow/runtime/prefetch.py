"""Reads ahead of the handler, within bounds of events and bytes, so that memory stays bounded when it is slow."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from evenflow.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model import Batch
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
        self._task = asyncio.create_task(self._fill())

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

    async def aclose(self) -> None:
        self._task.cancel()
        try:
            if not self._task.done():
                await asyncio.wait([self._task])
        finally:
            with suppress(Exception):
                await self._reader.aclose()

    async def _fill(self) -> None:
        try:
            while True:
                await self._wait_for_room()
                room_bytes = max(1, self._most_bytes() - self._bytes)
                batch = await self._reader.read(self._batch_events, room_bytes, READ_WAIT_S)
                self._batches.append(batch)
                self._events += len(batch.events)
                self._bytes += batch.size_bytes
                self._changed.set()
                if batch.ended is not None:
                    return
        except Exception as error:
            self._error = error
            self._changed.set()
            if isinstance(error, LeaseLost):
                self._lost()

    async def _wait_for_room(self) -> None:
        """Room for a whole read: less would make small reads of what is left."""
        while self._batches and (
            self._events + self._batch_events > self._most_events or self._bytes >= self._most_bytes()
        ):
            self._room.clear()
            await self._room.wait()
