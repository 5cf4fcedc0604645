"""What an instance remembers of the partitions that it handled before: how far it came, and which it may have back.

The store may not have what is remembered: it was unreachable when the instance stopped, or it has lost writes since.
Here is decided what is written to the store before anything is sealed anew, under which epoch, and what is forgotten.
The coordinator and the pumps write it; the store refuses it where another owner has come further.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evenflow.model import next_epoch, restore_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from evenflow.core.view import View
    from evenflow.model import Checkpoint, Lease, Owner, PartitionId


SURE, UNSURE, BLIND = range(3)
"""How much an instance trusts that where it began is where the group was, when the store has lost writes.

UNSURE: it may have sealed the partition in the emptied store already, or it left it to others when the store lost
writes before. BLIND: it was first in an emptied store. Both know more than whoever comes later and knows nothing, and
less than those who were there before: what they remember is restored under epochs between.
"""


class Tenure(Struct, frozen=True, kw_only=True):
    """How this instance stopped handling a partition."""

    epoch: int
    deadline_s: float
    """Until then, no other instance can have taken it over."""
    passing: bool
    """It may have been passed to another instance."""
    sealed_s: float
    """When it was sealed; infinite: never."""


class Remembered(Struct, frozen=True, kw_only=True):
    record: Checkpoint
    """Under the epoch that it is written under."""
    epoch: int
    """Under which it was handled."""
    lineage: str
    """Of the store then."""
    due: bool
    """The store may not have it."""
    lost: bool = False
    """The store has lost writes since."""
    doubt: int = SURE


class Memory:
    def __init__(self, me: Callable[[], Owner], starts_at_end: Callable[[PartitionId], bool]) -> None:
        self._me = me
        self._starts_at_end = starts_at_end
        self._remembered: dict[PartitionId, Remembered] = {}
        self._tenures: dict[PartitionId, Tenure] = {}
        self._lineage = ""
        self._sent_s = -inf
        """When the last answered heartbeat was sent."""
        self.reclaims: Collection[PartitionId] = ()
        """What this instance may claim at once, in a store that has lost writes."""

    # --- what is remembered
    def leave(self, partition: PartitionId, tenure: Tenure) -> None:
        """It stopped handling this partition."""
        self._tenures[partition] = tenure

    def remember(self, record: Checkpoint, *, due: bool) -> None:
        """How far it came. Once more under the same epoch, when the last call has returned."""
        known = self._remembered.get(record.partition)
        if known is not None and known.epoch == record.epoch:
            # What the store had before it lost writes says nothing of what it has now.
            moved = (record.ordinal, record.position) != (known.record.ordinal, known.record.position)
            due = known.due or moved if known.lost else due
            restored = replace(record, epoch=known.record.epoch)
            self._remembered[record.partition] = replace(known, record=restored, due=due)
        else:
            self._remembered[record.partition] = Remembered(
                record=record, epoch=record.epoch, lineage=self._lineage, due=due
            )

    def forget(self, partition: PartitionId) -> None:
        """The store's record is the truth: effects went back with it."""
        self._remembered.pop(partition, None)

    def drop(self, floor: int) -> None:
        """Without what was of a group that has been deleted."""
        self._remembered = {name: one for name, one in self._remembered.items() if one.epoch > floor}
        self._tenures = {name: one for name, one in self._tenures.items() if one.epoch > floor}

    # --- what is to be written
    @property
    def is_losing(self) -> bool:
        """The store has lost writes, and does not have again what is remembered."""
        return any(one.due and one.lost for one in self._remembered.values())

    def recalled(self, partition: PartitionId, epoch: int) -> Checkpoint | None:
        """What is to be sealed under `epoch` if the store has no record, although it was written before: that one
        counts for nothing beside another."""
        known = self._remembered.get(partition)
        if known is None or known.epoch >= epoch:
            return None
        return replace(known.record, epoch=epoch, ordinal=0 if known.lost else known.record.ordinal)

    def due(self, partition: PartitionId | None = None) -> list[Checkpoint]:
        """What the store may not have, of one partition or of all."""
        found = self._remembered if partition is None else self._of(partition)
        return [one.record for one in found.values() if one.due]

    def written(self, record: Checkpoint) -> None:
        """The store has answered: it has this, or knows better."""
        known = self._remembered.get(record.partition)
        if known is not None and known.record is record:
            self._remembered[record.partition] = replace(known, due=False)

    def _of(self, partition: PartitionId) -> dict[PartitionId, Remembered]:
        known = self._remembered.get(partition)
        return {partition: known} if known is not None else {}

    # --- lost writes
    def look(self, before: View | None, after: View, sent_s: float, now_s: float) -> None:
        """After each answered heartbeat: has the store lost writes since the one before?"""
        if after.epoch_floor:
            self.drop(after.epoch_floor)
        if before is not None and before.history != after.history:
            is_behind = _is_behind(before, after)
            held = self._held_until_now(before, now_s)
            self.reclaims = held if is_behind else ()
            for name, one in self._remembered.items():
                is_unsure = self._began_just_now(one, before) or (one.lost and one.record.epoch == one.epoch)
                doubt = max(one.doubt, UNSURE * is_unsure, BLIND * (not is_behind))
                restoring = self._restoring(replace(one, doubt=doubt), before, after, is_held=name in held)
                self._remembered[name] = replace(restoring, due=True, lost=True)
        self._lineage, self._sent_s = after.cursor.lineage, sent_s

    def _began_just_now(self, one: Remembered, before: View) -> bool:
        """It may have been sealed in the store that had lost writes already: what it began with was no record, but the
        start of the group. Those who had it before know better, if anybody had: under its first epoch nobody had."""
        tenure = self._tenures.get(one.record.partition)
        if tenure is None or tenure.epoch != one.epoch or one.epoch == next_epoch(before.epoch_floor, before.began):
            return False
        return tenure.sealed_s > self._sent_s

    def _held_until_now(self, before: View, now_s: float) -> set[PartitionId]:
        """No other instance can have had these when the store lost writes: it would have had to wait for the deadline,
        or to be passed them."""
        return {
            name
            for name, tenure in self._tenures.items()
            if tenure.sealed_s <= self._sent_s
            and not tenure.passing
            and now_s < tenure.deadline_s
            and _is_mine(before.leases.get(name), self._me(), tenure.epoch, before.history)
        }

    def _restoring(self, one: Remembered, before: View, after: View, *, is_held: bool) -> Remembered:
        """Above whatever an instance may have begun that came first, in a store that knew nothing.

        That would pass over events where the group starts at the end of the log.
        """
        name, record = one.record.partition, one.record
        if one.lineage == after.cursor.lineage:
            return one
        is_last = is_held and self._tenures[name].epoch == one.epoch and one.doubt == SURE
        is_followed = _has_traces(before, after) and _succeeds(after.leases.get(name), before, one)
        if is_last or (self._starts_at_end(name) and not is_followed):
            record = replace(record, epoch=restore_epoch(after.history) - one.doubt)
        return replace(one, record=record)


def _is_behind(before: View, after: View) -> bool:
    """Whether the store lacks what this very instance has seen. Otherwise it was another that did: this one has come
    first to a store that was emptied, and what it took may be handled by those who were there before."""
    is_another = before.cursor.lineage != after.cursor.lineage
    return is_another or before.cursor.revision > after.cursor.revision


def _is_mine(lease: Lease | None, me: Owner, epoch: int, history: int) -> bool:
    return lease is not None and (lease.owner, lease.epoch, lease.history) == (me, epoch, history)


def _has_traces(before: View, after: View) -> bool:
    """Whether anything that was known before the loss is still there: then the store was not emptied."""
    return any(after.leases.get(name) == known for name, known in before.leases.items())


def _succeeds(lease: Lease | None, before: View, one: Remembered) -> bool:
    """Whether this lease follows from the one that was known before, as far as can be told: in one store both its
    numbers rise, and epochs rise above that of what is remembered.

    That says nothing where the store may have been emptied. Newcomers give epochs there as well, and a history that has
    risen does not tell who raised it. Then what is remembered is restored: where heirs have come further, and have not
    sealed the partition again yet, events are handled twice rather than never.
    """
    if lease is None:
        return False
    known = before.leases.get(lease.partition)
    if known is None:
        return lease.epoch > one.record.epoch
    is_same = (lease.epoch, lease.owner) == (known.epoch, known.owner)
    return is_same or (lease.epoch > known.epoch and lease.revision > known.revision)
