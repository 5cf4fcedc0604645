"""The part of the store contract that says: who follows the changes knows what a fresh look would show."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

from msgspec import structs

from evenflow.model import Cursor, Lease, Member, next_epoch
from evenflow.testing.store.scene import Scene, Stage, after, first, present, scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import Ledger, PartitionId
    from evenflow.ports import Store

SEEDS = range(5)
STEPS = 120


class DeltaContract(Stage):
    """Random histories with two clients, each followed by an instance that asks only for changes."""

    seeds: ClassVar[Sequence[int]] = SEEDS
    """As many histories; fewer for a store that is slow to ask."""

    @scene
    async def test_following_the_changes_is_as_good_as_a_fresh_look(self, play: Scene) -> None:
        for seed in self.seeds:
            scene_of_its_own = Scene(play.store, play.other)
            scene_of_its_own.group = structs.replace(play.group, name=f"seed {seed}")
            await _Walk(scene_of_its_own, seed).run()


class Follower:
    """What an instance knows that merges every ledger into the one before."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self.leases: dict[PartitionId, Lease] = {}
        self.members: dict[str, Member] = {}
        self.moving: set[str] = set()
        """Whose mark has moved between the last two ledgers, as far as the roster stayed the same."""

    def merge(self, ledger: Ledger) -> None:
        if ledger.whole:
            self.leases.clear()
        self.leases.update({lease.partition: lease for lease in ledger.leases})
        if ledger.roster:
            self.members = {member.id: member for member in ledger.members}
            self.moving = set()
        else:
            still = {member.id for member in ledger.members}
            assert still <= self.members.keys(), "only known members are listed as silent"
            for member in ledger.members:
                assert member == self.members[member.id], "who stands still is as it was"
            self.moving = self.members.keys() - still - {ledger.me.id if ledger.me else ""}
        self.cursor = ledger.cursor


class _Walk:
    def __init__(self, play: Scene, seed: int) -> None:
        self.play = play
        self.chance = random.Random(seed)
        self.followers: list[tuple[Store, Member, Follower]] = []
        self.others: list[Member] = []
        self.leases: dict[PartitionId, Lease] = {}
        self.history = 0

    async def run(self) -> None:
        for name, store in (("f1", self.play.store), ("f2", self.play.other)):
            self.followers.append((store, await self.play.join(name), Follower()))
        for _ in range(STEPS):
            step = self.chance.choice(
                (self.follow, self.follow, self.heartbeat, self.heartbeat, self.change, self.change_facts)
            )
            await (self.chance.choice((self.join, self.leave, self.lose)) if self.chance.random() < 0.1 else step)()
        await self.follow()

    async def follow(self) -> None:
        """Ask for changes, then for everything: both must say the same."""
        store, me, known = self.chance.choice(self.followers)
        before = dict(known.members)
        known.merge(await store.heartbeat(self.play.group, me, known.cursor))
        whole = await store.heartbeat(self.play.group, me, None)
        assert whole.whole
        assert known.leases == {lease.partition: lease for lease in whole.leases} == self.leases
        fresh = {member.id: member for member in whole.members}
        assert {_unmarked(member) for member in known.members.values()} == {_unmarked(m) for m in fresh.values()}
        for name in known.moving:
            assert fresh[name].mark != before[name].mark, "members that are not listed as silent have sent a heartbeat"
        known.members = fresh
        known.cursor = whole.cursor
        self.history = whole.cursor.history

    async def heartbeat(self) -> None:
        if self.others:
            await self._store().heartbeat(self.play.group, self.chance.choice(self.others), None)

    async def change_facts(self) -> None:
        if self.others:
            number = self.chance.randrange(len(self.others))
            self.others[number] = structs.replace(self.others[number], weight=self.chance.choice((1.0, 2.0)))
            await self._store().heartbeat(self.play.group, self.others[number], None)

    async def change(self) -> None:
        changes = []
        for partition in self.chance.sample("012345", self.chance.choice((1, 2, 3))):
            owner = self.chance.choice([*(other.owner for other in self.others), None])
            lease = self.leases.get(partition)
            new = after(lease, owner) if lease else first(partition, owner)
            stale = self.chance.random() < 0.2
            changes.append(
                structs.replace(
                    new, history=self.history, epoch=next_epoch(new.epoch, self.history), revision=new.revision + stale
                )
            )
        for outcome in await self._store().swap(self.play.group, changes):
            if outcome.ok and outcome.lease:
                self.leases[outcome.partition] = outcome.lease

    async def join(self) -> None:
        name = self.chance.choice("abcd")
        member = await self.play.join(name, str(self.chance.random()))
        self.others = [*(other for other in self.others if other.id != name), member]

    async def leave(self) -> None:
        if self.others:
            member = self.chance.choice(self.others)
            ledger = await self._store().heartbeat(self.play.group, structs.replace(member, leaving=True), None)
            if ledger.me is None:
                self.others.remove(member)

    async def lose(self) -> None:
        store, me, _ = self.followers[0]
        ledger = await store.heartbeat(self.play.group, me, Cursor("another", self.history, 1))
        assert present(ledger).incarnation == me.incarnation
        self.history = ledger.cursor.history

    def _store(self) -> Store:
        return self.chance.choice((self.play.store, self.play.other))


def _unmarked(member: Member) -> tuple[object, ...]:
    return structs.astuple(structs.replace(member, mark=0, heartbeat_at=0.0))
