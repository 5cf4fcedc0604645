"""Effects of handlers in the simulated store, each in one step with the checkpoint of its events.

The effect of an event is one row, which says that it happened. Rows and records go back together when the store loses
writes. A transaction is asked for at its beginning and at its end, each by a request that may be lost, late or without
an answer; in between the application takes its time, fails, or is stopped.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from evenflow.errors import Misconfigured, TransactionTimeout
from evenflow.stores import rules
from evenflow.stores.memory import MemorySnapshot, MemoryStore
from evenflow.testing.simulated.checkers import Violation
from evenflow.testing.simulated.network import StoreLine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from evenflow.model import Checkpoint, Event, Group, PartitionId
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.testing.simulated.process import Process
    from evenflow.testing.simulated.world import World

SHARE = 0.6
IN_STEPS = 0.3
"""Of batches: more than one transaction."""
LONG, STOPPED, LEFT, FAILS_AFTER = 0.05, 0.03, 0.03, 0.03
"""What happens in a transaction, or after it: it takes long, its process is stopped, it is left by an error."""
LONG_MOST_S = 9.0
TRIPS = 16
FOR_EVER_S = 1e9


def draw_effects(seed: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """Whether handlers use transactions in the world of this seed. By dice of its own: other worlds stay.

    Not where effects may happen twice by right (somebody seeks), where events are passed over without any, or where an
    event has more than one place. Where a store is emptied, groups begin at the oldest event, as its effects do.
    """
    kinds = {*drawn["incidents"]}
    elsewhere = drawn.get("failing") is not None or drawn.get("store") == "by_lease" or {"split", "merge"} & kinds
    elsewhere = elsewhere or drawn.get("each_s")  # one request for each event would be too much for it
    if elsewhere or drawn.get("balance") == "load" or random.Random(seed * 7919 + 13).random() >= SHARE:
        return {}
    found: dict[str, Any] = {"effects": True, "incidents": tuple(one for one in drawn["incidents"] if one != "seek")}
    if drawn.get("limit_s") is not None:
        found["limit_s"] = max(drawn["limit_s"], TRIPS * drawn["latency_s"])  # both steps, on the slowest way
    return found | ({"start": "earliest"} if "empty" in kinds else {})


class _Kept(MemorySnapshot):
    rows: dict[PartitionId, tuple[list[int], int]]


class EffectsStore(MemoryStore):
    """For one group. The rows of a partition begin with the place where its group did."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.rows: dict[PartitionId, list[int]] = {}

    def transact(
        self, group: Group, checkpoint: Checkpoint, effects: Sequence[int], *, committed: int, start: int
    ) -> Checkpoint:
        """Whole or not at all."""
        record = self.admit(group, checkpoint, committed=committed, start=start)
        after = rules.commit(record, structs.replace(checkpoint, effects=True), self._wall())
        self._records[group][checkpoint.partition] = after
        self.rows[checkpoint.partition].extend(effects)
        return after

    def admit(self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int) -> Checkpoint:
        record = self._records.get(group, {}).get(checkpoint.partition)
        return rules.begin_transaction(record, checkpoint, committed=committed, start=start)

    async def delete(self, group: Group) -> None:
        """Whoever deletes a group drops its tables as well."""
        await super().delete(group)
        self.rows = {}

    def snapshot(self) -> MemorySnapshot:
        kept = _Kept(*super().snapshot())
        kept.rows = {partition: (rows, len(rows)) for partition, rows in self.rows.items()}
        return kept

    def restore(self, snapshot: MemorySnapshot, *, noticed: bool = True) -> None:
        super().restore(snapshot, noticed=noticed)
        assert isinstance(snapshot, _Kept)
        self.rows = {partition: rows[:count] for partition, (rows, count) in snapshot.rows.items()}

    def empty(self) -> None:
        super().empty()
        self.rows = {}


class ExactlyOnce:
    """15. With transactions the store has the effects of just those events that its record says are handled, each one
    once, at every moment. What an instance knows to be committed is not handed to its handler again."""

    def __init__(self) -> None:
        self._first: dict[PartitionId, int] = {}
        self._known: dict[tuple[Any, PartitionId, int], int] = {}

    def begin_anew(self) -> None:
        """The group was deleted, with all its effects."""
        self._first.clear()

    def record_made(self, partition: PartitionId, place: int) -> None:
        first = self._first.setdefault(partition, place)
        if place > first:
            raise Violation(f"partition {partition}: a record begins at {place} that has no effects after {first}")
        self._first[partition] = place

    def record_written(self, partition: PartitionId, place: int, rows: Sequence[int]) -> None:
        """`rows` begins with where the record began."""
        if len(rows) != place - rows[0] + 1 or rows[-1] != place:
            raise Violation(f"partition {partition}: the record is at {place}, the effects at {rows[-1]}: {rows[-9:]}")

    def applied(self, partition: PartitionId, last: int, effects: Sequence[int]) -> None:
        for sequence in effects:
            if sequence != last + 1:
                what = "has happened twice" if sequence <= last else "passed over others"
                raise Violation(f"partition {partition}: the effect of {sequence} {what}; the last one was {last}")
            last = sequence

    def acknowledged(self, who: Any, partition: PartitionId, epoch: int, last: int) -> None:
        self._known[who, partition, epoch] = last

    def begins(self, who: Any, partition: PartitionId, epoch: int, first: int) -> None:
        known = self._known.get((who, partition, epoch), -1)
        if first <= known:
            raise Violation(f"partition {partition}: {who} handles {first} again, though it has committed {known}")


class Transactions:
    """What handlers do, and what the store makes of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.options.seed * 7919 + 14)
        self.exactly_once = ExactlyOnce()
        self.is_on = world.options.effects
        self._reached: dict[PartitionId, int] = {}
        """The last event whose effect was ever there."""

    # --- in the store, in one step
    async def begin(self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int) -> None:
        self._store.admit(group, checkpoint, committed=committed, start=start)

    async def commit(
        self, group: Group, checkpoint: Checkpoint, effects: Sequence[int], *, committed: int, start: int
    ) -> None:
        world, name = self._world, checkpoint.partition
        before, rows = world.record(name), self._store.rows.get(name, [-1])
        last = rows[-1]
        after = self._store.transact(group, checkpoint, effects, committed=committed, start=start)
        world.rows["commit"] += 1
        world.tell(f"transaction p{name} e{checkpoint.epoch} {effects[0]}..{effects[-1]}")
        world.checked(self.exactly_once.applied, name, last, effects)
        world.checked(world.never_back.committed, before, checkpoint, ok=True, history=world.store.history)
        self._reached[name] = max(effects[-1], self._reached.get(name, -1))
        for sequence in effects:
            world.nothing_lost.handled(name, sequence)
        world.record_written(before, after)

    def record_written(self, before: Checkpoint | None, after: Checkpoint) -> None:
        if not self.is_on:
            return
        place, name = _place(after), after.partition
        if before is None:
            self._store.rows[name] = [place]
            self._world.checked(self.exactly_once.record_made, name, place)
        self._world.checked(self.exactly_once.record_written, name, place, self._store.rows[name])

    def missing(self) -> str | None:
        """In the end."""
        for name in self._world.source.partition_ids if self.is_on else ():
            newest, rows = self._world.source.newest(name), self._store.rows.get(name, [-1])
            if rows[-1] < newest:
                return f"partition {name}: the effects of {newest - rows[-1]} events are missing, after {rows[-1]}"
        return None

    def is_done(self, partition: PartitionId, sequence: int) -> bool:
        """Its effect was there, whatever became of the call."""
        return sequence <= self._reached.get(partition, -1)

    @property
    def _store(self) -> EffectsStore:
        assert isinstance(self._world.store, EffectsStore)
        return self._world.store

    # --- in a handler
    async def apply(self, process: Process, partition: OwnedPartition, events: Sequence[Event]) -> None:
        cut = self._rng.randrange(1, len(events)) if len(events) > 1 and self._rng.random() < IN_STEPS else 0
        for part in (events[:cut], events[cut:]) if cut else (events,):
            await self._step(process, partition, part, None if part[-1] is events[-1] else part[-1])
        if self._is_bad(FAILS_AFTER):
            raise ValueError("the simulated handler failed after its transaction")

    async def _step(
        self, process: Process, partition: OwnedPartition, events: Sequence[Event], up_to: Event | None
    ) -> None:
        rows = [(event.sequence or 0,) for event in events]
        if process.threads.running is not None:
            with partition.transaction(up_to) as plain:
                plain.execute_many("effect", rows[:1])
                await self._inside(process)
                plain.execute_many("effect", rows[1:])
        else:
            async with partition.transaction(up_to) as tx:
                await tx.execute_many("effect", rows[:1])
                await self._inside(process)
                await tx.execute_many("effect", rows[1:])
        self.exactly_once.acknowledged(process, partition.id, partition.epoch, rows[-1][0])

    async def _inside(self, process: Process) -> None:
        if self._is_bad(LONG):
            await process.pause(self._rng.uniform(0.0, LONG_MOST_S))
        if self._is_bad(STOPPED):
            process.freeze(self._world.stall_s())
            if process.loop.dead:
                await process.pause(FOR_EVER_S)
        if self._is_bad(LEFT):
            raise ValueError("the simulated handler failed in its transaction")

    def _is_bad(self, share: float) -> bool:
        """Never where nothing goes wrong."""
        is_bad = not (self._world.options.is_calm or self._world.healed) and self._rng.random() < share
        if is_bad:
            self._world.planned_is_free.calm = False
        return is_bad


class TransactionLine(StoreLine):
    """The store as one process reaches it, with transactions."""

    @asynccontextmanager
    async def transaction(
        self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float
    ) -> AsyncIterator[SimulatedTransaction]:
        transactions = self._world.transactions
        tx = SimulatedTransaction(self._process.loop.time() + limit_s)
        begin = partial(transactions.begin, committed=committed, start=start)
        try:
            async with asyncio.timeout_at(tx.deadline_s):
                await self._ask("transact", begin, group, checkpoint)
        except TimeoutError:
            raise TransactionTimeout from None
        try:
            yield tx
            tx.look()
        finally:
            tx.is_over = True
        commit = partial(transactions.commit, committed=committed, start=start)
        await self._ask("transact", commit, group, checkpoint, tx.effects)


class SimulatedTransaction:
    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.effects: list[int] = []
        self.is_over = False

    def look(self) -> None:
        if self.is_over:
            raise Misconfigured("This transaction has ended.")
        if asyncio.get_running_loop().time() >= self.deadline_s:
            raise TransactionTimeout

    async def execute(self, statement: str, values: Sequence[object] = ()) -> Sequence[tuple[object, ...]]:
        await self.execute_many(statement, [values])
        return []

    async def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self.look()
        self.effects += [int(str(row[0])) for row in rows]


def _place(record: Checkpoint) -> int:
    return -1 if record.position.sequence is None else record.position.sequence
