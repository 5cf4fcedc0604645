"""Stores that lose what they had: all of it, the group, or the last moments. And what is allowed then only.

An instance that comes first to an emptied store cannot know that it was emptied: until one that was there before sends
its next heartbeat, the newcomer is given epochs that were given before, and takes the end of the log for the start.
That much is allowed, no more: what it passed over has to be handled if an instance that remembers the place lives on,
and hears of the new history before somebody seals the partition in it. Others may do so when they have waited for the
longest time-to-live. Where the store lost its last moments before anybody had told it of its past, they need not wait:
the history has risen by itself then, and they hold their leases rightly as far as anybody can tell.
"""

from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

from evenflow.model import restore_epoch
from evenflow.testing.simulated.network import run_at_once

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from evenflow.core.view import View
    from evenflow.model import Checkpoint, Lease, Owner, PartitionId
    from evenflow.stores.memory import MemorySnapshot
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

LOSSES = ("empty", "delete_group", "lose_quietly")
LOSSES_EVERY = 4
LAST_MOMENTS_S = 0.3
EMPTIED_LEAST_S = 25.0
"""A store that is emptied again before all have noticed has two newcomers, neither of which knows better."""


def draw_losses(seed: int) -> tuple[str, ...]:
    """What the store of this seed's world loses. By dice of its own: other worlds stay.

    Where a group was deleted no store is emptied: it would forget that, and what was deleted may come back.
    """
    if seed % LOSSES_EVERY != LOSSES_EVERY - 1 or seed % 3 == 1:
        return ()
    rng = random.Random(seed * 7919 + 8)
    return rng.choice((("empty",), ("delete_group",), ("empty", "lose_quietly"), ("delete_group", "lose_quietly")))


class Losses:
    def __init__(self, world: World) -> None:
        self._world = world
        self._emptied_s = -EMPTIED_LEAST_S
        self._highest = 0
        """The highest history that any instance can know."""
        self.is_blind = False
        """The store was emptied, and no instance of before has told it so."""
        self._is_untold = False
        """Its history has risen by itself since."""
        self._told_s = inf
        """When somebody told it, or it knew by itself: -inf."""
        self._blind: set[tuple[PartitionId, int, Owner]] = set()
        self._remember: dict[PartitionId, set[Process]] = {}
        """Who remembered how far a partition was handled, when the store was last emptied."""
        self._passed_over: dict[PartitionId, list[tuple[int, int, set[Process]]]] = {}
        self._last: list[MemorySnapshot] = []

    def begin(self) -> None:
        if "lose_quietly" in self._world.options.incidents:
            self._world.every(LAST_MOMENTS_S / 3, self._look)

    def _look(self) -> None:
        self._last = [*self._last[-3:], self._world.store.snapshot()]

    # --- what happens
    def empty(self) -> None:
        """A server that keeps nothing was restarted, or its files were deleted."""
        world = self._world
        if world.timeline.now_s < self._emptied_s + EMPTIED_LEAST_S or not self._all_have_noticed():
            return
        self._emptied_s = world.timeline.now_s
        world.store.empty()
        self.forget_snapshots()
        self.is_blind, self._is_untold, self._told_s = True, False, inf
        self._remember = {name: self._who_remembers(name) for name in world.source.partition_ids}

    def _all_have_noticed(self) -> bool:
        """Each instance that lives has been answered by the store as it is now."""
        views = [_view_of(process) for process in self._world.processes if process.is_up]
        return len({view.cursor.lineage for view in views if view is not None}) <= 1 and not self.is_blind

    def delete_group(self) -> None:
        """By somebody who does not look whether it runs."""
        world = self._world
        run_at_once(world.store.delete(world.group))
        self.forget_snapshots()
        world.nothing_lost.begin_anew()
        world.own_repeats.begin_anew()
        world.transactions.exactly_once.begin_anew()
        self._passed_over.clear()

    def lose_quietly(self) -> None:
        """The last moments, as in a failover. The first request to the new server finds out."""
        self.go_back_to(self._last)

    def go_back_to(self, snapshots: Sequence[MemorySnapshot]) -> None:
        """To one of these. The group itself is never lost this way: whoever comes first would make it anew, as in an
        emptied store."""
        store = self._world.store
        if there := [one for one in snapshots if self._world.group in one.groups]:
            store.restore(self._world.rng.choice(there))
            self._is_untold = self._is_untold or self.is_blind
            self.forget_snapshots()

    def forget_snapshots(self) -> None:
        """What was lost does not come back."""
        self._last = []
        self._world.forget_snapshots()

    # --- what is allowed
    def beaten(self) -> None:
        history = self._world.store.history
        if self.is_blind and history > self._highest:
            self.is_blind, self._told_s = False, -inf if self._is_untold else self._world.timeline.now_s
        self._highest = max(self._highest, history)

    def wrote_blindly(self, lease: Lease) -> bool:
        if self.is_blind and lease.owner is not None:
            self._blind.add((lease.partition, lease.epoch, lease.owner))
        return self.is_blind

    def is_unordered(self, process: Process, partition: PartitionId, epoch: int) -> bool:
        """Under an epoch that was given without knowing of those before, or of a group that was deleted: others may
        handle the partition at the same time, as long as this one has not heard of it."""
        engine = process.processor._engine
        owner = engine.coordinator.me.owner if engine is not None else None
        return epoch <= self._world.epoch_floor or (partition, epoch, owner) in self._blind

    def epoch_of(self, process: Process, partition: PartitionId, epoch: int) -> Hashable:
        """One that was given twice is two."""
        return (epoch, process.number) if self.is_unordered(process, partition, epoch) else epoch

    def begun_blindly(self, partition: PartitionId, sequence: int) -> bool:
        """Whether a record was made here that says nothing of what was before."""
        nothing_lost = self._world.nothing_lost
        if not self.is_blind or not nothing_lost.has_begun(partition):
            return False
        knew = set(self._remember.get(partition, ()))
        self._passed_over.setdefault(partition, []).append((nothing_lost.first(partition), sequence, knew))
        return True

    def sealed(self, partition: PartitionId, who: Process, after: Checkpoint) -> None:
        """In the new history: from now on nobody restores what comes before. Those who have not heard of it yet, and
        were given their time, cannot make good any more what was passed over."""
        history = self._world.store.history
        waited_s = (self._world.timeline.now_s - self._told_s) * (1 + self._world.options.drift)
        if not history or after.epoch <= restore_epoch(history) or waited_s < who.processor.settings.longest_ttl_s:
            return
        place = after.position.sequence or 0
        for _, last, knew in self._passed_over.get(partition, ()):
            if last <= place:
                knew -= {process for process in knew if not self._has_heard(process)}

    def _has_heard(self, process: Process) -> bool:
        view = _view_of(process)
        return view is not None and view.history == self._world.store.history

    def has_passed_over(self, partition: PartitionId) -> bool:
        """Then a record may go back: those who know better restore it."""
        return partition in self._passed_over

    def is_owed(self, partition: PartitionId, sequence: int) -> bool:
        return any(first < sequence <= last for first, last, _ in self._passed_over.get(partition, ()))

    def is_excused(self, partition: PartitionId, sequence: int) -> bool:
        """It was passed over, and no instance lives that knew better."""
        return any(
            first < sequence <= last and not any(process.is_up for process in knew)
            for first, last, knew in self._passed_over.get(partition, ())
        )

    def _who_remembers(self, partition: PartitionId) -> set[Process]:
        return {process for process in self._world.processes if process.is_up and _knows(process, partition)}


def _view_of(process: Process) -> View | None:
    engine = process.processor._engine
    return engine.coordinator.view if engine is not None else None


def _knows(process: Process, partition: PartitionId) -> bool:
    engine = process.processor._engine
    if engine is None:
        return False
    hold = engine.coordinator.holds.get(partition)
    return (hold is not None and hold.sealed is not None) or partition in engine.coordinator._memory._remembered
