"""Handler calls of one instance run together; one that may end the process runs alone, so that it is known which did.

Only while a partition is handled carefully does anybody ever wait here.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 5.0
"""So long who wants to be alone waits for calls that run; one that hangs must not halt all the others."""


class Turns:
    def __init__(self) -> None:
        self._running: set[object] = set()
        self._endless: set[object] = set()
        """Calls that were waited for in vain: they do not count any more."""
        self._one = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self._quiet = asyncio.Event()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Beside other calls, but not beside one that is alone."""
        call = await self.begin()
        try:
            yield
        finally:
            self.end(call)

    async def begin(self) -> object:
        """As `together`, for who calls often; `end` must follow."""
        while not self._room.is_set():
            await self._room.wait()
        call = object()
        self._running.add(call)
        return call

    def end(self, call: object) -> None:
        self._running.discard(call)
        if self._endless:
            self._endless.discard(call)
        if not self._room.is_set():
            self._look()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._one:
            self._room.clear()
            try:
                await self._wait_for_others()
                yield
            finally:
                self._room.set()

    async def _wait_for_others(self) -> None:
        self._quiet.clear()
        self._look()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._quiet.wait()
        except TimeoutError:
            self._endless |= self._running

    def _look(self) -> None:
        if not self._running - self._endless:
            self._quiet.set()
