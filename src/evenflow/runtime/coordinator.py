"""Once a heartbeat: heartbeat, take the ledger in, decide, apply. The only place that begins and ends holds.

What an instance believes about its leases changes in two ways: by an answered heartbeat, taken in whole in one step
without an await, and by the answer to its own swap. Everything it may not know for sure counts against it: a swap
without an answer counts as done, a lease it stopped handling is taken again under a new epoch only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.core.checkpointing import Manual
from evenflow.core.decide import TAKEN_OVER, Decision, Situation, decide, handoff, paused_by, released_done
from evenflow.core.failure import pause_s
from evenflow.core.lineage import ended_into, open_ones
from evenflow.core.liveness import Sighting, watch
from evenflow.core.view import View, merge, with_lease
from evenflow.errors import EvenflowError, HubReplaced, LeaseLost, Misconfigured, StoreUnavailable, Transient
from evenflow.model import (
    EVERYTHING,
    Change,
    Checkpoint,
    GroupState,
    Lease,
    Ledger,
    Member,
    Outcome,
    Owner,
    PartitionId,
    Wish,
    epoch_parts,
    made_and_mode,
    restore_epoch,
)
from evenflow.ports import Vanishing, Watchable
from evenflow.runtime.charges import Bill
from evenflow.runtime.chart import Chart
from evenflow.runtime.hold import Hold, Seek, StopReason
from evenflow.runtime.load import LoadMeter
from evenflow.runtime.memory import Memory, Tenure
from evenflow.runtime.pacer import Pacer
from evenflow.runtime.pulse import LoopPulse
from evenflow.signals import (
    Ended,
    Fenced,
    HistoryLost,
    Joined,
    Left,
    Paused,
    Resumed,
    Retiring,
    Swapped,
    Trouble,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from evenflow.model import Group, Partition
    from evenflow.runtime.parts import Parts

NEVER = float("-inf")
RETRY_S = 0.5
"""After a heartbeat without an answer."""
GATHER_S = 0.02
"""Between the store's call and the heartbeat that answers it."""
REST_LEAST_S = 0.001
"""A timer may fire a hair before the expiry that it waits for: the heartbeat that finds so is not repeated at once."""
EARLY_S = 0.001
"""A timer may fire a hair early; who stops itself that much too soon harms nobody."""


def check_source(group: Group, ledger: Ledger, source: str) -> None:
    """HubReplaced when the group's checkpoints belong to another making of the hub; Misconfigured when it reads it in
    another way. `source` is what is read here: see `Identity.source`."""
    if not ledger.state.source or ledger.state.source == source:
        return
    (made, mode), (own, wanted) = made_and_mode(ledger.state.source), made_and_mode(source)
    if made == own:
        raise Misconfigured(
            f"group {group} reads with mode={mode}, and this instance with mode={wanted}:"
            " they would take each other's changes. Use the mode that the group has; or another name, which begins at"
            " its own start; or stop all instances and delete the group (`evenflow group delete`), to begin anew."
        )
    raise HubReplaced(
        f"group {group}: its checkpoints belong to another hub of that name: it was deleted and made again, or two"
        " of one name share this store. Delete the group's checkpoints (`evenflow group delete`), or use another group"
        " name, to read this one from its start position."
    )


def has_ended(partition: PartitionId) -> str:
    """For people: why nobody can go anywhere in it."""
    return f"partition {partition} has ended: nobody owns it any more, and its children go on. Seek in those."


class Coordinator:
    def __init__(self, parts: Parts, member: Member, start_pump: Callable[[Hold], Coroutine[object, object, None]]):
        self._parts = parts
        self._settings = parts.settings
        self._clock = parts.clock
        self._start_pump = start_pump
        self.me = member
        self.chart = Chart(vanish=isinstance(parts.source, Vanishing))
        self._charted = (self.chart.known, self.chart.parents)
        """What was known of partitions when the last answered heartbeat was sent."""
        self.view: View | None = None
        self.decision: Decision | None = None
        self.holds: dict[PartitionId, Hold] = {}
        self._pumps: dict[PartitionId, asyncio.Task[None]] = {}
        self._asking: set[PartitionId] = set()
        self._ready: list[Hold] = []
        self._passing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sightings: dict[Owner, Sighting] | None = None
        self._last_epochs: dict[PartitionId, int] = {}
        self._uncounted: dict[PartitionId, int] = {}
        """What it took over and lost before a seal had counted that the owner before it ended; under which epoch."""
        self._memory = Memory(lambda: self.me.owner, self._starts_at_end)
        self._restorer = Pacer(parts)
        self._restoring: asyncio.Task[None] | None = None
        self._heartbeat_sent_s = NEVER
        self._history_since_s = 0.0
        self._meter = LoadMeter(parts.settings.load_s) if parts.settings.balance == "load" else None
        self._bill = Bill(parts.source, parts.store)
        self._swaps = Pacer(parts)
        self._woken = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._fence_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._unanswered = 0
        """How many heartbeats were sent since the last one that was answered."""
        self._last_error = ""
        self._pulse = LoopPulse(parts.clock.now)
        self._fatal: Exception | None = None
        self._is_done = False
        self._has_left = False
        self._retires_in_store = False
        """Its row says so, as of the last answered heartbeat."""
        self._placed: set[PartitionId] = set()
        """Partitions without an owner whose start is written down, or about to be."""

    # --- the loop
    async def run(self) -> None:
        """Until it has retired and left, or something is so wrong that it must end."""
        unwatch: Callable[[], None] | None = None
        if isinstance(self._parts.store, Watchable):
            unwatch = self._parts.store.watch(self._parts.group, self.me.id, self._wake_soon)
        self._pulse.start()
        try:
            while not await self._step():
                await self._rest()
        except Exception as error:
            self._parts.announce(Trouble, where="processor", error=error)
            for hold in list(self.holds.values()):
                self._end(hold, "failed")
            raise
        finally:
            self._pulse.stop()
            if unwatch is not None:
                unwatch()
            for timer in filter(None, (self._fence_timer, self._wake_timer)):
                timer.cancel()

    async def _step(self) -> bool:
        """One heartbeat and what follows from it. True when there is nothing left to do here."""
        if self._fatal is not None:
            raise self._fatal
        self._woken.clear()
        leaving = self.me.retiring and self._has_nothing()
        if not await self._heartbeat(leaving=leaving):
            return False
        if leaving and self._has_left:
            if self._restoring is not None:
                await asyncio.wait(
                    [self._restoring]
                )  # it has learnt with its last heartbeat that the store lost writes
            self._parts.announce(Left)
            return True
        if self.me.retiring and not self._is_known_to_retire():
            self._woken.set()  # or others would take what it passes on for room, and pass it back
            return False
        self.decision = decide(self._situation())
        self._apply(self.decision)
        return False

    def _is_known_to_retire(self) -> bool:
        """Whether all who see what it passes on see that it retires: by its row, or by the wish that it do so."""
        return self._retires_in_store or (self.view is not None and str(self.me.owner) in self.view.state.retired)

    async def _rest(self) -> None:
        """Until the next heartbeat is due, somebody wakes us, or a lease that we watch runs out."""
        now_s = self._clock.now()
        wake_at_s = max(self._heartbeat_sent_s, now_s - self._settings.heartbeat_s) + self._settings.heartbeat_s
        if self._failures:
            wake_at_s = now_s + min(RETRY_S, self._settings.heartbeat_s)
        elif self.decision is not None and self.decision.wake_at_s is not None:
            wake_at_s = min(wake_at_s, self.decision.wake_at_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(REST_LEAST_S, wake_at_s - now_s)):
                await self._woken.wait()

    def _wake_soon(self) -> None:
        """The store calls: leases come in handfuls, and one heartbeat brings them all."""
        if self._wake_timer is None:
            self._wake_timer = asyncio.get_running_loop().call_later(GATHER_S, self._wake)

    def _wake(self) -> None:
        self._wake_timer = None
        self._woken.set()

    def retire(self, *, done: bool = False) -> None:
        """Drain everything, pass it on, leave. With `done`, what is released tells that all of it was handled."""
        self.me, self._is_done = replace(self.me, retiring=True), done
        self._woken.set()

    def fail(self, error: Exception) -> None:
        """End with this error at the next step."""
        self._fatal = error
        self._woken.set()

    async def _heartbeat(self, *, leaving: bool) -> bool:
        sent_s, known = self._clock.now(), (self.chart.known, self.chart.parents)
        self._measure(sent_s)
        since = self.view.cursor if self.view is not None else None
        member = replace(self.me, leaving=True) if leaving else self.me
        self._unanswered += 1
        try:
            async with self._parts.answered():
                ledger = await self._parts.store.heartbeat(self._parts.group, member, since)
        except Transient as error:
            self._failures += 1
            self._last_error = str(error)
            self._parts.announce(Trouble, where="store", error=error, attempt=self._failures)
            if self._parts.waits.begin("store", error, sent_s):
                self._parts.alarm(error)
            return False
        self._failures = self._unanswered = 0
        self._last_error = ""
        self._retires_in_store = member.retiring
        self._parts.waits.end("store")
        # A partition that was learnt of since may follow one that somebody claimed meanwhile: this ledger cannot tell.
        self._charted = known
        self._take_in(ledger, sent_s)
        return True

    def _measure(self, now_s: float) -> None:
        if self._meter is not None:
            self._meter.measure(self.holds, now_s)
            load = self._meter.news(self.me)
            self.me = self.me if load is None else replace(self.me, load=load)
        charges = self._bill.news(self.me)
        self.me = self.me if charges is None else replace(self.me, charges=charges)

    # --- the source's partitions
    @property
    def leases(self) -> Mapping[PartitionId, Lease]:
        return self.view.leases if self.view is not None else {}

    def learn(self, listed: Sequence[Partition], asked: Collection[PartitionId] = (), questions: int = 0) -> None:
        """What the source has now."""
        if self.chart.learn(listed, self.leases, asked, questions):
            self._woken.set()

    def ended_parents(self, partition: PartitionId) -> Sequence[Lease]:
        return self.chart.ended_parents(partition, self.leases)

    def is_ended(self, partition: PartitionId) -> bool:
        lease = self.leases.get(partition)
        return lease is not None and lease.ended

    # --- an answered heartbeat, in one step
    def _take_in(self, ledger: Ledger, sent_s: float) -> None:
        now_s = self._clock.now()
        interrupted = now_s - self._heartbeat_sent_s > self._gap_s
        before, self.view = self.view, merge(self.view, ledger)
        self._heartbeat_sent_s = sent_s
        self._recognise(ledger)
        self._obey(before.state if before is not None else GroupState(), self.view.state)
        is_lost = before is not None and before.history != self.view.history
        if before is not None and is_lost:
            self._lose_history(before.history, self.view.history)
        self._memory.look(before, self.view, sent_s, now_s)
        if before is not None and before.epoch_floor != self.view.epoch_floor:
            self._placed.clear()  # the group was deleted, and begins anew
        self._restore_soon()
        if interrupted or before is None or is_lost:
            self._history_since_s = now_s
        for hold in list(self.holds.values()):
            self._compare(hold, ledger.cursor.revision)
        self._call_for_redrives()
        # A store that has lost writes gives marks again: one of before may look as if it had stood still.
        self._sightings = watch(None if interrupted or is_lost else self._sightings, ledger, self.view, now_s)
        self.chart.look(before.leases if before is not None else None, self.view.leases)
        if self._meter is not None:
            self._meter.take_in(self.me, self.view)
        self._arm_fence()

    @property
    def _gap_s(self) -> float:
        """Own answered heartbeats that are further apart are interrupted: the store may have been away meanwhile."""
        return min(self._settings.patience_s, 2 * self._settings.heartbeat_s)

    def _recognise(self, ledger: Ledger) -> None:
        """Who the store says I am, and whether the group's checkpoints belong to this hub."""
        self._has_left = ledger.me is None
        if ledger.me is not None and self.me.incarnation == 0:
            self.me = replace(self.me, incarnation=ledger.me.incarnation)
            self._parts.announce(Joined, incarnation=self.me.incarnation)
        check_source(self._parts.group, ledger, self.me.source)

    def _obey(self, before: GroupState, after: GroupState) -> None:
        """What people ask of the group: pauses are decided on, a wish that this incarnation retire is followed."""
        if before.pauses != after.pauses:
            for name in before.pauses.keys() - after.pauses.keys():
                self._parts.announce(Resumed, partition=name if name != EVERYTHING else None)
            for name in sorted(after.pauses.keys() - before.pauses.keys()):
                pause = after.pauses[name]
                self._parts.announce(Paused, partition=name if name != EVERYTHING else None, by=pause.by, why=pause.why)
        wish = after.retired.get(str(self.me.owner))
        if wish is not None and not self.me.retiring:
            self._parts.announce(Retiring, by=wish.by, why=wish.why)
            self.retire()

    def _call_for_redrives(self) -> None:
        """Each hold hears of its own, and of those of partitions that have ended, if it is to look after them."""
        redrives = self.view.state.redrives if self.view is not None else {}
        wards = {name: self.chart.attendant(name, self.leases) for name in redrives if self.is_ended(name)}
        for name, hold in self.holds.items():
            hold.wards = tuple(sorted(ward for ward, attendant in wards.items() if attendant == name))
            hold.redrives = sum(redrives.get(one, 0) for one in (name, *hold.wards))

    def pause_of(self, partition: PartitionId) -> Wish | None:
        """Who paused it, and why; None when nobody has."""
        return self.view.state.pause_of(partition) if self.view is not None else None

    def _compare(self, hold: Hold, shown: int) -> None:
        """A deadline moves only where this heartbeat's ledger (up to revision `shown`) has me as the owner, in this
        epoch.

        The view may know better than the ledger, by the answer to a swap that came after the heartbeat: that is no
        heartbeat."""
        assert self.view is not None
        if hold.epoch <= self.view.epoch_floor:
            self.lost(hold)  # its group was deleted
            return
        lease = self.view.leases.get(hold.partition)
        if hold.passing or lease is None or lease.epoch < hold.epoch or lease.revision > shown:
            return
        if lease.owner == self.me.owner and lease.epoch == hold.epoch:
            hold.deadline_s = self._patience_ends_s
        else:
            self.lost(hold)

    @property
    def _patience_ends_s(self) -> float:
        return self._heartbeat_sent_s + self._settings.patience_s

    def _lose_history(self, before: int, after: int) -> None:
        self._parts.announce(HistoryLost, before=before, after=after)
        for hold in list(self.holds.values()):
            self._end(hold, "lost")

    # --- what was decided, applied
    def _situation(self) -> Situation:
        assert self.view is not None
        return Situation(
            me=self.me,
            view=self.view,
            sightings=self._sightings or {},
            partitions=self._charted[0].keys(),
            held={partition: hold.epoch for partition, hold in self.holds.items()},
            busy=self._asking | self._occupied(),
            last_epochs=self._last_epochs,
            heartbeat_sent_s=self._heartbeat_sent_s,
            history_since_s=self._history_since_s,
            longest_ttl_s=self._settings.longest_ttl_s,
            loads=self._meter.known if self._meter is not None else None,
            parents=self._charted[1],
            reclaims=self._memory.reclaims,
            strangers=open_ones((), self.view.leases).difference(self._charted[0]),
        )

    def _apply(self, decision: Decision) -> None:
        for lease in decision.adopt:
            self._begin(lease, self._patience_ends_s)
        for lease in decision.unplaced:
            if lease.partition not in self._placed and self._settings.start_of(lease.partition, late=False) == "latest":
                self._placed.add(lease.partition)
                self._spawn(self._place(lease))
        if decision.swaps:
            self._spawn(self._claim(decision))
        reasons = {move.partition: move.reason for move in decision.plan.moves}
        for partition, hold in self.holds.items():
            if hold.passing:
                continue
            if (wish := decision.paused.get(partition)) is not None:
                self._pause(hold, wish)
            elif partition in decision.heirs:
                hold.heir, hold.why = decision.heirs[partition], reasons.get(partition, "")
                hold.stop("leaving" if self.me.retiring else "handed over")
                if hold.reason in ("kept", "paused"):
                    hold.reason = "handed over"
            elif hold.reason in ("handed over", "paused") and hold.stopping:
                hold.reason = "kept"

    def _pause(self, hold: Hold, wish: Wish) -> None:
        """Drain, commit, let go. A seek that has not got its new epoch yet does not happen."""
        hold.heir, hold.why = None, paused_by(wish)
        hold.stop("paused")
        if hold.seek is not None:
            hold.seek.settle(LeaseLost(self._cannot_seek(hold.partition, wish)))
            hold.seek = None
        if hold.reason in ("handed over", "kept", "seek"):
            hold.reason = "paused"

    def _cannot_seek(self, partition: PartitionId, wish: Wish | None) -> str:
        hold = self.holds.get(partition)
        if hold is not None and hold.children is not None:
            return has_ended(partition)
        if wish is None:
            return f"partition {partition} is being moved; try the seek again."
        return (
            f"partition {partition} is {paused_by(wish)}, so that nobody owns it, and a seek goes through the owner."
            " Resume it first, or seek from outside with `evenflow group seek`."
        )

    async def _claim(self, decision: Decision) -> None:
        """As many at a time as the store answers for in time; what is left when the next decision is made is its."""
        left = decision.swaps
        while left and self.decision is decision:
            most = self._swaps.most
            await self._swap(left[:most])
            left = left[most:]

    async def _swap(self, changes: Sequence[Change]) -> None:
        """Claim. A deadline counts from the last heartbeat answered before the claim was sent, not from a later one."""
        patience_ends_s = self._patience_ends_s
        partitions = {change.partition for change in changes}
        self._asking |= partitions
        try:
            outcomes = await self._send(changes)
        finally:
            self._asking -= partitions
        for change, outcome in zip(changes, outcomes, strict=True):
            won = outcome.ok and outcome.lease is not None and change.owner == self.me.owner
            if won and change.history == self._history:
                assert outcome.lease is not None
                if not outcome.lease.settled:
                    continue  # a heartbeat will tell when it may be begun
                self._begin(outcome.lease, patience_ends_s)
        self._leave_soon()

    async def _place(self, lease: Lease) -> None:
        """Write down where the latest event is, now that the group has begun: nobody may have this partition yet, and
        who has it first, whenever that is, must not pass over what came meanwhile. Under the epoch that nobody has."""
        name, parts = lease.partition, self._parts
        try:
            newest = await parts.source.resolve(name, "latest")
            default = Checkpoint(partition=name, epoch=lease.epoch, position=newest, ordinal=0)
            async with parts.sealing():
                await parts.store.seal(parts.group, name, lease.epoch, default)
        except Transient as error:
            self._placed.discard(name)
            parts.announce(Trouble, where="store", error=error)
        except EvenflowError:
            pass  # somebody has it by now; or it cannot be told, and whoever has it first will say so

    async def _send(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        """Swap, and take what is answered into the view. No answer: every change is in doubt, and none succeeded."""
        try:
            async with self._swaps.request(len(changes)):
                outcomes = await self._parts.store.swap(self._parts.group, changes)
        except Transient as error:
            self._parts.announce(Trouble, where="store", error=error)
            return [Outcome(partition=change.partition, ok=False, why="doubt") for change in changes]
        for change, outcome in zip(changes, outcomes, strict=True):
            if outcome.lease is not None and self.view is not None:
                self.view = with_lease(self.view, outcome.lease)
            self._parts.announce(
                Swapped,
                partition=change.partition,
                epoch=change.epoch,
                owner=change.owner.id if change.owner else None,
                ok=outcome.ok,
                reason=change.reason,
            )
        return outcomes

    @property
    def _history(self) -> int:
        return self.view.history if self.view is not None else 0

    # --- holds
    def _occupied(self) -> set[PartitionId]:
        """With a call that may still run, whatever became of its hold: neither claimed nor started again."""
        return set(self._pumps)

    def _begin(self, lease: Lease, deadline_s: float, jump: Seek | None = None) -> bool:
        """Hold a lease that is mine, unless it is too late, or a call of an earlier hold still runs.

        An epoch begins once: who stopped goes on under a new one alone.
        """
        partition = lease.partition
        if partition in self._occupied() or lease.epoch <= self._last_epochs.get(partition, 0):
            return False
        if self.pause_of(partition) is not None:
            self._woken.set()  # it was paused while the swap was under way: the next decision lets go of it
            return False
        if self._clock.now() >= deadline_s:
            return False
        is_owed = self._uncounted.pop(partition, None) == lease.epoch - 1
        unplanned = lease.reason.startswith(TAKEN_OVER) or is_owed
        hold = Hold(partition, lease.epoch, deadline_s, late=lease.late, unplanned=unplanned)
        hold.jump = jump
        self.holds[partition] = hold
        self._call_for_redrives()
        self._last_epochs[partition] = lease.epoch
        pump = asyncio.create_task(self._start_pump(hold), name=f"pump {partition}")
        self._pumps[partition] = hold.task = pump
        pump.add_done_callback(lambda task: self._pump_ended(hold, task))
        self._arm_fence()
        return True

    def _pump_ended(self, hold: Hold, task: asyncio.Task[None]) -> None:
        if self._pumps.get(hold.partition) is task:
            del self._pumps[hold.partition]
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())  # type: ignore[arg-type]
        if not hold.over and hold not in self._ready and not hold.passing:
            self._end(hold, "failed")
        if hold.over:
            self._remember(hold)
        lease = self.view.leases.get(hold.partition) if self.view is not None else None
        is_mine = lease is not None and lease.owner == self.me.owner
        if hold.over and (is_mine or hold.partition in self._memory.reclaims):
            self._woken.set()
        self._leave_soon()

    def _end(self, hold: Hold, reason: StopReason) -> None:
        """Nothing happens under this hold any more. Its pump ends when its call has returned."""
        if hold.over:
            return
        hold.over = True
        hold.stop(reason)
        if self.holds.get(hold.partition) is hold:
            del self.holds[hold.partition]
        tenure = Tenure(epoch=hold.epoch, deadline_s=hold.deadline_s, passing=hold.passing, sealed_s=hold.sealed_s)
        self._memory.leave(hold.partition, tenure)
        if hold.unplanned and hold.sealed is None:
            self._uncounted[hold.partition] = hold.epoch
        self._remember(hold)
        for seek in filter(None, (hold.seek, hold.jump)):
            seek.settle(LeaseLost(f"partition {hold.partition} was lost before the seek was done."))

    def lost(self, hold: Hold) -> None:
        self._end(hold, "lost")
        self._woken.set()

    def fence(self, hold: Hold) -> None:
        """The deadline has passed without an answered heartbeat: stop, and take it again under a new epoch."""
        now_s = self._clock.now()
        if hold.over or now_s < hold.deadline_s - EARLY_S:
            return
        sent_s = hold.deadline_s - self._settings.patience_s
        self._parts.announce(
            Fenced,
            partition=hold.partition,
            epoch=hold.epoch,
            silent_s=now_s - sent_s,
            blocked_s=self._pulse.blocked_s(sent_s),
            attempts=self._unanswered,
            error=self._last_error,
        )
        self._end(hold, "fenced")

    def _arm_fence(self) -> None:
        if self._fence_timer is not None:
            self._fence_timer.cancel()
            self._fence_timer = None
        if self.holds:
            first_s = min(hold.deadline_s for hold in self.holds.values())
            loop = asyncio.get_running_loop()
            self._fence_timer = loop.call_later(max(0.0, first_s - self._clock.now()), self._fence_late)

    def _fence_late(self) -> None:
        for hold in list(self.holds.values()):
            self.fence(hold)
        self._arm_fence()

    # --- what is remembered
    def _starts_at_end(self, partition: PartitionId) -> bool:
        return self._settings.start_of(partition, late=False) == "latest"

    def _remember(self, hold: Hold) -> None:
        record = hold.remembered(manual=isinstance(self._settings.checkpoint, Manual))
        if hold.effects:
            self._memory.forget(hold.partition)
        elif record is not None:
            self._memory.remember(replace(record, edition=hold.edition + 1), due=hold.is_due(record))

    def may_save(self, hold: Hold) -> bool:
        """Whether what a hold that is over came to may still be committed. It is remembered before: where the store
        loses writes meanwhile, what is restored is no older than that commit. In a store that has lost writes since,
        restoring does it all: a commit under the old epoch might come in front of what is restored, which would take it
        back."""
        self._remember(hold)
        return epoch_parts(hold.epoch)[0] >= self._history

    def recalled(self, partition: PartitionId, epoch: int) -> Checkpoint | None:
        """What this instance remembers of it, to begin with under this epoch where the store knows nothing."""
        return self._memory.recalled(partition, epoch)

    async def restore(self, partition: PartitionId | None = None) -> None:
        """Write what the store may not have, of one partition or of all. It refuses what others have gone beyond."""
        records = deque(self._memory.due(partition))
        while records:
            some = [records.popleft() for _ in range(min(len(records), self._restorer.most))]
            async with self._restorer.request(len(some)):
                await self._parts.store.commit(self._parts.group, some)
            for record in some:
                self._memory.written(record)

    def _restore_soon(self) -> None:
        """In a store that has lost writes, before any other instance may have these partitions."""
        if self._memory.is_losing and (self._restoring is None or self._restoring.done()):
            self._restoring = self._spawn(self._restore_all())

    async def _restore_all(self) -> None:
        attempt = 0
        while self._memory.is_losing:
            try:
                await self.restore()
            except Transient as error:
                attempt += 1
                again_in_s = pause_s(attempt, self._clock.chance(), most_s=RETRY_S)
                self._parts.announce(Trouble, where="store", error=error, attempt=attempt, again_in_s=again_in_s)
                await self._clock.sleep(again_in_s)
        self._leave_soon()

    def last_epoch(self, ended: Lease) -> int:
        """Under which a partition that has ended is sealed for good, so that no late commit moves its record. In a
        store that has lost writes since, its own epoch makes no record any more."""
        return max(ended.epoch, restore_epoch(self._history))

    def has_lost_writes(self) -> bool:
        """Whether the store has, since the group began: a record that is missing may have been there."""
        return self.view is not None and self.view.history > self.view.began

    def count(self) -> int:
        return len(self.holds)

    # --- passing on
    def drained(self, hold: Hold) -> None:
        """The last call returned and its progress is committed: pass the lease on, with all that are ready."""
        self._ready.append(hold)
        if self._passing is None or self._passing.done():
            self._passing = self._spawn(self._pass_on())

    async def _pass_on(self) -> None:
        while self._ready:
            most = self._swaps.most
            holds, self._ready = self._ready[:most], self._ready[most:]
            changes = [change for hold in holds if (change := self._handoff(hold)) is not None]
            sent = [hold for hold in holds if hold.passing]
            patience_ends_s = self._patience_ends_s
            outcomes = await self._send(changes) if changes else []
            for hold, outcome in zip(sent, outcomes, strict=True):
                self._passed(hold, outcome, patience_ends_s)
        self._leave_soon()

    def _handoff(self, hold: Hold) -> Change | None:
        assert self.view is not None
        lease = self.view.leases.get(hold.partition)
        seek = hold.reason == "seek"
        unclear = lease is None or lease.owner != self.me.owner or lease.epoch != hold.epoch
        if hold.over or unclear or (hold.reason == "kept" and not seek):
            self._end(hold, hold.reason)
            return None
        assert lease is not None
        hold.passing = True
        if hold.children is not None:
            return handoff(self.view, lease, None, ended_into(hold.children), ended=True)
        heir = self.me.owner if seek else hold.heir
        why = f"{'handed over' if heir else 'released'}: {hold.why}"
        if seek and hold.seek is not None:
            why = f"seek: to {hold.seek.to}"
        elif heir is None and self._is_done:
            why = released_done(self.me.id)
        return handoff(self.view, lease, heir, why)

    def _passed(self, hold: Hold, outcome: Outcome, patience_ends_s: float) -> None:
        """Passed on, refused, or in doubt: it counts as passed on. Who stopped goes on under a new epoch alone."""
        seek = hold.seek
        if not outcome.ok:
            self._woken.set()  # the heir may have left just now: look again at once
        elif hold.children is not None:
            names = tuple(child.id for child in hold.children)
            self._parts.announce(Ended, partition=hold.partition, children=names, parked=len(hold.notes.parked))
            self.chart.wonder()
            self._woken.set()  # its children, if they are known already, need not wait for the next heartbeat
        if hold.reason != "seek" or seek is None:
            self._end(hold, hold.reason)
            return
        hold.seek = None
        self._end(hold, hold.reason)
        if outcome.ok and outcome.lease is not None and outcome.lease.history == self._history:
            self._begin_soon(outcome.lease, patience_ends_s, seek)
        else:
            seek.settle(StoreUnavailable(f"partition {hold.partition}: the seek did not happen ({outcome.why})."))

    def _begin_soon(self, lease: Lease, deadline_s: float, seek: Seek) -> None:
        """The drained pump is about to end; it must have before its successor starts."""
        pump = self._pumps.get(lease.partition)
        self._asking.add(lease.partition)  # or the next heartbeat would adopt it, at the place where it stood

        async def begin() -> None:
            if pump is not None:
                await asyncio.wait([pump])
            self._asking.discard(lease.partition)
            if not self._begin(lease, deadline_s, seek):
                wish = self.pause_of(lease.partition)
                late = StoreUnavailable(f"partition {lease.partition}: the seek did not happen in time.")
                seek.settle(LeaseLost(self._cannot_seek(lease.partition, wish)) if wish is not None else late)

        self._spawn(begin())

    def seek(self, hold: Hold, seek: Seek) -> None:
        """Drain, take a new epoch, go on elsewhere."""
        if hold.stopping:
            seek.settle(LeaseLost(self._cannot_seek(hold.partition, self.pause_of(hold.partition))))
            return
        hold.seek = seek
        hold.stop("seek")

    def is_in_a_call(self) -> bool:
        """Whether this is called from inside a handler."""
        return asyncio.current_task() in self._pumps.values()

    def is_caught_up(self) -> bool:
        """All that is planned for me is held and at its end, and nobody's fate is open. (What is paused has none.)"""
        if self.decision is None or self.view is None or self._asking or not self._is_informed():
            return False
        mine = [partition for partition, owner in self.decision.plan.owners.items() if owner == self.me.id]
        settled = all(partition in self.holds and self._has_caught_up(self.holds[partition]) for partition in mine)
        if any(map(self._will_end, chain.from_iterable(self.decision.unborn.values()))):
            return False
        return settled and not self.decision.heirs and all(map(self._is_clear, self.view.leases.values()))

    def _is_informed(self) -> bool:
        """No partition has ended whose children the last decision did not know."""
        return self.chart.is_current and self._charted[0].keys() == self.chart.known.keys()

    def _will_end(self, partition: PartitionId) -> bool:
        """Mine, and on its way to its end, after which its children are somebody's."""
        hold = self.holds.get(partition)
        return hold is not None and not hold.halted

    def _has_caught_up(self, hold: Hold) -> bool:
        owes = hold.redrives != hold.notes.redriven and self._parts.dead_letters is not None and not hold.halted
        return hold.caught_up and hold.children is None and not owes

    def _is_clear(self, lease: Lease) -> bool:
        """Somebody alive has it, or nobody is to have it: an earlier run that was killed may have left it behind."""
        if lease.owner == self.me.owner or self.pause_of(lease.partition) is not None:
            return True
        if lease.owner is None:
            return self.decision is not None and self.decision.plan.owners.get(lease.partition) is None
        seen = (self._sightings or {}).get(lease.owner)
        return seen is not None and seen.moved

    # --- the end
    def _has_nothing(self) -> bool:
        if self.holds or self._pumps or self._asking or self._ready or self.view is None or self._memory.is_losing:
            return False
        return not any(lease.owner == self.me.owner for lease in self.view.leases.values())

    def _leave_soon(self) -> None:
        """Who retires and has nothing left need not wait for its next heartbeat."""
        if self.me.retiring and self._has_nothing():
            self._woken.set()

    async def abandon(self, reason: StopReason, within_s: float) -> None:
        """End every hold at once, and give calls that run a little time to return."""
        for hold in list(self.holds.values()):
            self._end(hold, reason)
        if self._pumps:
            await asyncio.wait(list(self._pumps.values()), timeout=within_s)
        for task in [*self._pumps.values(), *self._tasks]:
            task.cancel()
        rest = [*self._pumps.values(), *self._tasks]
        if rest:
            await asyncio.wait(rest, timeout=1.0)

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())  # type: ignore[arg-type]
