"""Documents are written, ranges split and merged at random, and one who knows only what a source tells follows them
all, now and then with a source that has seen nothing of what was before."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from evenflow.sources.cosmos.source import CosmosSource
from evenflow.testing.cosmos import Cosmos, cosmos
from tests.integration.cosmos_scene import MUCH, Orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.model import Event, Position

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server() -> Iterator[Cosmos]:
    """It ends with its test, and so do the containers that it has opened."""
    with cosmos(ranges=2) as served:
        yield served


class Walk:
    def __init__(self, server: Cosmos, seed: int, mode: str) -> None:
        self.rng = random.Random(seed)
        self.orders, self.mode = Orders(server), mode
        self.source = self.opened()
        self.places: dict[str, Position] = {}
        self.ended: dict[str, Position] = {}
        self.handled: list[tuple[str, int]] = []
        self.written = 0

    def opened(self) -> CosmosSource:
        return CosmosSource(self.orders.at(mode=self.mode, poll_s=0.001, max_items=self.rng.choice([1, 2, 1000])))

    def write(self) -> None:
        inside, name = self.orders.inside, f"d{self.rng.randrange(12)}"
        there = list(inside.query("SELECT * FROM c WHERE c.id = @id", {"@id": name}))
        if there and self.rng.random() < 0.2:
            inside.delete(name, name)
        else:
            self.written += 1
            inside.upsert({"id": name, "k": name, "n": self.written})

    def reshape(self) -> None:
        ranges = self.orders.inside.ranges()
        if len(ranges) < 2 or (len(ranges) < 5 and self.rng.random() < 0.5):
            self.orders.inside.split(self.rng.choice(ranges).id)
        else:
            at = self.rng.randrange(len(ranges) - 1)
            self.orders.inside.merge(ranges[at].id, ranges[at + 1].id)

    async def follow(self, *, careful: bool) -> bool:
        """A few events of one range that may be read; whether there may be more anywhere. With `careful` all that was
        handled is checkpointed, otherwise some of it comes again."""
        for one in await self.source.partitions():
            waits = [name for name in one.parents if name in self.places and name not in self.ended]
            if one.id not in self.places and not waits:
                parents = {name: self.ended[name] for name in one.parents if name in self.ended}
                start = self.source.child_start(one.id, parents) if parents else self.source.resolve(one.id, "earliest")
                self.places[one.id] = await start
        open_ones = [name for name in self.places if name not in self.ended]
        self.rng.shuffle(open_ones)
        for name in open_ones:
            if await self._read(name, careful=careful):
                return True
        return False

    async def _read(self, name: str, *, careful: bool) -> bool:
        reader = await self.source.open(name, self.places[name], epoch=1)
        batch = await reader.read(self.rng.randint(1, 4), MUCH, 0.0)
        await reader.aclose()
        if batch.ended is not None:
            assert batch.resume == self.places[name]
            self.ended[name] = self.places[name]
            return True
        count = self.rng.randint(1, len(batch.events)) if batch.events else 0
        self.handled += [_version(event) for event in batch.events[:count]]
        marked = count if careful else self.rng.randint(0, count)
        if marked == len(batch.events):
            self.places[name] = batch.resume
        elif marked:
            self.places[name] = batch.events[marked - 1].position
        return bool(batch.events)

    async def walk(self, steps: int, *, careful: bool) -> None:
        for _ in range(steps):
            chance = self.rng.random()
            if chance < 0.1:
                self.reshape()
            elif chance < 0.15:
                await self.source.aclose()
                self.source = self.opened()
            elif chance < 0.6:
                self.write()
            else:
                await self.follow(careful=careful)
        while await self.follow(careful=True):
            pass
        await self.source.aclose()


def _version(event: Event) -> tuple[str, int]:
    body: dict[str, Any] = msgspec.json.decode(event.body)
    if "metadata" in body:
        kind = body["metadata"]["operationType"]
        body = body["previous"] if kind == "delete" else body["current"]
        return body["id"], -body["n"] if kind == "delete" else body["n"]
    return body["id"], body["n"]


@pytest.mark.parametrize("seed", range(5))
def test_of_all_versions_each_comes_once_and_in_order(server: Cosmos, seed: int) -> None:
    walk = Walk(server, seed, "all")
    asyncio.run(walk.walk(150, careful=True))
    versions = [version for _, version in walk.handled if version > 0]
    assert sorted(versions) == list(range(1, walk.written + 1))
    deletes = [event for event in walk.handled if event[1] < 0]
    assert max(Counter(deletes).values(), default=1) == 1
    for name in {name for name, _ in walk.handled}:
        mine = [version for found, version in walk.handled if found == name]
        assert mine == sorted(mine, key=lambda version: (abs(version), version < 0)), name


@pytest.mark.parametrize("mode", ["latest", "all"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_where_what_was_handled_is_not_marked(server: Cosmos, mode: str, seed: int) -> None:
    walk = Walk(server, 100 + seed, mode)
    asyncio.run(walk.walk(150, careful=False))
    last = {name: version for name, version in walk.handled if version > 0}
    there = {one["id"]: one["n"] for one in walk.orders.inside.query("SELECT * FROM c")}
    assert {name: last[name] for name in there} == there
    if mode == "all":
        assert {version for _, version in walk.handled if version > 0} == set(range(1, walk.written + 1))
