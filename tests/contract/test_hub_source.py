from __future__ import annotations

import shutil
import tempfile
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.embedded.hub import Hub
from evenflow.model import MICROSECONDS
from evenflow.sources.hub.source import HubSource
from evenflow.testing.source.contract import SourceContract, SourceWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import Event


class HubWorld(SourceWorld):
    """Two opened hubs on one folder, as two processes would have them: one writes, the other is read."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.folder = folder
        self.now_us = 1_700_000_000 * MICROSECONDS
        self.hub = self.create(partitions)
        self.source = HubSource(str(folder))

    def create(self, partitions: int) -> Hub:
        return Hub.create(self.folder, partitions, wall_us=lambda: self.now_us)

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        await self.hub.send(events, partition=partition)

    async def later(self) -> datetime:
        self.now_us += 20 * MICROSECONDS
        return datetime.fromtimestamp(self.now_us / MICROSECONDS - 10, UTC)

    async def grow(self, more: int) -> None:
        self.hub.add_partitions(more)

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = HubSource(str(self.folder))

    async def remake(self) -> None:
        shutil.rmtree(self.folder)
        await self.hub.aclose()
        self.hub = self.create(2)

    async def aclose(self) -> None:
        await self.source.aclose()
        await self.hub.aclose()


class TestHubSource(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        with tempfile.TemporaryDirectory() as folder:
            world = HubWorld(Path(folder) / "hub", partitions)
            try:
                yield world
            finally:
                await world.aclose()


class SingleRows(HubWorld):
    """One event a row, so that rows are also cut, joined and trimmed one by one."""

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        for event in events:
            await self.hub.send(event, partition=partition)

    async def trim(self, partition: str, count: int) -> None:
        """Only whole rows can be trimmed; here each has one event."""
        log = self.hub.opened().log(int(partition))
        log.remove_before(log.state().oldest + count)


class TestHubSourceOfSingleRows(SourceContract):
    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        with tempfile.TemporaryDirectory() as folder:
            world = SingleRows(Path(folder) / "hub", partitions)
            try:
                yield world
            finally:
                await world.aclose()
