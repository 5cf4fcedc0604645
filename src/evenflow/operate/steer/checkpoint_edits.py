"""Changes the checkpoints of partitions from outside, with the same operations that instances use.

An unowned partition gets a new epoch without an owner, is sealed under it, and its checkpoint is rewritten under it.
Compare-and-set and the seal detect a concurrent change by another instance; then the editor starts over with a new
snapshot. In a running group the partitions are paused meanwhile: their owners drain, commit and release them. For an
owner that was killed, the editor waits like any instance: its heartbeat counter must not change for its whole
time-to-live, on our own clock.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evenflow.core.liveness import Sighting, silence_s, watch
from evenflow.core.view import View, merge
from evenflow.errors import EvenflowError, LeaseLost, SourceUnavailable, Transient
from evenflow.model import BEGINNING, EVERYTHING, Change, Checkpoint, Lease, Steering
from evenflow.operate.inspect.survey import operable
from evenflow.operate.steer.operator import called, ledger_of, steerable
from evenflow.text import with_article

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from evenflow.model import Group, GroupState, Owner, PartitionId, Position
    from evenflow.operate.steer.operator import Operator
    from evenflow.ports import Clock, Store

POLL_S = 0.25
GAP_S = 2.0
"""After a longer gap between two snapshots, silence is measured from scratch."""
LONGEST_TTL_S = 60.0
"""After the store lost writes, an instance may act for this long on a lease that the store has forgotten."""
DRAIN_S = 30.0
"""The time that owners get to release partitions, on top of a time-to-live."""
RESUME_TRIES = 20


class CheckpointEdit(Struct, frozen=True):
    """The change of one partition's checkpoint."""

    reason: str
    edit: Callable[[Checkpoint], Awaitable[Checkpoint]]
    """From the current checkpoint to the wanted one, called while no instance owns the partition. Epoch and ordinal of
    the result are ignored."""
    first: Position | None = None
    """The position of a checkpoint that does not exist yet; None: then there is nothing to change."""


class CheckpointChange(Struct, frozen=True):
    before: Checkpoint | None
    after: Checkpoint


class LeaseSnapshot(Struct, frozen=True):
    """The leases of a group at one moment, and how long each member had been silent by then."""

    view: View
    sightings: Mapping[Owner, Sighting]
    sent_s: float
    history_since_s: float

    def lease(self, partition: PartitionId) -> Lease:
        return self.view.leases.get(partition) or Lease(partition=partition, late=bool(self.view.leases))

    def wait_s(self, lease: Lease) -> float:
        """How long until the partition may be changed if its owner does not release it before; 0 or less: now."""
        history = self.view.history
        if (lease.revision and lease.history != history) or (not lease.revision and history):
            return LONGEST_TTL_S - (self.sent_s - self.history_since_s)
        if lease.owner is None:
            return 0.0
        return lease.ttl_s - silence_s(self.sightings.get(lease.owner), self.sent_s)

    def change(self, lease: Lease, reason: str) -> Change:
        """A lease without an owner under a new epoch; a silent owner loses it only if it stays silent."""
        owner = lease.owner if lease.history == self.view.history else None
        return Change(
            partition=lease.partition,
            revision=lease.revision,
            history=self.view.history,
            owner=None,
            epoch=self.view.epoch_after(lease),
            reason=reason,
            still=(owner, self.sightings[owner].mark) if owner is not None else None,
            late=lease.late,
            ended=lease.ended,
        )


class LeaseWatcher:
    """Takes snapshots of a group, and measures silence between them."""

    def __init__(self, store: Store, group: Group, clock: Clock) -> None:
        self._store, self._group, self._clock = store, group, clock
        self._last: LeaseSnapshot | None = None

    async def snapshot(self) -> LeaseSnapshot:
        sent_s = self._clock.now()
        ledger = await ledger_of(self._store, self._group)
        now_s, view, last = self._clock.now(), merge(None, ledger), self._last
        goes_on = last is not None and now_s - last.sent_s <= GAP_S and last.view.history == view.history
        before, since_s = (last.sightings, last.history_since_s) if goes_on and last is not None else (None, now_s)
        self._last = LeaseSnapshot(view, watch(before, ledger, view, now_s), sent_s, since_s)
        return self._last


class CheckpointEditor:
    """Changes the checkpoints of some partitions; none is changed before all are free."""

    def __init__(
        self, store: Store, group: Group, who: Operator, clock: Clock, *, kind: str, report: Callable[[str], None]
    ) -> None:
        self._store, self._group, self._who, self._clock = store, group, who, clock
        self._kind, self._report = kind, report
        self._leases = LeaseWatcher(store, group, clock)
        self._why = f"for {with_article(kind)}" + (f": {who.why}" if who.why else "")
        self._token = token_hex(8)
        self._paused: set[PartitionId] = set()
        self._reported = ""
        self.done: dict[PartitionId, CheckpointChange | None] = {}
        """The finished partitions; None where there was nothing to change."""
        self._tried: dict[PartitionId, CheckpointChange] = {}
        """The last commit that was sent for each partition, perhaps without an answer."""

    async def apply(self, edits: Mapping[PartitionId, CheckpointEdit]) -> None:
        """`Transient` when owners do not release in time: nothing stays paused, and the error says what was changed."""
        try:
            await self._apply(edits)
        finally:
            await self._resume()

    async def _apply(self, edits: Mapping[PartitionId, CheckpointEdit]) -> None:
        began_s, longest_s = self._clock.now(), 0.0
        while todo := [partition for partition in edits if partition not in self.done]:
            problem: EvenflowError | None = None
            held: list[Lease] = []
            try:
                snapshot = await self._leases.snapshot()
                await self._pause(snapshot, todo)
                held = [lease for lease in map(snapshot.lease, todo) if self._is_taken(snapshot, lease)]
                for partition in todo if not held else ():
                    await self._edit(snapshot, partition, edits[partition])
                longest_s = max(longest_s, *(_limit_s(snapshot, lease) for lease in held), 0.0)
            except (Transient, LeaseLost) as error:
                problem = error
            if len(self.done) == len(edits):
                return
            if self._clock.now() - began_s > longest_s + DRAIN_S:
                raise Transient(self._too_late(held, problem, todo, self._clock.now() - began_s)) from problem
            self._report_once(_waiting(held, problem))
            await self._clock.sleep(POLL_S)

    def _is_taken(self, snapshot: LeaseSnapshot, lease: Lease) -> bool:
        """It has a live owner, or may get one at any moment because it is not known to be paused."""
        return snapshot.wait_s(lease) > 0 or self._may_be_claimed(snapshot, lease.partition)

    def _may_be_claimed(self, snapshot: LeaseSnapshot, partition: PartitionId) -> bool:
        return bool(snapshot.view.members) and snapshot.view.state.pause_of(partition) is None

    async def _pause(self, snapshot: LeaseSnapshot, todo: list[PartitionId]) -> None:
        """Pause these partitions, in a running group only. Skip those that are already paused: they must stay so."""
        open_ones = [partition for partition in todo if self._may_be_claimed(snapshot, partition)]
        if not open_ones:
            return
        self._paused.update(open_ones)
        await self._step("pause", open_ones, Steering(pause=tuple(open_ones), visit=self._token))

    async def _edit(self, snapshot: LeaseSnapshot, partition: PartitionId, edit: CheckpointEdit) -> None:
        """Leaves it undone when another instance was faster: the next round tries again.

        The edit applies to what the seal returns: until the seal, the last owner may still commit.
        """
        tried = self._tried.get(partition)
        is_new = tried.before is None if tried is not None else await self._has_no_record(partition)
        if is_new and edit.first is None:
            self.done[partition] = None
            return
        change = snapshot.change(snapshot.lease(partition), f"{self._kind}: {edit.reason}")
        (swapped,) = await self._store.swap(self._group, [change])
        if not swapped.ok:
            return
        default = Checkpoint(partition=partition, epoch=change.epoch, position=edit.first or BEGINNING, ordinal=0)
        sealed = await self._store.seal(self._group, partition, change.epoch, default)
        if tried is not None and _is_there(sealed, tried.after):
            self.done[partition] = tried
            return
        wanted = await edit.edit(sealed)
        after = replace(wanted, ordinal=sealed.ordinal + (wanted.position != sealed.position))
        self._tried[partition] = CheckpointChange(None if is_new else sealed, after)
        (committed,) = await self._store.commit(self._group, [after])
        if committed.ok:
            self.done[partition] = self._tried[partition]

    async def _has_no_record(self, partition: PartitionId) -> bool:
        records = await operable(self._store).checkpoints(self._group)
        return all(record.partition != partition for record in records)

    async def _resume(self) -> None:
        """Resume exactly what was paused for this, also after an interruption."""
        for attempt in range(RESUME_TRIES):
            if not self._paused:
                return
            try:
                await self._resume_now()
                return
            except Transient as error:
                self._report_once(f"resuming failed, retrying: {error}")
                await self._clock.sleep(POLL_S * (attempt + 1))
        stay = "stays" if len(self._paused) == 1 else "stay"
        self._report(f"{called(self._paused)} {stay} paused, because the store does not answer: resume later")

    async def _resume_now(self) -> None:
        """Only pauses that this editor made: an operator may have paused the partition meanwhile."""
        pauses = (await ledger_of(self._store, self._group)).state.pauses
        mine = sorted(name for name in self._paused if name in pauses and pauses[name].visit == self._token)
        if mine:
            pauses = (await self._step("resume", mine, Steering(resume=tuple(mine), visit=self._token))).pauses
        kept = sorted(self._paused.intersection(pauses))
        gone_on = [name for name in mine if name not in pauses]
        self._paused.clear()
        if kept:
            by = pauses[kept[0]].by or "another operator"
            stay = "was paused by" if len(kept) == 1 else "were paused by"
            self._report(f"{called(kept)} {stay} {by} meanwhile: not resumed")
        if EVERYTHING in pauses and gone_on:
            self._report(f"the whole group was paused meanwhile: {called(gone_on)} will continue when it is resumed")

    async def _step(self, verb: str, partitions: list[PartitionId], steering: Steering) -> GroupState:
        """Recorded as a step of the operation. An operator who resumes does not need a report of pauses."""
        action = self._who.did(f"{verb} for {self._kind}", called(partitions), self._why)
        state = await steerable(self._store).steer(self._group, steering, action)
        if self._kind != "resume":
            self._report(f"{verb}d {called(partitions)} for the {self._kind}")
        return state

    def _report_once(self, line: str) -> None:
        if line != self._reported:
            self._reported = line
            self._report(line)

    def _too_late(
        self, held: list[Lease], problem: EvenflowError | None, todo: list[PartitionId], waited_s: float
    ) -> str:
        why = _waiting(held, problem)
        moved = f" Done so far: {called(self.done)}." if self.done else " Nothing was changed."
        return f"Gave up on {called(todo)} after {waited_s:.0f} s: {why}.{moved} Try again."


def _is_there(record: Checkpoint, after: Checkpoint) -> bool:
    """The commit took effect, though its answer was lost: repeating it would apply a relative shift twice."""
    return (record.position, record.ordinal, record.notes) == (after.position, after.ordinal, after.notes)


def _limit_s(snapshot: LeaseSnapshot, lease: Lease) -> float:
    return max(lease.ttl_s, snapshot.wait_s(lease))


def _waiting(held: list[Lease], problem: EvenflowError | None) -> str:
    if problem is not None:
        who = "source" if isinstance(problem, SourceUnavailable) else "store"
        return f"the {who} does not answer ({problem})" if isinstance(problem, Transient) else str(problem)
    by: dict[str, list[PartitionId]] = {}
    for lease in held:
        by.setdefault(lease.owner.id if lease.owner is not None else "", []).append(lease.partition)
    waits = [
        f"waiting for {owner} to release {called(partitions)}"
        if owner
        else f"waiting until no earlier owner of {called(partitions)} can still be active"
        for owner, partitions in by.items()
    ]
    return "; ".join(waits) or "another instance changed the lease first; retrying"
