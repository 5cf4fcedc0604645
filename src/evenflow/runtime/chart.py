"""What an instance knows of the source's partitions: which there are, which follow which, and when to ask again.

Nothing is decided here, and nobody is asked: the engine brings what the source lists, the coordinator what leases name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from evenflow.core.lineage import attendant_of, open_ones, parents_of
from evenflow.model import Partition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from evenflow.model import Lease, PartitionId

    Leases: TypeAlias = Mapping[PartitionId, Lease]


class Chart:
    def __init__(self, *, vanish: bool) -> None:
        """`vanish`: partitions are gone as soon as they have children."""
        self._vanish = vanish
        self.known: Mapping[PartitionId, Partition] = {}
        """Replaced and never changed, as are the parents: whoever keeps one keeps what was known then."""
        self.parents: Mapping[PartitionId, tuple[PartitionId, ...]] = {}
        """Of children, those that they may have to wait for."""
        self.curious = asyncio.Event()
        """The source should be asked: there are partitions that are not known."""
        self.questions = 0
        self._answered = 0

    def learn(
        self, listed: Sequence[Partition], leases: Leases, asked: Collection[PartitionId], questions: int
    ) -> bool:
        """What the source has now; whether some of it is new. What is not listed stays, but for what has vanished and
        nobody has had.

        `asked` and `questions` are from before the source was: what it does not have of the `asked` follows nobody.
        """
        before = self.known
        stay = {name: one for name, one in before.items() if not self._vanish or name in leases}
        self.known = {name: Partition(name) for name in asked} | stay | {one.id: one for one in listed}
        self.parents = parents_of(self.known.values(), {one.id for one in listed}, vanish=self._vanish)
        self._answered = questions
        return not self.known.keys() <= before.keys()

    def wonder(self) -> None:
        """There may be partitions that are not known."""
        self.questions += 1
        self.curious.set()

    @property
    def is_current(self) -> bool:
        """All questions are answered."""
        return self._answered == self.questions

    def look(self, before: Leases | None, now: Leases) -> None:
        """Leases that changed tell of partitions that somebody else found, or of the end of one: it has children."""
        if before is now:
            return
        known = now if before is None else before
        ended = any(one.ended and not (name in known and known[name].ended) for name, one in now.items())
        if ended or self.strangers(now):
            self.wonder()

    def strangers(self, leases: Leases) -> set[PartitionId]:
        """Leases name them, and the source was not asked about them."""
        return open_ones((), leases).difference(self.known)

    def ended_parents(self, partition: PartitionId, leases: Leases) -> list[Lease]:
        """The leases of those that it follows, as far as the group had them."""
        child = self.known.get(partition)
        found = [leases[name] for name in child.parents if name in leases] if child is not None else []
        return [lease for lease in found if lease.ended]

    def attendant(self, partition: PartitionId, leases: Leases) -> PartitionId | None:
        """Whose owner looks after the dead letters of this one, which has ended."""
        return attendant_of(partition, self.known.values(), leases)
