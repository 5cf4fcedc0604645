"""A visit: how the progress of partitions is changed from outside, with nothing that an instance does not do as well.

A partition that nobody owns is given a new epoch without an owner, sealed under it, and its record rewritten under it.
Whoever is faster is found out by compare-and-set, or by the seal, and then one looks again. In a group that runs, the
partitions are paused for as long as it takes: their owners drain, commit and let go of them. An owner that was killed
is waited for as anybody would: its mark has to stand still for its whole time-to-live, on our own clock.
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

LOOK_S = 0.25
GAP_S = 2.0
"""Looks that are further apart are interrupted: then all watching starts anew."""
LONGEST_TTL_S = 60.0
"""In a store that lost writes, somebody may act for so long on a lease that the store does not know any more."""
DRAIN_S = 30.0
"""Beside a time-to-live, so long may owners take to let go."""
RESUME_TRIES = 20


class CheckpointEdit(Struct, frozen=True):
    """What to do in one partition."""

    reason: str
    edit: Callable[[Checkpoint], Awaitable[Checkpoint]]
    """From the record as it is to the one that shall be, while nobody moves it. Epoch and ordinal are not its
    business."""
    first: Position | None = None
    """Where a record begins that is not there yet; None: then there is nothing to do."""


class CheckpointChange(Struct, frozen=True):
    before: Checkpoint | None
    after: Checkpoint


class LeaseSnapshot(Struct, frozen=True):
    """The group at one moment, and how long whose mark has stood still by then."""

    view: View
    sightings: Mapping[Owner, Sighting]
    sent_s: float
    history_since_s: float

    def lease(self, partition: PartitionId) -> Lease:
        return self.view.leases.get(partition) or Lease(partition=partition, late=bool(self.view.leases))

    def wait_s(self, lease: Lease) -> float:
        """How long until it may be visited, should nobody let go of it before; 0 or less: now."""
        history = self.view.history
        if (lease.revision and lease.history != history) or (not lease.revision and history):
            return LONGEST_TTL_S - (self.sent_s - self.history_since_s)
        if lease.owner is None:
            return 0.0
        return lease.ttl_s - silence_s(self.sightings.get(lease.owner), self.sent_s)

    def change(self, lease: Lease, reason: str) -> Change:
        """Nobody's, under a new epoch; of a silent owner only if it stays so."""
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
    """Looks at a group again and again."""

    def __init__(self, store: Store, group: Group, clock: Clock) -> None:
        self._store, self._group, self._clock = store, group, clock
        self._last: LeaseSnapshot | None = None

    async def look(self) -> LeaseSnapshot:
        sent_s = self._clock.now()
        ledger = await ledger_of(self._store, self._group)
        now_s, view, last = self._clock.now(), merge(None, ledger), self._last
        goes_on = last is not None and now_s - last.sent_s <= GAP_S and last.view.history == view.history
        before, since_s = (last.sightings, last.history_since_s) if goes_on and last is not None else (None, now_s)
        self._last = LeaseSnapshot(view, watch(before, ledger, view, now_s), sent_s, since_s)
        return self._last


class CheckpointEditor:
    """One visit of some partitions: none of them is changed before all are free."""

    def __init__(
        self, store: Store, group: Group, who: Operator, clock: Clock, *, kind: str, told: Callable[[str], None]
    ) -> None:
        self._store, self._group, self._who, self._clock = store, group, who, clock
        self._kind, self._told = kind, told
        self._lookout = LeaseWatcher(store, group, clock)
        self._why = f"for {with_article(kind)}" + (f": {who.why}" if who.why else "")
        self._token = token_hex(8)
        self._paused: set[PartitionId] = set()
        self._said = ""
        self.done: dict[PartitionId, CheckpointChange | None] = {}
        """Each that is done; None where there was nothing to change."""
        self._tried: dict[PartitionId, CheckpointChange] = {}
        """What was last sent to be committed; perhaps without an answer."""

    async def make(self, errands: Mapping[PartitionId, CheckpointEdit]) -> None:
        """`Transient` when owners do not let go in time: nothing stays paused, and the message says what was done."""
        try:
            await self._make(errands)
        finally:
            await self._resume()

    async def _make(self, errands: Mapping[PartitionId, CheckpointEdit]) -> None:
        began_s, longest_s = self._clock.now(), 0.0
        while todo := [partition for partition in errands if partition not in self.done]:
            problem: EvenflowError | None = None
            held: list[Lease] = []
            try:
                look = await self._lookout.look()
                await self._pause(look, todo)
                held = [lease for lease in map(look.lease, todo) if self._is_taken(look, lease)]
                for partition in todo if not held else ():
                    await self._visit(look, partition, errands[partition])
                longest_s = max(longest_s, *(_limit_s(look, lease) for lease in held), 0.0)
            except (Transient, LeaseLost) as error:
                problem = error
            if len(self.done) == len(errands):
                return
            if self._clock.now() - began_s > longest_s + DRAIN_S:
                raise Transient(self._too_late(held, problem, todo, self._clock.now() - began_s)) from problem
            self._say(_waiting(held, problem))
            await self._clock.sleep(LOOK_S)

    def _is_taken(self, look: LeaseSnapshot, lease: Lease) -> bool:
        """Somebody has it, or may claim it at any moment because it is not known to be paused."""
        return look.wait_s(lease) > 0 or self._may_be_claimed(look, lease.partition)

    def _may_be_claimed(self, look: LeaseSnapshot, partition: PartitionId) -> bool:
        return bool(look.view.members) and look.view.state.pause_of(partition) is None

    async def _pause(self, look: LeaseSnapshot, todo: list[PartitionId]) -> None:
        """Just those, and only in a group that runs. What somebody else has paused is not ours to resume."""
        open_ones = [partition for partition in todo if self._may_be_claimed(look, partition)]
        if not open_ones:
            return
        self._paused.update(open_ones)
        await self._step("pause", open_ones, Steering(pause=tuple(open_ones), visit=self._token))

    async def _visit(self, look: LeaseSnapshot, partition: PartitionId, errand: CheckpointEdit) -> None:
        """Not done when somebody was faster: then one looks again.

        What the seal returns is what is edited: until then the last owner may still commit.
        """
        tried = self._tried.get(partition)
        is_new = tried.before is None if tried is not None else await self._has_no_record(partition)
        if is_new and errand.first is None:
            self.done[partition] = None
            return
        change = look.change(look.lease(partition), f"{self._kind}: {errand.reason}")
        (swapped,) = await self._store.swap(self._group, [change])
        if not swapped.ok:
            return
        default = Checkpoint(partition=partition, epoch=change.epoch, position=errand.first or BEGINNING, ordinal=0)
        sealed = await self._store.seal(self._group, partition, change.epoch, default)
        if tried is not None and _is_there(sealed, tried.after):
            self.done[partition] = tried
            return
        wished = await errand.edit(sealed)
        after = replace(wished, ordinal=sealed.ordinal + (wished.position != sealed.position))
        self._tried[partition] = CheckpointChange(None if is_new else sealed, after)
        (committed,) = await self._store.commit(self._group, [after])
        if committed.ok:
            self.done[partition] = self._tried[partition]

    async def _has_no_record(self, partition: PartitionId) -> bool:
        records = await operable(self._store).checkpoints(self._group)
        return all(record.partition != partition for record in records)

    async def _resume(self) -> None:
        """Exactly what was paused for this, also when it was interrupted."""
        for attempt in range(RESUME_TRIES):
            if not self._paused:
                return
            try:
                await self._resume_now()
                return
            except Transient as error:
                self._say(f"to resume is tried again: {error}")
                await self._clock.sleep(LOOK_S * (attempt + 1))
        stay = "stays" if len(self._paused) == 1 else "stay"
        self._told(f"{called(self._paused)} {stay} paused, since the store does not answer: resume later")

    async def _resume_now(self) -> None:
        """What still carries this visit's own wish: whatever a person has paused meanwhile is not ours to resume."""
        pauses = (await ledger_of(self._store, self._group)).state.pauses
        mine = sorted(name for name in self._paused if name in pauses and pauses[name].visit == self._token)
        if mine:
            pauses = (await self._step("resume", mine, Steering(resume=tuple(mine), visit=self._token))).pauses
        kept = sorted(self._paused.intersection(pauses))
        gone_on = [name for name in mine if name not in pauses]
        self._paused.clear()
        if kept:
            by = pauses[kept[0]].by or "somebody"
            self._told(f"{called(kept)} {'was' if len(kept) == 1 else 'were'} paused meanwhile by {by}: left so")
        if EVERYTHING in pauses and gone_on:
            self._told(f"the whole group was paused meanwhile: {called(gone_on)} will go on when that is resumed")

    async def _step(self, verb: str, partitions: list[PartitionId], steering: Steering) -> GroupState:
        """Nobody asked for this by itself, so it is recorded as a step; and who resumes is not told of pauses."""
        action = self._who.did(f"{verb} for {self._kind}", called(partitions), self._why)
        state = await steerable(self._store).steer(self._group, steering, action)
        if self._kind != "resume":
            self._told(f"{verb}d {called(partitions)} for the {self._kind}")
        return state

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._told(line)

    def _too_late(
        self, held: list[Lease], problem: EvenflowError | None, todo: list[PartitionId], waited_s: float
    ) -> str:
        why = _waiting(held, problem)
        moved = f" Done so far: {called(self.done)}." if self.done else " Nothing was changed."
        return f"Gave up on {called(todo)} after {waited_s:.0f} s: {why}.{moved} Try it again."


def _is_there(record: Checkpoint, after: Checkpoint) -> bool:
    """The commit took effect, though nobody answered: done again, a step from where it stands would be two."""
    return (record.position, record.ordinal, record.notes) == (after.position, after.ordinal, after.notes)


def _limit_s(look: LeaseSnapshot, lease: Lease) -> float:
    return max(lease.ttl_s, look.wait_s(lease))


def _waiting(held: list[Lease], problem: EvenflowError | None) -> str:
    if problem is not None:
        who = "source" if isinstance(problem, SourceUnavailable) else "store"
        return f"the {who} does not answer ({problem})" if isinstance(problem, Transient) else str(problem)
    by: dict[str, list[PartitionId]] = {}
    for lease in held:
        by.setdefault(lease.owner.id if lease.owner is not None else "", []).append(lease.partition)
    told = [
        f"waiting for {owner} to let go of {called(partitions)}"
        if owner
        else f"waiting until nobody can have {called(partitions)} any more"
        for owner, partitions in by.items()
    ]
    return "; ".join(told) or "somebody was faster; looking again"
