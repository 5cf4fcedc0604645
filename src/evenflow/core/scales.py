"""Who carries how much, while a plan by load is being made: partitions are moved here in thought only.

Loads are whole numbers, so that a sum is the same in whatever order it was made, on every machine.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING, TypeAlias

from evenflow.core.seats import bounded, rank

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from evenflow.model import PartitionId, Seat

Item: TypeAlias = "tuple[int, tuple[int, str]]"
"""A partition on the scales: its load, then its rank, so that equal loads have an order too."""
Entry: TypeAlias = "tuple[float, tuple[int, str], int]"


class Scales:
    def __init__(
        self,
        owners: Mapping[PartitionId, str | None],
        seats: Sequence[Seat],
        figures: Mapping[PartitionId, int],
    ) -> None:
        """Partitions whose owner has no seat are nobody's."""
        self.figures = figures
        self.weight = {seat.id: bounded(seat.weight) for seat in seats}
        self.load = dict.fromkeys(self.weight, 0)
        self._most = {seat.id: seat.max_partitions for seat in seats}
        self._held: dict[str, dict[PartitionId, None]] = {name: {} for name in self.weight}
        self._items: dict[str, list[Item]] = {}
        self._version = dict.fromkeys(self.weight, 0)
        self._lightest: list[Entry] | None = None
        self.moved: dict[PartitionId, str | None] = {}
        """Where partitions are now that were moved in thought."""
        self.log: list[tuple[PartitionId, str | None, str | None]] = []
        for partition, owner in owners.items():
            if owner in self._held:
                self._held[owner][partition] = None
                self.load[owner] += figures[partition]

    # --- looking
    def scaled(self, name: str) -> float:
        """Its load for its weight: what is to be even."""
        return self.load[name] / self.weight[name]

    def peak(self) -> float:
        return max(map(self.scaled, self.load), default=0.0)

    def count(self, name: str) -> int:
        return len(self._held[name])

    def surplus(self, name: str) -> int:
        """How many more it has than it may have."""
        most = self._most[name]
        return 0 if most is None else self.count(name) - most

    def has_room(self, name: str) -> bool:
        return self._most[name] is None or self.surplus(name) < 0

    def items(self, name: str) -> list[Item]:
        """What it has, the lightest first. Sorted when first asked for, and kept so."""
        found = self._items.get(name)
        if found is None:
            found = sorted((self.figures[partition], rank(partition)) for partition in self._held[name])
            self._items[name] = found
        return found

    def lightest(self) -> str | None:
        """Who carries least and has room for one more."""
        if self._lightest is None:
            self._lightest = [self._entry(name) for name in self.load]
            heapify(self._lightest)
        heap = self._lightest
        while heap:
            _, (_, name), version = heap[0]
            if version == self._version[name] and self.has_room(name):
                return name
            heappop(heap)  # whoever gives something away is put in again
        return None

    def lightest_few(self, count: int, but: str) -> list[str]:
        few = nsmallest(count + 1, self.load, key=lambda name: (self.scaled(name), rank(name)))
        return [name for name in few if name != but][:count]

    def heaviest(self, but: Collection[str]) -> str | None:
        names = [name for name in self.load if name not in but]
        return max(names, key=lambda name: (self.scaled(name), rank(name)), default=None)

    # --- moving
    def move(self, partition: PartitionId, before: str | None, after: str | None) -> None:
        self.log.append((partition, before, after))
        self._shift(partition, before, after)

    def back_to(self, mark: int) -> None:
        """Undo all moves but the first `mark`."""
        while len(self.log) > mark:
            partition, before, after = self.log.pop()
            self._shift(partition, after, before)

    def _shift(self, partition: PartitionId, before: str | None, after: str | None) -> None:
        item = (self.figures[partition], rank(partition))
        self.moved[partition] = after
        if before is not None:
            del self._held[before][partition]
            if (items := self._items.get(before)) is not None:
                del items[bisect_right(items, item) - 1]
            self._weigh(before, -item[0])
        if after is not None:
            self._held[after][partition] = None
            if (items := self._items.get(after)) is not None:
                insort(items, item)
            self._weigh(after, item[0])

    def _weigh(self, name: str, difference: int) -> None:
        self.load[name] += difference
        self._version[name] += 1
        if self._lightest is not None:
            heappush(self._lightest, self._entry(name))

    def _entry(self, name: str) -> Entry:
        return self.scaled(name), rank(name), self._version[name]


def pack(
    partitions: Iterable[PartitionId], seats: Sequence[Seat], figures: Mapping[PartitionId, int]
) -> dict[PartitionId, str]:
    """The greedy packing: the heaviest first, each to whoever carries least. Nobody's present owner matters."""
    scales = Scales({}, seats, figures)
    for partition in heaviest_first(partitions, figures):
        name = scales.lightest()
        if name is not None:
            scales.move(partition, None, name)
    return {partition: name for partition, name in scales.moved.items() if name is not None}


def matched(
    packed: Mapping[PartitionId, str], owners: Mapping[PartitionId, str | None], seats: Sequence[Seat]
) -> dict[PartitionId, str]:
    """A packing with its bins given to those who have most of what is in them, among seats that are alike.

    Pairs of bin and owner are taken in the order of how much they have in common. A partition that has moved adds to
    what its new owner has in common with its bin, and takes from a pair that was not chosen: so the same pairs are
    chosen again whichever of the moves were made.
    """
    alike = {seat.id: (bounded(seat.weight), seat.max_partitions) for seat in seats}
    common: dict[tuple[str, str], int] = {}
    for partition, bin_ in packed.items():
        owner = owners[partition]
        if owner is not None and alike.get(owner) == alike[bin_]:
            common[bin_, owner] = common.get((bin_, owner), 0) + 1
    given: dict[str, str] = {}
    taken: set[str] = set()
    for bin_, owner in sorted(common, key=lambda pair: (-common[pair], rank(pair[0]), rank(pair[1]))):
        if bin_ not in given and owner not in taken:
            given[bin_] = owner
            taken.add(owner)
    free: dict[object, list[str]] = {}
    for name in sorted(alike.keys() - taken, key=rank, reverse=True):
        free.setdefault(alike[name], []).append(name)
    for bin_ in sorted(alike.keys() - given.keys(), key=rank):
        given[bin_] = free[alike[bin_]].pop()
    return {partition: given[bin_] for partition, bin_ in packed.items()}


def heaviest_first(partitions: Iterable[PartitionId], figures: Mapping[PartitionId, int]) -> list[PartitionId]:
    return sorted(partitions, key=lambda partition: (-figures[partition], rank(partition)))
