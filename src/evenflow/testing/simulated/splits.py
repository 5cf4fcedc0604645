"""Partitions of a simulated world that split and merge, and which keys each of them has.

A key is one of a partition's slots. A split divides the slots among the children, a merge puts those of two partitions
together, so that a key is always in one open partition, and its events have one order across all generations.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from evenflow.testing.fakes import FakeFeed, FakeSource
from evenflow.testing.simulated.checkers import Generations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Event, Lease, Partition, PartitionId
    from evenflow.testing.simulated.world import World

SLOTS = 4
"""Of a partition that follows nobody."""
OPEN_MOST = 10
EVER_MOST = 30
MARKED_AT_ONCE, MARKED_LATER_S = 0.7, 3.0
"""So often an application marks the end of a partition in its stop hook; otherwise a little later."""


class Splits:
    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = random.Random(world.options.seed * 7919 + 5)
        self._slots: dict[PartitionId, list[int]] = {}
        self._count = 0
        self._homes: dict[bytes, PartitionId] = {}
        self._is_used = world.options.has_splits
        self.generations = Generations()

    def make_source(self) -> FakeSource:
        options = self._world.options
        if options.ending == "gone":
            return FakeFeed(options.partitions, takes=self._takes)
        return FakeSource(options.partitions)

    def origin(self, partition: PartitionId, sequence: int) -> tuple[PartitionId, int]:
        """Where an event was appended, which names it for good."""
        source = self._world.source
        return source.origin(partition, sequence) if isinstance(source, FakeFeed) else (partition, sequence)

    # --- keys
    def place(self) -> tuple[PartitionId, str]:
        """Of the next event."""
        for name in self._world.source.open_ids:
            if name not in self._slots:
                self._slots[name] = list(range(self._count, self._count + SLOTS))
                self._count += SLOTS
        partition = self.rng.choice(self._world.source.open_ids)
        return partition, f"s{self.rng.choice(self._slots[partition])}"

    def _takes(self, child: Partition, event: Event) -> bool:
        return int((event.key or "s")[1:]) in self._slots[child.id]

    def home(self, partition: PartitionId, event: Event) -> PartitionId:
        """Where an event was read that is redriven in this partition: a dead letter of an ended one goes to a child."""
        return self._homes.get(event.body, partition)

    # --- what happens
    def split(self) -> None:
        self.place()  # so that all have their slots
        source = self._world.source
        wide = [name for name in source.open_ids if len(self._slots[name]) > 1]
        if not wide or not self._has_room():
            return
        parent = self.rng.choice(wide)
        slots = self.rng.sample(self._slots[parent], len(self._slots[parent]))
        children = source.new_ids(2)
        cut = self.rng.randrange(1, len(slots))
        self._slots |= {children[0]: sorted(slots[:cut]), children[1]: sorted(slots[cut:])}
        self._world.tell(f"split p{parent} into {children}")
        source.end(parent, children)

    def merge(self) -> None:
        self.place()
        source = self._world.source
        if len(source.open_ids) < 2 or not self._has_room():
            return
        parents = self.rng.sample(source.open_ids, 2)
        (child,) = source.new_ids(1)
        self._slots[child] = sorted(slot for name in parents for slot in self._slots[name])
        self._world.tell(f"merge {parents} into p{child}")
        source.merge(parents, child)

    def _has_room(self) -> bool:
        return len(self._world.source.open_ids) < OPEN_MOST and len(self._slots) < EVER_MOST

    # --- what is checked
    def appended(self, partition: PartitionId, sequence: int, key: str | None, body: bytes) -> None:
        if self._is_used and key is not None:
            self._homes[body] = partition
            self.generations.appended(key, (partition, sequence))

    def may_skip(self, partition: PartitionId, sequence: int) -> bool:
        """A child that has copies of its parents' events leaves out those that they have handled."""
        copies = isinstance(self._world.source, FakeFeed)
        return copies and self._world.nothing_lost.is_handled(partition, sequence)

    def begins(self, partition: PartitionId, events: Sequence[Event]) -> None:
        if self._is_used:
            places = [(event.key or "", self.origin(partition, event.sequence or 0)) for event in events]
            self._world.checked(self.generations.begins, places, self._world.nothing_lost.is_handled)

    def handled(self, partition: PartitionId, event: Event) -> None:
        if self._is_used and event.key is not None:
            self.generations.handled(event.key, self.origin(partition, event.sequence or 0))

    def ended(self, partition: PartitionId) -> None:
        record, source = self._world.record(partition), self._world.source
        if not isinstance(source, FakeFeed):
            reached = record.position.sequence if record is not None else None
            self._world.checked(self.generations.ended, partition, reached, source.newest(partition))

    def unended(self, leases: dict[PartitionId, Lease]) -> str | None:
        """In the end every partition that has ended in the source has ended in the store, too."""
        here = set(self._world.source.open_ids)
        left = sorted(name for name, lease in leases.items() if name not in here and not lease.ended)
        return f"partition {left[0]} has ended in the source, and not in the store" if left else None
