"""A whole world from one seed: the real runtime in several simulated processes, over a store and a source with faults.

First the faults, with the checkers watching every step; then everything is healed, and the world must settle: all
events handled, shares even, nothing moving. A violation names the command that replays it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from evenflow.core.checkpointing import Manual
from evenflow.core.notes import notes_of
from evenflow.errors import EvenflowError, Superseded
from evenflow.model import (
    EVERYTHING,
    Action,
    Checkpoint,
    Event,
    Group,
    GroupState,
    Lease,
    PartitionId,
    Steering,
    epoch_parts,
)
from evenflow.runtime.calls import refuse_awaitable
from evenflow.stores.memory import MemoryStore
from evenflow.testing.simulated.again import OwnRepeats
from evenflow.testing.simulated.burdens import Desk, watch_steps
from evenflow.testing.simulated.calls import Calls
from evenflow.testing.simulated.checkers import (
    InOrder,
    NeverBack,
    NothingLost,
    OneOwner,
    PlannedIsFree,
    SeekIsObeyed,
    Settles,
    SilentStops,
    Violation,
)
from evenflow.testing.simulated.clocks import CLOCKS, Clocks
from evenflow.testing.simulated.cuts import Line
from evenflow.testing.simulated.dead_letters import SimulatedDeadLetters
from evenflow.testing.simulated.loads import PACE_S, PHASES, Loads
from evenflow.testing.simulated.losses import LOSSES, Losses
from evenflow.testing.simulated.moves import FewestMoves
from evenflow.testing.simulated.network import StoreLine, run_at_once
from evenflow.testing.simulated.options import ENDINGS, HEARTBEAT_S, TROUBLES, Options
from evenflow.testing.simulated.process import Process
from evenflow.testing.simulated.splits import MARKED_AT_ONCE, MARKED_LATER_S, Splits
from evenflow.testing.simulated.threads import drive
from evenflow.testing.simulated.timeline import Timeline, TimeStandsStill
from evenflow.testing.simulated.transactions import EffectsStore, TransactionLine, Transactions
from evenflow.testing.simulated.trials import Trials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from evenflow.model import Change, Cursor, DeadLetter, Ledger, Member, Outcome
    from evenflow.ports import Store
    from evenflow.runtime.partition import OwnedPartition
    from evenflow.testing.simulated.blobs import Blobs

QUIET_ROUNDS = 3
LATE_MOST_S = 20.0
PARTITIONS_MOST = 12
SETTLING_S = 90.0
"""At most, after all faults have ended; a bound that nothing healthy comes near, given long calls and lost history."""
FAILING_SETTLING_S = 1_500.0
"""A deadly event takes a handful of time-to-lives, and then a thousand events go one at a time over a slow line."""
FOR_EVER_S = 1e9


def blobs_of(world: World) -> Blobs:
    """They need the driver of Azure Blob Storage, which is not everywhere."""
    from evenflow.testing.simulated.blobs import Blobs

    return Blobs(world)


Application: TypeAlias = "Callable[[Event, OwnedPartition], Awaitable[None] | None]"


class World:
    """`application` is a handler to be tried out: it is called for every event of every call."""

    def __init__(
        self,
        options: Options,
        say: Callable[[str], None] | None = None,
        *,
        application: Application | None = None,
        body: Callable[[int], bytes] = lambda number: b"%d" % number,
    ) -> None:
        self.options, self.say = options, say
        self._application, self._body = application, body
        self._produced = 0
        self.last_error: Exception | None = None
        """What the application raised last."""
        self.rng = random.Random(options.seed * 7919 + 1)
        self.timeline = Timeline()
        store = EffectsStore if options.effects else MemoryStore
        self.store = store(wall=self.wall, lineage="simulated")
        self.splits = Splits(self)
        self.source = self.splits.make_source()
        self.group = Group("fake", "fake", "group")
        self._blobs = blobs_of(self) if options.store == "by_lease" else None
        self.rates = dict(options.rates)
        self.outage = False
        self.desk = Desk(options.each_s)
        self.slow = 1.0
        self.healed = False
        self.checking = True
        self.violation: Violation | None = None
        self.processes: list[Process] = []
        self._snapshots = [self.store.snapshot()]
        self.trips: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.one_owner, self.never_back, self.silent_stops = OneOwner(), NeverBack(), SilentStops()
        self.clocks = Clocks(self)
        self.losses, self.cut_rng = Losses(self), random.Random(options.seed * 7919 + 9)
        self.nothing_lost = NothingLost(self.splits.origin, self.losses.is_owed)
        self.in_order = InOrder(options.concurrency, may_skip=self._may_skip)
        self.planned_is_free = PlannedIsFree(options.wait_most_s, each_move=options.store == "by_lease")
        self.seek_is_obeyed = SeekIsObeyed()
        self.dead_letters, self.trials = SimulatedDeadLetters(self), Trials(self)
        self.calls, self.transactions = Calls(self), Transactions(self)
        self.settles, self.moves = Settles(), FewestMoves(self)
        self.own_repeats = OwnRepeats(active=options.remembers_alone)
        self.planned_is_free.calm = options.is_calm
        self.last_write_s = 0.0
        self.loads = self._loads()
        self._tick = 0
        self._sought: dict[tuple[PartitionId, int], int] = {}
        self._marking: list[asyncio.Task[None]] = []

    # --- chance
    def chance(self, kind: str) -> bool:
        rate = self.rates.get(kind, 0.0)
        if rate and self.rng.random() < rate:
            self.tell(f"fault: {kind}")
            return True
        return False

    def latency_s(self) -> float:
        return self.rng.uniform(0.2, 1.8) * self.options.latency_s * self.slow

    def held_up_s(self) -> float:
        return self.rng.uniform(1.0, LATE_MOST_S)

    def _last_late_effect_s(self) -> float:
        """Somebody may still be stalled, and a heartbeat of somebody who is dead may still be on its way."""
        late = {"held_up", "freeze", "blocked"} & set(self.options.rates)
        late |= {"stall", "suspend", "lag"} & set(self.options.incidents)
        return LATE_MOST_S if late else 0.0

    def tell(self, text: str) -> None:
        if self.say is not None:
            self.say(f"{self.timeline.now_s:9.3f}  {text}")

    # --- the run
    def run(self) -> None:
        """Raises Violation."""
        try:
            for number in range(self.options.instances):
                self.start(f"i{number}")
            self.produce()
            self.every(1.5, lambda: self._snapshots.append(self.store.snapshot()))
            self.losses.begin()
            for kind in self.options.incidents:
                self._plan_next(kind)
            self._run_until(self.options.faulty_s)
            self._heal()
            self._run_until(self.timeline.now_s + 2 * HEARTBEAT_S + self._last_late_effect_s())
            if self._by_load is not None:
                self._await_even_load()
            self._await_settled()
            self._await_redriven()
            if self._by_load is None:
                self._await_quiet()
                self.moves.try_out()
                self._raise_what_was_found()
        finally:
            self.dispose()

    def _run_until(self, end_s: float) -> None:
        try:
            self.timeline.run_until(end_s)
        except TimeStandsStill as still:
            raise Violation(f"something spins without waiting, {still}") from still
        self._raise_what_was_found()

    def _raise_what_was_found(self) -> None:
        if self.violation is not None:
            raise self.violation
        for process in self.processes:
            if process.loop.errors:
                error = process.loop.errors[0].get("exception")
                raise Violation(f"{process}: an error nobody caught: {error or process.loop.errors[0]!r}") from error
            if process.task.done() and not process.task.cancelled():
                error = process.task.exception()
                if error is not None and not isinstance(error, Superseded):
                    raise Violation(f"{process} ended with {error!r}") from error

    def found(self, violation: Violation) -> None:
        """Checkers run inside the runtime's own calls, so what they raise is kept here, not lost in there."""
        if self.violation is None and self.checking:
            self.violation = violation
            self.tell(f"VIOLATION: {violation}")

    def checked(self, check: Callable[..., None], *args: Any, **named: Any) -> None:
        if not self.checking:
            return
        try:
            check(*args, **named)
        except Violation as violation:
            self.found(violation)

    def every(self, gap_s: float, action: Callable[[], object]) -> None:
        def again() -> None:
            if not self.healed or action in (self._produce, self._produce_evenly):
                action()
                self.timeline.push(self.timeline.now_s + gap_s, again)

        self.timeline.push(self.timeline.now_s + gap_s, again)

    def _produce(self) -> None:
        if self._producing and self.options.has_splits:
            partition, key = self.splits.place()
            self._append(partition, key)
        elif self._producing:
            self._append(self.rng.choice(self.source.partition_ids), self.trials.key())

    def _append(self, partition: PartitionId, key: str | None) -> None:
        body = self._body(self._produced)
        stored = self.source.append(partition, body, key)
        self.trials.appended(partition, stored.sequence or 0, key)
        self.splits.appended(partition, stored.sequence or 0, key, body)
        self.planned_is_free.appended(partition, stored.sequence or 0, self.timeline.now_s)
        self._produced += 1

    _producing = True

    # --- loads that differ
    def _loads(self) -> Loads | None:
        options = self.options
        most = max(PARTITIONS_MOST, options.partitions)
        if options.zipf is None:
            return None
        return Loads(options.seed, zipf=options.zipf, busiest=options.busiest, noise=options.noise, most=most)

    @property
    def _by_load(self) -> Loads | None:
        """What shares are judged by, where they are to be even by load."""
        return self.loads if self.options.balance == "load" else None

    def produce(self) -> None:
        """From now on: at random, or, where loads differ, at an even pace for each partition."""
        if self.loads is None:
            self.every(self.options.event_gap_s, self._produce)
        else:
            self.every(PACE_S / PHASES, self._produce_evenly)

    def _produce_evenly(self) -> None:
        if self._producing:
            self._tick += 1
            for partition in self.source.partition_ids[self._tick % PHASES :: PHASES]:
                self._append(partition, self.trials.key())

    def _await_even_load(self) -> None:
        """Loads are known when they were measured for a while; then they are even, and nothing moves any more."""
        calm_s = max(5 * self.options.load_s, QUIET_ROUNDS * HEARTBEAT_S)
        end_s = self.timeline.now_s + SETTLING_S + 3 * calm_s
        while self.unsettled() is not None or self.timeline.now_s - self.last_write_s < calm_s:
            if self.timeline.now_s > end_s:
                raise Violation(f"loads differ or leases move, long after all was healed: {self.unsettled()}")
            self._run_until(self.timeline.now_s + 1.0)

    # --- processes
    def wall(self) -> float:
        """By the store's clock."""
        return 1_000_000_000.0 + self.timeline.now_s

    def line_of(self, process: Process) -> Store:
        if self._blobs is not None:
            return self._blobs.store_of(process)
        return TransactionLine(self, process) if self.transactions.is_on else StoreLine(self, process)

    def start(self, name: str) -> Process:
        process = Process(self, name, len(self.processes))
        self.processes.append(process)
        self.tell(f"start {process} ttl {process.ttl_s}")
        self.moves.changed()
        return process

    def give_handler(self, process: Process) -> None:
        """The application: some calls are long, some fail."""

        async def on_event(event: Event, partition: OwnedPartition) -> None:
            await self._call(process, [event], partition)

        async def on_batch(events: Sequence[Event], partition: OwnedPartition) -> None:
            await self._call(process, events, partition)

        def on_event_plain(event: Event, partition: OwnedPartition) -> None:
            on_batch_plain([event], partition)

        def on_batch_plain(events: Sequence[Event], partition: OwnedPartition) -> None:
            drive(self._call(process, events, partition))
            process.threads.linger()

        async def on_stop(partition: OwnedPartition, reason: str) -> None:
            if reason == "ended" and isinstance(self.options.checkpoint, Manual):
                await self._mark_the_end(partition)

        watch_steps(self, process)
        self.calls.watch(process)
        process.processor.on_partition_stop(on_stop)
        if self.options.batch:
            process.processor.on_batch(on_batch_plain if self.options.plain else on_batch)
        else:
            process.processor.on_event(on_event_plain if self.options.plain else on_event)

    async def _mark_the_end(self, partition: OwnedPartition) -> None:
        """At once, or a little later; who crashes before leaves it to the next owner."""

        async def mark() -> None:
            with suppress(EvenflowError):
                await partition.checkpoint()

        async def later() -> None:
            await asyncio.sleep(MARKED_LATER_S)
            await mark()

        if self.splits.rng.random() < MARKED_AT_ONCE:
            await mark()
        else:
            self._marking.append(asyncio.create_task(later()))

    async def _call(self, process: Process, events: Sequence[Event], partition: OwnedPartition) -> None:
        aside = partition._hold.aside is not None
        home = self.splits.home(partition.id, events[0]) if aside else partition.id
        self._call_begins(process, partition, events, aside=aside)
        ok = False
        try:
            if self.chance("freeze"):
                process.freeze(self.stall_s())
            if call_s := self._call_s(partition.id, len(events)):
                await self.calls.pause(process, partition.id, call_s)
            self.trials.meet(process, home, events, aside=aside)
            if process.loop.dead:
                await process.pause(FOR_EVER_S)
            if self.transactions.is_on:
                await self.transactions.apply(process, partition, events)
            if self._application is not None:
                for event in events:
                    self.nothing_lost.vouched(partition.id, event.sequence or 0)
                    await self._apply(self._application, event, partition)
            if self.chance("handler_fails"):
                self.planned_is_free.calm = False
                raise ValueError("the simulated handler failed")
            if self._marks and self.rng.random() < self._manual_chance:
                for event in events:
                    self.handled(home, event)
                self.trials.vouched(home, events)
                await partition.checkpoint()
            ok = True
        finally:
            if not process.loop.dead:
                self._call_ends(process, partition, events, home, ok=ok, aside=aside)

    async def _apply(self, application: Application, event: Event, partition: OwnedPartition) -> None:
        try:
            result = application(event, partition)
            if self.options.plain:
                refuse_awaitable(application, result)
            elif result is not None:
                await result
        except Exception as error:
            self.last_error, self.planned_is_free.calm = error, False
            raise

    @property
    def _marks(self) -> bool:
        return isinstance(self.options.checkpoint, Manual) and not self.transactions.is_on

    @property
    def _manual_chance(self) -> float:
        return 0.02 if self.healed else self.options.manual_chance

    def _call_s(self, partition: PartitionId, events: int) -> float:
        if not self.healed and self.rng.random() < self.options.long_call_chance:
            return self.rng.uniform(5.0, 25.0)
        if self.loads is not None:
            return self.loads.call_s(partition, events)
        # Once healed, calls are quick enough to work off whatever has piled up.
        return self.rng.uniform(0.0, 2.0) * (min(0.002, self.options.call_s) if self.healed else self.options.call_s)

    def hook_begins(self, process: Process, partition: OwnedPartition) -> None:
        """That of the start: no later than a call."""
        now_s = self.timeline.now_s
        self.checked(self.silent_stops.in_time, process, partition.id, partition.epoch, now_s, process.patience_s)

    def _call_begins(
        self, process: Process, partition: OwnedPartition, events: Sequence[Event], *, aside: bool
    ) -> None:
        now_s, first, last = self.timeline.now_s, events[0].sequence or 0, events[-1].sequence or 0
        self.tell(f"begin {process} p{partition.id} e{partition.epoch} {first}..{last}{' aside' if aside else ''}")
        epoch = self.losses.epoch_of(process, partition.id, partition.epoch)
        self.checked(self.in_order.begins, process, partition.id, epoch, first, last, aside=aside)
        is_unordered = self.losses.is_unordered(process, partition.id, partition.epoch)
        self.checked(
            self.silent_stops.begins,
            process,
            partition.id,
            partition.epoch,
            now_s,
            process.patience_s,
            unordered=is_unordered,
        )
        self.checked(self.own_repeats.begins, partition.id, process, first)
        self.checked(self.transactions.exactly_once.begins, process, partition.id, partition.epoch, first)
        self.calls.in_time.begins(process, partition.id)
        self.trials.begins(process, partition, events, aside=aside)
        if not aside:
            self.splits.begins(partition.id, events)
            places = [self.splits.origin(partition.id, event.sequence or 0) for event in events]
            self.checked(self.planned_is_free.begins, places, now_s)
            self.checked(self.seek_is_obeyed.begins, partition.id, partition.epoch, first)

    def _call_ends(
        self,
        process: Process,
        partition: OwnedPartition,
        events: Sequence[Event],
        home: PartitionId,
        *,
        ok: bool,
        aside: bool,
    ) -> None:
        """`home`: where the events were read, which is another partition for a dead letter of one that has ended."""
        last = events[-1].sequence or 0
        self.tell(f"end   {process} p{partition.id} e{partition.epoch} {last} {'' if ok else 'failed'}")
        epoch = self.losses.epoch_of(process, partition.id, partition.epoch)
        self.checked(self.in_order.ends, process, partition.id, epoch, last, ok=ok and not aside)
        self.trials.ends(process, partition, events, home, ok=ok, aside=aside)
        self.calls.in_time.ends(process, partition.id, ok=ok)
        if ok:
            self.own_repeats.handled(partition.id, process, last)
            for event in events:
                self.handled(home, event)

    def _may_skip(self, partition: PartitionId, sequence: int) -> bool:
        return self.splits.may_skip(partition, sequence) or self.transactions.is_done(partition, sequence)

    def handled(self, partition: PartitionId, event: Event) -> None:
        self.nothing_lost.handled(partition, event.sequence or 0)
        self.splits.handled(partition, event)

    def dead_letter_filed(self, partition: PartitionId, dead_letter: DeadLetter) -> None:
        sequence = dead_letter.event.sequence or 0
        self.tell(f"dead letter p{partition} e{dead_letter.epoch} {sequence} {dead_letter.reason}")
        self.nothing_lost.handled(partition, sequence)
        self.in_order.filed(partition, dead_letter.epoch, sequence)
        self.seek_is_obeyed.filed(partition, dead_letter.epoch, sequence)
        self.trials.filed(partition, dead_letter)

    def owes_a_redrive(self, partition: PartitionId) -> bool:
        """Somebody asked for one, and the record does not say yet that it is done."""
        room, record = self.store._stored.get(self.group), self.record(partition)
        asked = room.state.redrives.get(partition, 0) if room is not None else 0
        return record is None or notes_of(record).redriven != asked

    def ask_now(self, request: Coroutine[Any, Any, object]) -> None:
        """Somebody's wish, which reaches the store or the dead letters at once."""
        run_at_once(request)

    # --- the store, watched
    @property
    def history(self) -> int:
        return self._blobs.history if self._blobs is not None else self.store.history

    def leases(self) -> dict[PartitionId, Lease]:
        if self._blobs is not None:
            return self._blobs.leases()
        room = self.store._stored.get(self.group)
        return room.leases if room is not None else {}

    def state(self) -> GroupState:
        room = self.store._stored.get(self.group)
        return room.state if room is not None else GroupState()

    def record(self, partition: PartitionId) -> Checkpoint | None:
        if self._blobs is not None:
            return self._blobs.record(partition)
        return self.store._records.get(self.group, {}).get(partition)

    def lease_written(self, before: Lease | None, after: Lease) -> None:
        self.last_write_s = self.timeline.now_s
        self.tell(f"lease p{after.partition} -> {after.owner} e{after.epoch}: {after.reason}")
        self.checked(self.moves.written, before, after)
        if before is not None and None not in (before.owner, after.owner) and before.owner != after.owner:
            self.checked(self.planned_is_free.handed_over, after.partition, self.timeline.now_s)
        if not self.losses.wrote_blindly(after):
            self.checked(self.one_owner.lease_written, before, after)

    async def heartbeat(self, group: Group, member: Member, since: Cursor | None) -> tuple[Ledger, list[Lease]]:
        self.rows["heartbeat"] += 1
        ledger = await self.store.heartbeat(group, member, since)
        self.losses.beaten()
        owned = [lease for lease in self.leases().values() if ledger.me and lease.owner == ledger.me.owner]
        return ledger, owned

    def heartbeat_answered(self, process: Process, sent_s: float, owned: Sequence[Lease]) -> None:
        self.silent_stops.answered(process, sent_s, owned)

    def swap_sent(self, process: Process, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.owner is not None and change.owner.id == process.name:
                self.silent_stops.claims(process, change.partition, change.epoch)

    async def swap(self, group: Group, changes: Sequence[Change]) -> Sequence[Outcome]:
        before = dict(self.leases())
        outcomes = await self.store.swap(group, changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if outcome.ok and outcome.lease is not None:
                self.rows["swap"] += 1
                if change.reason.startswith("seek"):
                    place = int(change.reason.rpartition(" ")[2])
                    self._sought[change.partition, change.epoch] = place
                    self.own_repeats.begin_anew()
                self.lease_written(before.get(change.partition), outcome.lease)
                if change.ended:
                    self.splits.ended(change.partition)
        return outcomes

    async def seal(
        self,
        group: Group,
        partition: PartitionId,
        epoch: int,
        default: Checkpoint,
        *,
        who: Process,
        unplanned: bool = False,
    ) -> Checkpoint:
        before = self.record(partition)
        after = await self.store.seal(group, partition, epoch, default, unplanned=unplanned)
        self.rows["seal"] += 1
        self.tell(f"seal  p{partition} e{epoch} at {after.position}")
        self.trials.sealed(partition, epoch, before, unplanned=unplanned)
        self.own_repeats.sealed(partition, who)
        self.losses.sealed(partition, who, after)
        if epoch_parts(epoch)[0] < self.store.history:
            self.own_repeats.forget(partition)  # lost between the last commit and this: the next heartbeat tells
        if before is None and not self.losses.begun_blindly(partition, after.position.sequence or 0):
            late = partition in self.leases() and self.leases()[partition].late
            self.checked(self.nothing_lost.first_sealed, partition, after.position.sequence, late=late)
        self.record_written(before, after)
        return after

    async def commit(self, group: Group, checkpoints: Sequence[Checkpoint], *, who: Process) -> Sequence[Outcome]:
        before = {wish.partition: self.record(wish.partition) for wish in checkpoints}
        outcomes = await self.store.commit(group, checkpoints)
        for wish, outcome in zip(checkpoints, outcomes, strict=True):
            record = before[wish.partition]
            self.checked(self.never_back.committed, record, wish, ok=outcome.ok, history=self.store.history)
            after = self.record(wish.partition)
            if outcome.ok and after is not None:
                self.rows["commit"] += 1
                place = self._sought.get((wish.partition, wish.epoch))
                if place is not None and after.position.sequence == place:
                    self.seek_is_obeyed.moved(wish.partition, wish.epoch, place)
                if record is None or record.epoch != wish.epoch:
                    self.tell(f"restore p{wish.partition} e{wish.epoch} at {after.position}")
                    self.own_repeats.sealed(wish.partition, who)
                if record is None:
                    assert after.position.sequence is not None
                    self.checked(self.nothing_lost.first_sealed, wish.partition, after.position.sequence)
                self.record_written(record, after)
        return outcomes

    def record_seen(self, before: Checkpoint | None, after: Checkpoint) -> None:
        """Of a store that nobody asks in one step."""
        if before is None:
            late = after.partition in self.leases() and self.leases()[after.partition].late
            self.checked(self.nothing_lost.first_sealed, after.partition, after.position.sequence, late=late)
        self.record_written(before, after)

    def record_written(self, before: Checkpoint | None, after: Checkpoint) -> None:
        self.transactions.record_written(before, after)
        # After lost history an owner seals what it remembers, and that may be a seek.
        sought = (after.partition, after.epoch) in self._sought or (
            "lose_writes" in self.options.incidents and any(after.partition == name for name, _ in self._sought)
        )
        sought = sought or self.losses.has_passed_over(after.partition)
        self.checked(self.never_back.written, before, after, sought=sought, history=self.history)
        if before is not None and before.position.sequence is not None and after.position.sequence is not None:
            self.checked(self.nothing_lost.moved, after.partition, before.position.sequence, after.position.sequence)

    # --- what happens
    def _plan_next(self, kind: str) -> None:
        def happen() -> None:
            if not self.healed:
                self._happen(kind)
                self._plan_next(kind)

        self.timeline.push(self.timeline.now_s + self.rng.expovariate(1 / self.options.mean_gap_s), happen)

    def _happen(self, kind: str) -> None:
        up = [process for process in self.processes if process.is_up]
        one = self.rng.choice(up) if up else None
        self.tell(f"HAPPENS {kind} {one or ''}")
        if kind not in ("join", "retire", "grow", "pause", "set_wall", *ENDINGS):
            self.planned_is_free.calm = False
        if kind in LOSSES:
            getattr(self.losses, kind)()
            return
        if kind in CLOCKS:
            if one is not None:
                getattr(self.clocks, kind)(one)
            return
        action: Callable[..., None] = getattr(self, f"_{kind}")
        if kind in ("outage", "slow", "lose_writes", "grow", "join", "pause", *ENDINGS, *TROUBLES):
            action()
        elif one is not None:
            action(one)

    def _crash(self, process: Process) -> None:
        self.kill(process)
        name = process.name if self.options.same_ids else f"n{len(self.processes)}"
        self.later(self.rng.choice((0.0, 1.0, 5.0, 15.0)), lambda: self.healed or self.start(name))

    def end_for_good(self, process: Process) -> None:
        """What it handles ends it. Somebody starts it again, also when nothing else goes wrong any more."""
        self.planned_is_free.calm = False
        self.kill(process)
        if not process.retiring:
            self.later(1.0, lambda: self.start(process.name))

    def kill(self, process: Process) -> None:
        process.loop.dead = True
        self.in_order.process_died(process)
        self.moves.stop()

    def _stall(self, process: Process) -> None:
        process.loop.stall()
        self.later(self.stall_s(), process.loop.resume)

    def stall_s(self) -> float:
        return self.rng.choice((0.5, 3.0, self.rng.uniform(6.0, 12.0), 20.0))

    def _twin(self, process: Process) -> None:
        if sum(p.is_up for p in self.processes) < 5:
            self.start(process.name)

    def _outage(self) -> None:
        self.outage = True

        def end() -> None:
            self.outage = False

        self.later(self.rng.choice((1.0, 4.0, 9.0, 15.0)), end)

    def _lose_writes(self) -> None:
        self.losses.go_back_to(self._snapshots[-3:])

    def forget_snapshots(self) -> None:
        self._snapshots = [self.store.snapshot()]

    @property
    def epoch_floor(self) -> int:
        return self.store._epoch_floors.get(self.group, 0)

    def _cut(self, process: Process) -> None:
        process.line.cut(self, process)

    def _slow(self) -> None:
        self.slow = self.rng.choice((5.0, 30.0))

        def end() -> None:
            self.slow = 1.0

        self.later(self.rng.uniform(1.0, 10.0), end)

    def _join(self) -> None:
        if sum(p.is_up for p in self.processes) < 5:
            self.start(f"n{len(self.processes)}")

    def _retire(self, process: Process) -> None:
        """By its own program, or by somebody from outside."""
        if len(self._alive()) <= 1:
            return
        engine = process.processor._engine
        if engine is not None and engine.coordinator.me.incarnation and self.rng.random() < 0.5:
            self.steer(Steering(retire=(engine.coordinator.me.owner,)), "retire")
            self.moves.changed()
        else:
            self.retire(process)

    def retire(self, process: Process) -> None:
        process.retiring = True
        process.loop.call_soon(process.processor.stop)
        self.moves.changed()

    def _pause(self) -> None:
        """The group, or one partition of it, for a while."""
        one = self.rng.choice((EVERYTHING, *self.source.partition_ids))
        self.steer(Steering(pause=(one,)), "pause")

        def end() -> None:
            if one == EVERYTHING or EVERYTHING not in self.state().pauses:
                self.steer(Steering(resume=(one,)), "resume")

        self.later(self.rng.uniform(0.0, 8.0), end)

    def steer(self, steering: Steering, kind: str) -> None:
        """From a machine that reaches the store whatever happens to the instances."""
        if self.group in self.store._stored:
            self.tell(f"steer {steering}")
            run_at_once(self.store.steer(self.group, steering, Action(kind=kind, by="somebody", why="", what="")))

    def _grow(self) -> None:
        if len(self.source.partition_ids) < PARTITIONS_MOST:
            self.source.grow(1)

    def _split(self) -> None:
        self.splits.split()

    def _merge(self) -> None:
        self.splits.merge()

    def _dead_letters_away(self) -> None:
        self.trials.dead_letters_away = True

        def end() -> None:
            self.trials.dead_letters_away = False

        self.later(self.rng.choice((1.0, 5.0, 20.0)), end)

    def _handler_away(self) -> None:
        self.trials.handler_away = True

        def end() -> None:
            self.trials.handler_away = False

        self.later(self.rng.choice((0.5, 3.0, 10.0)), end)

    def _redrive(self) -> None:
        self.trials.redrive()

    def _seek(self, process: Process) -> None:
        async def seek() -> None:
            try:
                places = await process.processor.seek("earliest")
                for partition, place in places.items():
                    self.checked(self.seek_is_obeyed.answered, partition, place.sequence)
            except EvenflowError as error:
                self.tell(f"seek refused: {error}")

        if process.processor.owned and not process.loop.stalled:
            process.loop.start(seek())

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        def act() -> None:
            action()

        self.timeline.push(self.timeline.now_s + delay_s, act)

    # --- the end
    def _heal(self) -> None:
        self.tell("HEALED")
        self.healed, self.rates, self.outage, self.slow = True, {}, False, 1.0
        self.steer(Steering(resume=(EVERYTHING,)), "resume")
        self.trials.heal()
        for process in self.processes:
            process.line, process.threads.calm = Line(), True
        self.start("healer")

    def _alive(self) -> list[Process]:
        return [process for process in self.processes if process.is_up and not self._retires(process)]

    def _retires(self, process: Process) -> bool:
        """It was told to, or asked to (a wish that the store has not lost), or has heard so already."""
        engine = process.processor._engine
        me = engine.coordinator.me if engine is not None else None
        return process.retiring or (me is not None and (me.retiring or str(me.owner) in self.state().retired))

    def unsettled(self) -> str | None:
        least = {}
        for process in self._alive():
            engine = process.processor._engine
            if engine is None:
                return f"{process} has not started"
            least[engine.coordinator.me.owner] = process.processor.settings.min_partitions or 0
        leases, partitions = self.leases(), set(self.source.open_ids)
        for name in partitions & leases.keys():
            if leases[name].history != self.history and not leases[name].ended:
                return f"partition {name} has not been claimed since the store has lost writes"
        unended = self.splits.unended(leases)
        if self.options.weights:
            return unended or self.settles.unowned(leases, set(least), partitions) or self.moves.uneven()
        return unended or self.settles.uneven(leases, set(least), partitions, self._by_load, least)

    def _await_settled(self) -> None:
        def look() -> str | None:
            question = self.unsettled()
            if question is not None:
                return question
            self._producing = False
            return self._unhandled()

        self._await(look)

    def _await_redriven(self) -> None:
        """Every poison event is in the dead letters; and once mended, all of them can be handled."""
        missing = self.trials.missing()
        if missing is not None:
            raise Violation(missing)
        if self.options.failing is not None and self.options.failing.redrive_all:
            self._await(self.trials.still_open)

    def _await(self, look: Callable[[], str | None]) -> None:
        """As long as fewer and fewer events are left, it is only slow: each may wait for a commit of its own."""
        most_s = SETTLING_S if self.options.failing is None else FAILING_SETTLING_S
        since_s, fewest = self.timeline.now_s, inf
        while True:
            self._run_until(self.timeline.now_s + 1.0)
            open_question = look()
            if open_question is None:
                return
            left = inf if self._producing else sum(map(len, self._missing().values()))
            if left < fewest:
                since_s, fewest = self.timeline.now_s, left
            if self.timeline.now_s > since_s + most_s:
                raise Violation(f"healed, and after {most_s:.0f} s without progress still {open_question}")

    def _missing(self) -> dict[PartitionId, Sequence[int]]:
        newest = {partition: self.source.newest(partition) for partition in self.source.partition_ids}
        found = {
            name: [one for one in self.nothing_lost.missing(name, last) if not self.losses.is_excused(name, one)]
            for name, last in newest.items()
            if last >= 0
        }
        return {name: missing for name, missing in found.items() if missing}

    def _unhandled(self) -> str | None:
        for partition, missing in self._missing().items():
            return f"partition {partition}: {len(missing)} events are not handled, the first is {missing[0]}"
        return self.transactions.missing()

    def _await_quiet(self) -> None:
        self._run_until(self.timeline.now_s + HEARTBEAT_S)
        since_s = self.timeline.now_s
        self._run_until(since_s + QUIET_ROUNDS * HEARTBEAT_S)
        if self.last_write_s > since_s:
            raise Violation("leases still move though all is even")

    def dispose(self) -> None:
        """End every coroutine properly, whatever state the world is in."""
        self.checking, self.rates, self.outage = False, {}, False
        for process in self.processes:
            process.threads.end()
            process.loop.raise_from_the_dead()
            process.loop.cancel_all()
        for _ in range(100):
            self.timeline.run_until(self.timeline.now_s + 0.1)
            if not sum(process.loop.cancel_all() for process in self.processes):
                return
