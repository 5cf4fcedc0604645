"""The bad events of a simulated world: which they are, what they do to a handler, and who mends and redrives them.

An event is bad from the moment it is made. Poison fails until somebody mends the handler for it; some fail the first
time; a deadly one ends whatever process tries it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from evenflow.core.filed import fold
from evenflow.model import Action, Steering
from evenflow.testing.simulated.checkers import DeadlyIsBounded, Halves, KeyOrder, PoisonIsFiled

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from evenflow.core.filed import Filed
    from evenflow.model import Checkpoint, DeadLetter, Event, PartitionId, Verdict
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

MENDED_SHARE = 0.7
"""Of what somebody redrives; the rest fails again."""
DROPPED_SHARE = 0.1
DEADLY_MOST = 2
"""In a world: each takes a handful of time-to-lives, and then a while of one event at a time."""


class Trials:
    def __init__(self, world: World) -> None:
        self._world = world
        self._failing = failing = world.options.failing
        self.rng = random.Random(world.options.seed * 7919 + 3)
        self.dead_letters_away = self.handler_away = False
        self.innocent = 0
        """How many events were taken for deadly, and were not."""
        self._called_again = False
        self._poison: set[tuple[PartitionId, int]] = set()
        self._once: set[tuple[PartitionId, int]] = set()
        self._deadly: set[tuple[PartitionId, int]] = set()
        self._killers: set[tuple[PartitionId, int]] = set()
        """All that were ever deadly."""
        self._keys: dict[tuple[PartitionId, int], str | None] = {}
        self._calls: dict[tuple[Process, PartitionId], tuple[int, Sequence[Event]]] = {}
        attempts = failing.retry.attempts if failing is not None else None
        lost = "lose_writes" in world.options.incidents
        self.poison_is_filed = PoisonIsFiled(attempts, lost=lost)
        self.key_order, self.halves, self.deadly_is_bounded = KeyOrder(), Halves(), DeadlyIsBounded()

    # --- events
    def key(self) -> str | None:
        """Of the next event."""
        if self._failing is None or self.rng.random() < 0.1:
            return None
        return f"k{self.rng.randrange(self._failing.keys)}"

    def appended(self, partition: PartitionId, sequence: int, key: str | None) -> None:
        self._keys[partition, sequence] = key
        self.key_order.appended(partition, key, sequence)
        if self._failing is None or self._world.healed:
            return
        chance = self.rng.random()
        for share, bad in (
            (self._failing.poison, self._poison),
            (self._failing.once, self._once),
            (self._failing.deadly, self._deadly),
        ):
            if 0 <= chance < share and (bad is not self._deadly or len(self._killers) < DEADLY_MOST):
                self._killers |= {(partition, sequence)} if bad is self._deadly else set()
                bad.add((partition, sequence))
            chance -= share

    # --- calls
    def begins(self, process: Process, partition: OwnedPartition, events: Sequence[Event], *, aside: bool) -> None:
        self._calls[process, partition.id] = (partition.epoch, events)
        if not aside:
            epoch = self._epoch_of(process, partition)
            self._world.checked(self.halves.begins, partition.id, epoch, events[0].sequence, len(events))

    def _epoch_of(self, process: Process, partition: OwnedPartition) -> Hashable:
        return self._world.losses.epoch_of(process, partition.id, partition.epoch)

    def meet(self, process: Process, partition: PartitionId, events: Sequence[Event], *, aside: bool) -> None:
        """The moment at which a handler looks at its events."""
        if self._failing is None:
            return
        places = [(partition, event.sequence or 0) for event in events]
        deadly = next((place for place in places if place in self._deadly), None)
        if deadly is not None:
            self._world.tell(f"deadly {deadly} ends {process}")
            if not aside:
                self._world.checked(self.deadly_is_bounded.died, *deadly)
            self._world.end_for_good(process)
            return
        once = self._once.intersection(places)
        self._once -= once
        if once or self.handler_away or self._poison.intersection(places):
            raise ValueError("the simulated handler cannot handle this")

    def ends(
        self,
        process: Process,
        partition: OwnedPartition,
        events: Sequence[Event],
        home: PartitionId,
        *,
        ok: bool,
        aside: bool,
    ) -> None:
        self._calls.pop((process, partition.id), None)
        if ok:
            self.vouched(home, events)
        elif not aside and not self._world.transactions.is_on:  # those may have handled a part of it
            self.halves.failed(partition.id, self._epoch_of(process, partition), events[0].sequence or 0, len(events))
            if len(events) == 1:
                self.poison_is_filed.failed(partition.id, events[0].sequence or 0)

    def vouched(self, partition: PartitionId, events: Sequence[Event]) -> None:
        """They are handled, says the application: their call has ended, or it marked them itself."""
        for event in events:
            self._handled(partition, event.sequence or 0)

    def _handled(self, partition: PartitionId, sequence: int) -> None:
        failing = self._failing
        self.poison_is_filed.handled(partition, sequence)
        if failing is not None and failing.order == "key":
            first = self._world.nothing_lost.first(partition)
            self._world.checked(self.key_order.handled, partition, self._keys[partition, sequence], sequence, first)

    # --- the record and the dead letters
    def sealed(self, partition: PartitionId, epoch: int, before: Checkpoint | None, *, unplanned: bool) -> None:
        """A new owner: whoever still was in a call, or died in it, ended there."""
        for (process, name), (older, events) in list(self._calls.items()):
            if name == partition and older < epoch:
                del self._calls[process, name]
                if unplanned and len(events) == 1:
                    self.poison_is_filed.owner_ended(partition, events[0].sequence or 0)
        if before is not None and before.epoch < epoch and before.ordinal > before.begun:
            self.deadly_is_bounded.advanced(partition)

    def filed(self, partition: PartitionId, dead_letter: DeadLetter) -> None:
        earlier: Sequence[Filed] = ()
        if dead_letter.reason == "parked":
            earlier = fold(self._world.dead_letters.records(self._world.group, partition))
        if dead_letter.reason == "killed" and (partition, dead_letter.event.sequence) not in self._killers:
            self.innocent += 1
        # Who stalled while it filed cannot know what its successor has redriven since.
        owes = self._world.owes_a_redrive(partition) or dead_letter.epoch < self._world.leases()[partition].epoch
        self._world.checked(self.poison_is_filed.filed, partition, dead_letter, earlier, owes=owes)

    def redriven(self, verdict: Verdict) -> None:
        partition, _, sequence = verdict.dead_letter.rpartition("@")
        self._world.checked(self.poison_is_filed.redriven, partition, int(sequence))

    # --- somebody with tools
    def redrive(self) -> None:
        """Some of the dead letters of one partition, or of all: most of them were mended, a few are dropped."""
        everything = self.rng.random() < 0.3
        partition = self.rng.choice(self._world.source.partition_ids)
        found = [one for one in self._open() if everything or one.dead_letter.partition == partition]
        for one in found:
            chance = self.rng.random()
            if chance < DROPPED_SHARE:
                self._judge(one, one.dropped(by="somebody", why="", at=0.0))
                self.key_order.dropped(
                    one.dead_letter.partition, one.dead_letter.event.key, one.dead_letter.event.sequence or 0
                )
            elif everything or chance < 0.9:
                if self.rng.random() < MENDED_SHARE:
                    self.mend(one.dead_letter.partition, one.dead_letter.event.sequence or 0)
                self._judge(one, one.asked(by="somebody", why="mended", at=0.0))
        self._steer({one.dead_letter.partition for one in found})

    def mend(self, partition: PartitionId, sequence: int) -> None:
        for bad in (self._poison, self._once, self._deadly):
            bad.discard((partition, sequence))

    def heal(self) -> None:
        """Once too many events failed, nothing but a mended handler brings a halted partition forward."""
        self.dead_letters_away = self.handler_away = False
        if self._failing is not None and self._failing.breaker is not None:
            self._poison.clear()

    def still_open(self) -> str | None:
        """In the end: mend all, and ask for all that is left, until nothing is.

        What was asked for before is called for once more, as `evenflow dead-letters redrive` does: the store may have
        lost that call, while the dead letters, which live elsewhere, say that somebody asked.
        """
        left = self._open()
        for one in left:
            self.mend(one.dead_letter.partition, one.dead_letter.event.sequence or 0)
        dead = [one for one in left if one.state == "dead"]
        for one in dead:
            self._judge(one, one.asked(by="somebody", why="all", at=0.0))
        self._steer({one.dead_letter.partition for one in (dead if self._called_again else left)})
        self._called_again = True
        return f"{len(left)} dead letters are open, the first is {left[0].dead_letter.id}" if left else None

    def missing(self) -> str | None:
        """Poison that is nowhere."""
        gone = self._poison - self.poison_is_filed.found
        known = {place for place in gone if place[1] > self._world.nothing_lost.first(place[0])}
        return f"poison {min(known)} is not in the dead letters" if known else None

    def _open(self) -> list[Filed]:
        return [one for one in fold(self._world.dead_letters.records(self._world.group)) if one.is_open]

    def _judge(self, one: Filed, verdict: Verdict) -> None:
        self._world.ask_now(self._world.dead_letters.file(self._world.group, one.dead_letter.partition, [verdict]))

    def _steer(self, partitions: set[PartitionId]) -> None:
        if partitions:
            names = tuple(sorted(partitions))
            action = Action(kind="redrive", by="somebody", why="mended", what=", ".join(names))
            self._world.ask_now(self._world.store.steer(self._world.group, Steering(redrive=names), action))
