"""Sends random requests to a store and to a memory store, and compares the answers. So a store that decides in its
server's own language must agree with `stores.rules`. For stores with one history that compare members and leases in one
step.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from msgspec import structs

from evenflow.errors import LeaseLost, Superseded
from evenflow.model import BEGINNING, Change, Checkpoint, Cursor, Member, next_epoch, restore_epoch
from evenflow.stores.memory import MemoryStore
from evenflow.testing.store.scene import Stage, at, scene

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.model import Group, Ledger, Outcome, Owner
    from evenflow.ports import Operable, Store
    from evenflow.testing.store.scene import Scene

SEEDS = 5
STEPS = 100
PARTITIONS = "012"


class TwinContract(Stage):
    """It decides as the rules do."""

    @scene
    async def test_random_requests_are_answered_as_by_a_store_in_memory(self, play: Scene) -> None:
        memory = MemoryStore()
        for seed in range(SEEDS):
            group = structs.replace(play.group, name=f"twins {seed}")
            await _Twins(seed, group, (play.store, memory), (play.operable, memory)).walk()


class _Twins:
    """A store and its twin in memory, with what each of them has answered: revisions differ between the two."""

    def __init__(self, seed: int, group: Group, stores: Sequence[Store], operables: Sequence[Operable]) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._group, self._stores, self._operables = group, stores, operables
        self._cursors: list[list[Cursor]] = [[], []]
        self._leases: list[dict[str, Any]] = [{}, {}]
        self._marks: list[dict[Owner, int]] = [{}, {}]
        self._members = [Member(id=name, nonce=f"{seed} {name}", ttl_s=8.0) for name in "abc"]
        self._left: list[Member] = []
        self._sealed: dict[str, int] = {}
        self._history = 0
        self._floor = 0
        self._steps: list[str] = []

    async def walk(self) -> None:
        for _ in range(STEPS):
            (step,) = self._chance.choices(
                (self._heartbeat, self._late_heartbeat, self._swap, self._seal, self._commit, self._delete),
                (40, 4, 24, 14, 24, 3),
            )
            await step()

    # --- requests
    async def _heartbeat(self) -> None:
        chance, number = self._chance, self._chance.randrange(len(self._members))
        member = self._members[number]
        if chance.random() < 0.1:
            member = structs.replace(member, nonce=f"{self._seed} {chance.random()}", incarnation=0)
        elif chance.random() < 0.1:
            member = structs.replace(member, weight=chance.choice((1.0, 2.0)))
        member = structs.replace(member, leaving=chance.random() < 0.15)
        since = chance.choice((None, -1, -1, 0))
        foreign = self._history - chance.randrange(2) if chance.random() < 0.05 else None
        me = await self._send_heartbeat(member, since, foreign)
        if me is not None:
            self._members[number] = me
        elif member.leaving:
            self._left.append(member)
            self._members[number] = structs.replace(member, nonce=f"{self._seed} {chance.random()}", incarnation=0)

    async def _late_heartbeat(self) -> None:
        if self._left:
            member = self._chance.choice(self._left)
            leaving = self._chance.random() < 0.3
            await self._send_heartbeat(structs.replace(member, leaving=leaving), self._chance.choice((None, -1)), None)

    async def _send_heartbeat(self, member: Member, since: int | None, foreign: int | None) -> Member | None:
        async def ask(number: int) -> Ledger:
            cursor = self._cursors[number][since] if since is not None and self._cursors[number] else None
            if foreign is not None:
                cursor = Cursor("another", foreign, 1)
            return await self._stores[number].heartbeat(self._group, member, cursor)

        what = f"heartbeat {member.id} {member.nonce}#{member.incarnation} {member.leaving=} {since=} {foreign=}"
        ledgers = await self._compare(what, ask, _plain_ledger)
        if ledgers is None:
            return None
        for number, ledger in enumerate(ledgers):
            self._cursors[number] = [*self._cursors[number][-4:], ledger.cursor]
            for lease in ledger.leases:
                self._leases[number][lease.partition] = lease
            for row in ledger.members:
                self._marks[number][row.owner] = row.mark
        self._history, self._floor = ledgers[0].cursor.history, ledgers[0].epoch_floor
        me: Member | None = ledgers[0].me
        return me and structs.replace(me, mark=0, heartbeat_at=0.0)

    async def _swap(self) -> None:
        makers = [self._change() for _ in range(self._chance.choice((1, 3)))]

        async def ask(number: int) -> Sequence[Outcome]:
            return await self._stores[number].swap(self._group, [make(number) for make in makers])

        answers = await self._compare(f"swap {[make(1) for make in makers]}", ask, _plain_outcomes)
        for number, answer in enumerate(answers or ()):
            for outcome in answer:
                if outcome.lease is not None:
                    self._leases[number][outcome.partition] = outcome.lease

    def _change(self) -> Callable[[int], Change]:
        chance = self._chance
        partition = chance.choice(PARTITIONS)
        owner = chance.choice([None, *(member.owner for member in self._members)])
        still = chance.choice([None, None, *(member.owner for member in self._members)])
        stale, unknown, epoch = chance.random() < 0.15, chance.random() < 0.3, self._epoch()
        history = self._history - (chance.random() < 0.05)

        def make(number: int) -> Change:
            lease = self._leases[number].get(partition)
            mark = None if unknown or still is None else self._marks[number].get(still)
            return Change(
                partition=partition,
                revision=(lease.revision if lease else 0) + stale,
                history=history,
                owner=owner,
                epoch=epoch,
                ttl_s=8.0,
                reason="why not",
                still=None if still is None else (still, mark),
            )

        return make

    async def _seal(self) -> None:
        partition, epoch, unplanned = self._chance.choice(PARTITIONS), self._epoch(), self._chance.random() < 0.5
        default = self._record(partition)

        async def ask(number: int) -> Checkpoint:
            return await self._stores[number].seal(self._group, partition, epoch, default, unplanned=unplanned)

        await self._compare(f"seal {partition} {epoch=} {default}", ask, _plain_record)
        await self._compare("records", self._records)

    async def _commit(self) -> None:
        sent = [self._record(self._chance.choice(PARTITIONS)) for _ in range(2)]
        await self._compare(f"commit {sent}", lambda number: self._stores[number].commit(self._group, sent))
        await self._compare("records", self._records)

    async def _delete(self) -> None:
        await self._compare("delete", lambda number: self._operables[number].delete(self._group))
        self._leases = [{}, {}]

    # --- what they are about
    def _epoch(self) -> int:
        chance = self._chance
        history = max(0, self._history - chance.choice((0, 0, 0, 1, 2)))
        near = chance.choice((self._floor - 1, self._floor, restore_epoch(history), next_epoch(self._floor, history)))
        return max(0, near + chance.randrange(4))

    def _record(self, partition: str) -> Checkpoint:
        chance = self._chance
        ordinal = chance.randrange(4)
        epoch = self._sealed.get(partition, 0) if chance.random() < 0.6 else self._epoch()
        record = at(ordinal, epoch=epoch, partition=partition, notes={"n": chance.random()})
        position = BEGINNING if chance.random() < 0.1 else record.position
        edition, effects = chance.randrange(3), chance.random() < 0.1
        return structs.replace(record, position=position, edition=edition, effects=effects)

    async def _records(self, number: int) -> dict[str, Checkpoint]:
        found = await self._operables[number].checkpoints(self._group)
        self._sealed = {record.partition: record.epoch for record in found}
        return {record.partition: _plain_record(record) for record in found}

    async def _compare(
        self,
        what: str,
        ask: Callable[[int], Awaitable[Any]],
        plain: Callable[[Any], Any] = lambda answer: answer,
    ) -> list[Any] | None:
        """What both answered; None when both refused in the same words."""
        self._steps.append(what)
        answers: list[Any] = []
        for number in range(2):
            try:
                answers.append(await ask(number))
            except (Superseded, LeaseLost) as error:
                answers.append(error)
        seen = [repr(one) if isinstance(one, Exception) else plain(one) for one in answers]
        last = "\n".join(self._steps[-8:])
        assert seen[0] == seen[1], f"seed {self._seed}, after:\n{last}\n{seen[0]}\nas it should be:\n{seen[1]}"
        return None if isinstance(answers[0], Exception) else answers


def _plain_ledger(ledger: Ledger) -> Any:
    leases = {one.partition: structs.replace(one, revision=0, changed_at=0.0) for one in ledger.leases}
    members = {one.id: structs.replace(one, mark=0, heartbeat_at=0.0) for one in ledger.members}
    me = ledger.me and structs.replace(ledger.me, mark=0, heartbeat_at=0.0)
    group = ledger.cursor.history, ledger.began, ledger.epoch_floor, ledger.state
    return group, ledger.whole, ledger.roster, leases, members, me


def _plain_outcomes(outcomes: Sequence[Outcome]) -> Any:
    leases = [one.lease and structs.replace(one.lease, revision=0, changed_at=0.0) for one in outcomes]
    return [(one.partition, one.ok, one.why, lease) for one, lease in zip(outcomes, leases, strict=True)]


def _plain_record(record: Checkpoint) -> Checkpoint:
    return structs.replace(record, changed_at=0.0)
