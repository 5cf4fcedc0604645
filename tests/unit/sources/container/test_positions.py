"""Positions in the feed of a range: their text, their parts, and that no change is lost or repeated."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pytest

from evenflow.embedded.container import Container
from evenflow.errors import PositionOutOfRange
from evenflow.model import BEGINNING, Position
from evenflow.sources.container.positions import (
    PositionPart,
    RangePiece,
    advance,
    child_position,
    merge_equal,
    next_piece,
    parse_position,
    pieces,
    to_position,
)
from evenflow.sources.container.source import ContainerSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from evenflow.embedded.container.feed import Mode
    from evenflow.model import Event

WHOLE = ("", "FF")
LEFT, RIGHT = ("", "20"), ("20", "FF")
MUCH = 1 << 30


def place(text: str) -> tuple[PositionPart, ...]:
    return parse_position(Position(text))


@pytest.mark.parametrize("text", ["0", "17", "8,3@1F", "8,3@1F,12@2A00"])
def test_a_place_is_what_its_position_says(text: str) -> None:
    assert to_position(place(text)).offset == text


def test_the_sequence_of_a_place_is_where_all_of_it_is_passed() -> None:
    assert to_position(place("8,3@1F,12@2A")) == Position("8,3@1F,12@2A", 3)
    assert parse_position(Position("8,3@1F", 3)) == (PositionPart("", 8), PositionPart("1F", 3))
    assert parse_position(Position("17", 17)) == parse_position(Position("17")) == (PositionPart("", 17),)
    assert parse_position(BEGINNING) == (PositionPart("", 0),)


@pytest.mark.parametrize("offset", ["", "x", "3;4", "3,x@1F", "0-7"])
def test_an_offset_of_another_source_is_out_of_range(offset: str) -> None:
    with pytest.raises(PositionOutOfRange, match="is not an offset of a container"):
        place(offset)


def test_neighbours_with_one_lsn_are_one() -> None:
    assert merge_equal(
        [PositionPart("", 3), PositionPart("10", 3), PositionPart("20", 5), PositionPart("30", 5)]
    ) == place("3,5@20")


def test_parts_are_cut_to_where_they_are_looked_for() -> None:
    assert pieces(place("8,3@10"), WHOLE) == [RangePiece("", "10", 8), RangePiece("10", "FF", 3)]
    assert pieces(place("8,3@10"), RIGHT) == [RangePiece("20", "FF", 3)]
    assert pieces(place("8,3@10"), ("", "08")) == [RangePiece("", "08", 8)]


def test_what_is_read_next_is_furthest_behind_up_to_the_next_one() -> None:
    assert next_piece(place("8,3@10,12@20"), WHOLE) == (RangePiece("10", "20", 3), 8)
    assert next_piece(place("7"), RIGHT) == (RangePiece("20", "FF", 7), None)


def test_parts_become_one_as_they_are_read() -> None:
    assert advance(place("8,3@10"), WHOLE, RangePiece("10", "FF", 5)) == place("8,5@10")
    assert advance(place("8,3@10"), WHOLE, RangePiece("10", "FF", 8)) == place("8")


def test_a_child_of_a_split_goes_on_where_its_parent_was() -> None:
    assert child_position(LEFT, [(WHOLE, place("5"))]) == place("5")
    assert child_position(RIGHT, [(WHOLE, place("8,3@10,4@30"))]) == place("3,4@30")


def test_a_merged_child_goes_on_in_each_part_where_its_parent_was() -> None:
    assert child_position(WHOLE, [(LEFT, place("8")), (RIGHT, place("3"))]) == place("8,3@20")
    assert child_position(WHOLE, [(LEFT, place("4")), (RIGHT, place("4"))]) == place("4")
    assert child_position(WHOLE, [(LEFT, place("4"))]) == place("4,0@20"), "the other parent was never read"


def test_of_several_generations_the_youngest_counts() -> None:
    old, merged = [(LEFT, place("8")), (RIGHT, place("3"))], (WHOLE, place("9,7@20"))
    assert child_position(RIGHT, [*old, merged]) == place("7")
    assert child_position(("10", "30"), [*old, merged]) == place("9,7@20")
    assert child_position(("10", "30"), [*old, (WHOLE, place("2"))]) == place("2"), "it was rewound"
    assert child_position(WHOLE, [(WHOLE, place("9,7@30")), (LEFT, place("2"))]) == place("2,9@20,7@30")
    assert child_position(WHOLE, [(WHOLE, place("9")), (("10", "30"), place("2"))]) == place("9,2@10,9@30")


MakeWalk: TypeAlias = "Callable[[int, Mode], Walk]"


class Walk:
    """Writes documents, splits and merges ranges, and follows all of them knowing only what the source reports."""

    def __init__(self, folder: Path, seed: int, mode: Mode) -> None:
        self.rng = random.Random(seed)
        self.container = Container.create(folder / f"c-{seed}", "/key", 2, retention_s=None)
        self.source = ContainerSource(self.container, mode=mode)
        self.places: dict[str, Position] = {}
        self.ended: dict[str, Position] = {}
        self.handled: list[tuple[str, int]] = []
        self.written = 0

    def write(self) -> None:
        name = f"d-{self.rng.randrange(12)}"
        found = list(self.container.query("SELECT * FROM c WHERE c.id = @id", {"@id": name}))
        if found and self.rng.random() < 0.2:
            self.container.delete(name, name)
        else:
            self.written += 1
            self.container.upsert({"id": name, "key": name, "version": self.written})

    def reshape(self) -> None:
        ranges = self.container.ranges()
        if len(ranges) < 2 or (len(ranges) < 5 and self.rng.random() < 0.5):
            self.container.split(self.rng.choice(ranges).id)
        else:
            at = self.rng.randrange(len(ranges) - 1)
            self.container.merge(ranges[at].id, ranges[at + 1].id)

    async def follow(self, *, careful: bool) -> bool:
        """Reads a few events of one readable range, and returns whether there may be more. With `careful`, everything
        handled is checkpointed; otherwise some events are repeated."""
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
            elif chance < 0.55:
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
        return body["id"], -body["version"] if kind == "delete" else body["version"]
    return body["id"], body["version"]


@pytest.fixture
def make_walk(tmp_path: Path) -> Iterator[MakeWalk]:
    walks: list[Walk] = []

    def make(seed: int, mode: Mode) -> Walk:
        walks.append(Walk(tmp_path, seed, mode))
        return walks[-1]

    yield make
    for walk in walks:
        walk.container.close()


@pytest.mark.parametrize("seed", range(4))
def test_of_all_versions_each_comes_once_and_in_order(make_walk: MakeWalk, seed: int) -> None:
    walk = make_walk(seed, "all")
    asyncio.run(walk.walk(150, careful=True))
    versions = [version for _, version in walk.handled if version > 0]
    assert sorted(versions) == list(range(1, walk.written + 1))
    deletes = [event for event in walk.handled if event[1] < 0]
    assert max(Counter(deletes).values(), default=1) == 1
    for name in {name for name, _ in walk.handled}:
        mine = [version for found, version in walk.handled if found == name]
        assert mine == sorted(mine, key=lambda version: (abs(version), version < 0)), name


@pytest.mark.parametrize("mode", ["latest", "all"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_where_what_was_handled_is_not_marked(make_walk: MakeWalk, mode: Mode, seed: int) -> None:
    walk = make_walk(100 + seed, mode)
    asyncio.run(walk.walk(150, careful=False))
    last = {name: version for name, version in walk.handled if version > 0}
    there = {one["id"]: one["version"] for one in walk.container.query("SELECT * FROM c")}
    assert {name: last[name] for name in there} == there
    if mode == "all":
        assert {version for _, version in walk.handled if version > 0} == set(range(1, walk.written + 1))
