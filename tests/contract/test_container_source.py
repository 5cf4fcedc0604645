"""The feed of an embedded container keeps the contract of sources, in both modes, and where a range was merged."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from evenflow.embedded.container import Container
from evenflow.model import MICROSECONDS
from evenflow.sources.container.source import ContainerSource
from evenflow.testing.source.contract import SourceContract, SourceWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from evenflow.embedded.container.feed import Mode
    from evenflow.model import Batch, Event, Position
    from evenflow.ports import Reader

RETENTION_S = 1e6


class Documents(ContainerSource):
    """With the documents that the contract's events were put into made events again."""

    async def open(self, partition: str, after: Position, *, epoch: int) -> Reader:
        return DocumentReader(await super().open(partition, after, epoch=epoch))


class DocumentReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.aclose = reader.aclose

    async def read(self, max_events: int, max_bytes: int, max_wait_s: float) -> Batch:
        batch = await self._reader.read(max_events, max_bytes, max_wait_s)
        return structs.replace(batch, events=[_event(event) for event in batch.events])


def _event(event: Event) -> Event:
    body: Mapping[str, Any] = msgspec.json.decode(event.body)
    document = body.get("current", body)
    assert event.key == document["place"]
    found = {"body": bytes.fromhex(document["body"]), "key": document["key"], "properties": document["properties"]}
    return structs.replace(event, **found)


class ContainerWorld(SourceWorld):
    """Two opened containers on one folder, as two processes would have them: one writes, the other is read."""

    def __init__(self, folder: Path, partitions: int, mode: Mode) -> None:
        self.folder, self.mode = folder, mode
        self.now_us = 1_700_000_000 * MICROSECONDS
        self.numbers = count()
        self.writer = self.create(partitions)
        self.source = self.opened()

    def create(self, partitions: int) -> Container:
        return Container.create(self.folder, "/place", partitions, retention_s=RETENTION_S, wall_us=lambda: self.now_us)

    def opened(self) -> ContainerSource:
        return Documents(self.folder, mode=self.mode, poll_s=0.5)

    async def append(self, partition: str, events: Sequence[Event]) -> None:
        for event in events:
            self.now_us += MICROSECONDS
            properties = event.properties if event.properties is None else dict(event.properties)
            document = {"body": event.body.hex(), "key": event.key, "properties": properties}
            self.writer.insert({"id": str(next(self.numbers)), "place": self.key_in(partition), **document})

    def key_in(self, partition: str) -> str:
        """A key that belongs there."""
        (there,) = (one for one in self.writer.ranges() if one.id == partition)
        keys = self.writer.opened().metadata.keys
        names = (f"key-{number}" for number in self.numbers)
        return next(name for name in names if there.min <= keys.epk([name]) < there.max)

    async def later(self) -> datetime:
        self.now_us += 20 * MICROSECONDS
        return datetime.fromtimestamp(self.now_us / MICROSECONDS - 10, UTC)

    async def trim(self, partition: str, count: int) -> None:
        if self.mode == "latest":
            raise NotImplementedError
        page = self.writer.feed(partition, mode="all", max_items=1000)
        now_us, self.now_us = self.now_us, page.changes[count - 1].changed_us + round(RETENTION_S * MICROSECONDS) + 1
        self.writer.trim()
        self.now_us = now_us

    async def end(self, partition: str) -> None:
        self.writer.split(partition)

    async def restart(self) -> None:
        await self.source.aclose()
        self.source = self.opened()

    async def remake(self) -> None:
        shutil.rmtree(self.folder)
        self.writer.close()
        self.writer = self.create(2)

    async def aclose(self) -> None:
        await self.source.aclose()
        self.writer.close()


class MergedWorld(ContainerWorld):
    """Its ranges come from merges, each of two that had been written to."""

    def create(self, partitions: int) -> Container:
        made = super().create(partitions)
        for one in made.ranges():
            first, second = made.split(one.id)
            made.merge(first.id, second.id)
        return made


class InContainer(SourceContract):
    mode: Mode = "latest"
    kind: type[ContainerWorld] = ContainerWorld

    @asynccontextmanager
    async def world(self, partitions: int) -> AsyncIterator[SourceWorld]:
        with tempfile.TemporaryDirectory() as folder:
            world = self.kind(Path(folder) / "orders", partitions, self.mode)
            try:
                yield world
            finally:
                await world.aclose()


class TestLatestVersions(InContainer):
    pass


class TestAllVersions(InContainer):
    mode = "all"


class TestMergedRanges(InContainer):
    mode = "all"
    kind = MergedWorld


del InContainer
