"""Moves one partition's events from the source through the handler to the checkpoint, while one hold lasts.

A pump seals, reads ahead, calls the handler in order and one call at a time, and at the end runs the stop hook and
the last commit. It never decides whether it should run: the hold tells, and it looks before every call.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from evenflow.core.checkpointing import Manual, room
from evenflow.core.failure import pause_s
from evenflow.core.lineage import left_at
from evenflow.core.notes import Notes, Unmarked
from evenflow.errors import (
    EvenflowError,
    HubReplaced,
    LeaseLost,
    Misconfigured,
    PartitionHalted,
    PositionGone,
    PositionOutOfRange,
    SourceUnavailable,
    StoreUnavailable,
)
from evenflow.model import BEGINNING, MICROSECONDS, Batch, Checkpoint, Event, PartitionId, Position
from evenflow.ports import Delaying, Operable, Shared, Vanishing
from evenflow.runtime.calls import is_async
from evenflow.runtime.failures import Failures, Killed
from evenflow.runtime.partition import OwnedPartition
from evenflow.runtime.parts import Hook, Parts, call_hook, the_applications_own
from evenflow.runtime.prefetch import Prefetch
from evenflow.runtime.redrive import Redrive
from evenflow.runtime.transaction import judged, learn
from evenflow.signals import (
    EndUnmarked,
    Gone,
    PartitionStarted,
    PartitionStopped,
    PositionLost,
    Repeated,
    Trouble,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.model import Lease, Partition
    from evenflow.ports import Reader, Start
    from evenflow.runtime.calls import Caller
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.hold import Hold, StopReason

T = TypeVar("T")

logger = logging.getLogger("evenflow")

PREFETCH_LEAST_BYTES = 64 * 1024
PREFETCH_MOST_BYTES = 4 * 1024 * 1024
NOTE = "evenflow: "
"""So begin notes of ours on an application's error."""
LOST_REST_S = 1.0
"""How long a handler's own LeaseLost is left to be seen in a heartbeat: if nobody else has the partition, it comes
again.
"""
MARKS_LOOK_S = 1.0
"""At the end of a partition: how often it is looked whether the application has marked all of it."""


class _Interrupted(Exception):
    """The hold stopped while the source was asked."""


class _TooLate(Exception):
    """The lease may have run out before the hook was called."""


class Coordination(Protocol):
    """What a pump tells the coordinator."""

    def lost(self, hold: Hold) -> None: ...
    def fence(self, hold: Hold) -> None: ...
    def drained(self, hold: Hold) -> None: ...
    def recalled(self, partition: PartitionId, epoch: int) -> Checkpoint | None: ...
    async def restore(self, partition: PartitionId) -> None: ...
    def has_lost_writes(self) -> bool: ...
    def last_epoch(self, ended: Lease) -> int: ...
    def ended_parents(self, partition: PartitionId) -> Sequence[Lease]: ...
    def count(self) -> int: ...


class Pump:
    def __init__(
        self,
        parts: Parts,
        hold: Hold,
        caller: Caller,
        committer: Committer,
        coordination: Coordination,
    ) -> None:
        self._parts = parts
        self._hold = hold
        self._caller = caller
        self._committer = committer
        self._coordination = coordination
        self._partition = OwnedPartition(hold, committer, asyncio.get_running_loop(), parts)
        self._failures = Failures(parts, hold, committer, self._trouble)
        self._redrive = Redrive(parts, hold, self._failures, committer, self._call_aside)
        self._caught_up_at: Position | None = None
        self._called_s = parts.clock.now()
        self._has_told_stop = False
        self._waiting = f"partition {hold.partition}"
        self._held = f"partition {hold.partition}, held back"
        self._went_on_s = parts.clock.now()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._went_on()

    async def _run(self) -> None:
        hold, started = self._hold, False
        try:
            if await self._seal() and await self._start_hook():
                started = True
                self._parts.announce(
                    PartitionStarted, partition=hold.partition, epoch=hold.epoch, after=self._hold.position
                )
                self._failures.begin()
                await self._stand_still_if_lost()
                await self._failures.stand_still_if_stopped()
                await self._flow()
        except LeaseLost:
            self._coordination.lost(hold)
        if started:
            await self._stop_hook(hold.reason)
        await self._finish()

    async def _stop_hook(self, reason: StopReason) -> None:
        """Once: a partition that waits at its end has told so."""
        if not self._has_told_stop:
            self._has_told_stop = True
            await self._hook("partition_stop", self._partition, reason)

    async def _finish(self) -> None:
        hold = self._hold
        if not hold.over:
            self._note_unmarked()
            if await self._committer.settle(hold):
                self._coordination.drained(hold)
        elif hold.reason == "fenced" and hold.sealed is not None:
            await self._committer.last_try(hold)
        self._parts.announce(
            PartitionStopped, partition=hold.partition, epoch=hold.epoch, reason=hold.reason, handled=hold.handled
        )

    def _note_unmarked(self) -> None:
        """What the application has handled and not marked comes again: nobody but this owner knows how much it is."""
        hold = self._hold
        if isinstance(self._parts.settings.checkpoint, Manual) and hold.sealed is not None:
            events = hold.done[0] - hold.stands(manual=True)[0]
            if events > 0:
                hold.note(unmarked=Unmarked(hold.epoch, events))

    # --- the start
    async def _seal(self) -> bool:
        """The first act: nothing is handled before the record carries this epoch."""
        hold, attempt = self._hold, 0
        while not hold.stopping:
            try:
                record = await self._sealed()
                hold.begin(record, self._parts.clock.now())
                if hold.jump is not None and not hold.jump.done.done():
                    await self._jump(record, hold.jump.to)
                    hold.jump.settle()
                self._failures.take_up()
                await self._find_end()
                self._parts.committed({hold.partition: hold.position})
                self._went_on()
                return True
            except _Interrupted:
                break
            except (LeaseLost, PositionOutOfRange, Misconfigured):
                raise
            except EvenflowError as error:
                attempt += 1
                await self._trouble("store" if isinstance(error, StoreUnavailable) else "source", error, attempt)
        return False

    async def _sealed(self) -> Checkpoint:
        hold, parts = self._hold, self._parts
        default = self._coordination.recalled(hold.partition, hold.epoch)
        if default is None:
            default = await self._start()
        else:
            async with parts.sealing():
                await self._coordination.restore(hold.partition)
        async with parts.sealing():
            if hold.stopping:
                raise _Interrupted
            return await parts.store.seal(parts.group, hold.partition, hold.epoch, default, unplanned=hold.unplanned)

    async def _start(self) -> Checkpoint:
        """The record to begin with if there is none. Where one has been lost, the end of the log is no start: that
        would pass over events that were never handled. The record says so, if this is the one that is taken."""
        hold = self._hold
        start = self._parts.settings.start_of(hold.partition, late=hold.late)
        is_lost = start == "latest" and self._coordination.has_lost_writes()
        position = await self._start_position("earliest" if is_lost else start)
        notes = Notes(lost=hold.epoch if is_lost else None).as_dict()
        return Checkpoint(partition=hold.partition, epoch=hold.epoch, position=position, ordinal=0, notes=notes)

    async def _start_position(self, start: Start) -> Position:
        """Where to begin without a checkpoint. One that there is not ends the instance: no time will mend it."""
        source: object = self._parts.source
        if isinstance(source, Vanishing) and (parents := self._coordination.ended_parents(self._hold.partition)):
            after = {lease.partition: await self._left_at(lease) for lease in parents}
            with self._parts.waiting_if_refused():
                return await source.child_start(self._hold.partition, after)
        try:
            with self._parts.waiting_if_refused():
                return await self._unless_stopped(self._parts.source.resolve(self._hold.partition, start))
        except (PositionOutOfRange, SourceUnavailable, Misconfigured) as error:
            if await self._has_checkpoint():
                return BEGINNING  # in name only: the checkpoint wins, also over a start that nobody can find
            if isinstance(error, PositionGone) and self._parts.settings.on_gone != "stop":
                return await self._start_elsewhere(start, error)
            raise

    async def _start_elsewhere(self, start: Start, error: PositionGone) -> Position:
        """Retention was faster than the first start: on_gone holds for that too, and it is told."""
        name, parts = self._hold.partition, self._parts
        with parts.waiting_if_refused():
            to = await self._unless_stopped(parts.source.resolve(name, parts.settings.on_gone))
        after = start if isinstance(start, Position) else BEGINNING
        parts.announce(Gone, partition=name, after=after, error=str(error), to=to)
        return to

    async def _stand_still_if_lost(self) -> None:
        """A stop survives its owner: it ends when somebody seeks."""
        hold, stops = self._hold, self._parts.settings.on_lost == "stop"
        if hold.notes.lost is None:
            return
        if stops or hold.notes.lost == hold.epoch:
            self._parts.announce(PositionLost, partition=hold.partition, to=hold.position, halted=stops)
        if stops:
            hold.halted, hold.caught_up = "is halted: the store has lost its checkpoint", True
            await hold.stopped.wait()
        else:
            hold.note(lost=None)
            self._committer.ask(hold)

    async def _left_at(self, parent: Lease) -> Position:
        """Where a parent was checkpointed. Sealed under the epoch that ended it, so that no late commit moves it."""
        parts, name, epoch = self._parts, parent.partition, self._coordination.last_epoch(parent)
        lost = Checkpoint(partition=name, epoch=epoch, position=BEGINNING, ordinal=0)
        default = self._coordination.recalled(name, epoch) or lost
        try:
            async with parts.sealing():
                await self._coordination.restore(name)
                return left_at(parent, await parts.store.seal(parts.group, name, epoch, default))
        except LeaseLost as error:
            raise StoreUnavailable(f"partition {name} has ended, but somebody is changing it: {error}") from error

    async def _has_checkpoint(self) -> bool:
        store = self._parts.store
        if not isinstance(store, Operable):
            return False
        async with self._parts.answered():
            records = await store.checkpoints(self._parts.group)
        return any(record.partition == self._hold.partition for record in records)

    async def _jump(self, record: Checkpoint, to: Position) -> None:
        """A seek: under its new epoch the record may go back, since ordinals still grow."""
        hold, parts = self._hold, self._parts
        # Dead letters stay where they are, and so do keys behind them; whatever else is known is of the place that it
        # left.
        kept = Notes(parked=hold.notes.parked, redriven=hold.notes.redriven)
        there = Checkpoint(
            partition=hold.partition,
            epoch=hold.epoch,
            position=to,
            ordinal=record.ordinal + 1,
            notes=kept.as_dict(),
            effects=record.effects,
        )
        async with parts.answered():
            outcome = (await parts.store.commit(parts.group, [there]))[0]
        if not outcome.ok:
            raise LeaseLost(f"partition {hold.partition} was lost during a seek.")
        hold.begin(there, parts.clock.now())

    async def _find_end(self) -> None:
        """Where the partition ended when it was opened: having handled that is having caught up."""
        with self._parts.waiting_if_refused():
            bounds = await self._unless_stopped(self._parts.source.bounds([self._hold.partition]))
        found = bounds.get(self._hold.partition)
        self._caught_up_at = found.newest if found is not None else None
        self._look_whether_caught_up()

    async def _start_hook(self) -> bool:
        """The application prepares for the partition; nothing is handled before it has."""
        hook, attempt = self._parts.handlers.partition_start, 0
        while hook is not None and not self._hold.stopping:
            try:
                async with self._parts.gate:
                    self._look()  # the seal, or the gate, may have taken until after the deadline
                    await call_hook(self._parts.threads, self._parts.cut_off, self._looking(hook), self._partition)
                self._went_on()
                return True
            except _TooLate:
                self._coordination.fence(self._hold)
                return False
            except Exception as error:
                attempt += 1
                await self._trouble("hook", error, attempt)
        return hook is None

    def _looking(self, hook: Hook) -> Hook:
        """A plain one looks at the clock again on its thread: the process may have stood still on the way there."""
        if is_async(hook):
            return hook

        def look_and_call(*args: Any) -> Any:
            self._look()
            return hook(*args)

        return look_and_call

    def _look(self) -> None:
        if not self._hold.may_begin(self._parts.clock.now()):
            raise _TooLate

    # --- the flow
    async def _flow(self) -> None:
        hold, attempt = self._hold, 0
        while not hold.stopping:
            before = hold.done[0]
            try:
                if (reader := await self._open()) is None:
                    continue
                await self._consume(
                    Prefetch(
                        reader,
                        batch_events=self._parts.settings.batch_events,
                        most_events=self._parts.settings.prefetch_events,
                        most_bytes=self._most_bytes,
                        lost=lambda: self._coordination.lost(hold),
                    )
                )
            except _Interrupted:
                break
            except (LeaseLost, HubReplaced):
                raise
            except Exception as error:
                attempt = 1 if hold.done[0] > before else attempt + 1
                await self._trouble("source", error, attempt)

    async def _open(self) -> Reader | None:
        """A reader of the hub that this run began with; None when its place was not in the log, and it has another.

        Only a look after the opening tells which hub was opened.
        """
        hold = self._hold
        try:
            opening = self._parts.source.open(hold.partition, hold.position, epoch=self._reader_epoch)
            with self._parts.stopping_no_other():
                reader = await self._unless_stopped(opening)
        except PositionOutOfRange as error:
            await self._unless_stopped(self._parts.check_hub())
            await self._go_on_elsewhere(error)
            return None
        try:
            await self._unless_stopped(self._parts.check_hub())
        except BaseException:
            await reader.aclose()
            raise
        return reader

    async def _unless_stopped(self, question: Awaitable[T]) -> T:
        """What the source answers. Who stops does not wait for one that is away: others may reach it."""
        hold, task, given_up = self._hold, asyncio.current_task(), False
        assert task is not None

        def give_up() -> None:
            nonlocal given_up
            if not given_up:  # a stop is repeated with every heartbeat, and a question may need time to end
                given_up = True
                task.cancel()

        hold.on_stop = give_up
        try:
            return await question
        except asyncio.CancelledError:
            if not given_up or task.uncancel():  # somebody else wants to cancel it, too
                raise
            raise _Interrupted from None
        finally:
            hold.on_stop = None

    async def _go_on_elsewhere(self, error: PositionOutOfRange) -> None:
        """The log does not have what comes next, and no time will mend that: stand still, or go where on_gone says."""
        hold, parts, after = self._hold, self._parts, self._hold.position
        policy = parts.settings.on_gone
        if policy == "stop":
            parts.announce(Gone, partition=hold.partition, after=after, error=str(error))
            await self._hook("error", error, self._partition)
            hold.halted, hold.caught_up = f"is halted after {after}: {error}", True
            hold.note(gone=hold.epoch)
            self._committer.ask(hold)
            await hold.stopped.wait()
            return
        to = await parts.source.resolve(hold.partition, policy)
        known = to.sequence is not None and after.sequence is not None
        events = to.sequence - after.sequence if known else None  # type: ignore[operator]
        hold.done = (hold.done[0] + 1, to)
        # Durable before anything else is done: another owner, later, would else find another end to go to.
        await self._committer.mark(hold, hold.done)
        parts.announce(Gone, partition=hold.partition, after=after, error=str(error), to=to, events=events)
        await self._hook("error", error, self._partition)
        await self._find_end()

    @property
    def _reader_epoch(self) -> int:
        """In a group with processors of another make, readers are as theirs: otherwise those could never read again."""
        store = self._parts.store
        return 0 if isinstance(store, Shared) and store.shared else self._hold.epoch

    async def _consume(self, prefetch: Prefetch) -> None:
        hold = self._hold
        hold.on_stop = prefetch.cut
        try:
            while not hold.stopping:
                if self._redrive.is_due():
                    await self._redrive_patiently()
                batch = await self._next(prefetch)
                if batch is None:
                    return
                self._parts.served.set()
                self._went_on()
                if batch.events:
                    await self._handle(batch)
                    self._called_s = self._parts.clock.now()
                else:
                    self._resume_after(batch.resume)
                    await self._stand_at_end(batch)
                    self._failures.caught_up()
                    await self._yield_if_late()
                if batch.ended is not None and not hold.stopping:
                    await self._reach_end(batch.ended)
        finally:
            hold.on_stop = None
            self._parts.waits.end(self._held)
            await prefetch.aclose()

    async def _stand_at_end(self, batch: Batch) -> None:
        """There is nothing more to be had. What was there when it was opened, and is held back, is waited for."""
        hold, source = self._hold, self._parts.source
        if batch.is_held_back:
            self._look_whether_caught_up()
        else:
            hold.caught_up = True
        if hold.caught_up:
            self._parts.waits.end(self._held)
        elif isinstance(source, Delaying):
            on_stop = hold.on_stop
            delay = (await self._unless_stopped(source.held_back([hold.partition]))).get(hold.partition)
            hold.on_stop = on_stop
            why = delay.why if delay is not None else "its events are held back"
            error = SourceUnavailable(f"partition {hold.partition}: {why}.")
            self._parts.waits.begin(self._held, error, self._parts.clock.now())

    async def _reach_end(self, children: tuple[Partition, ...]) -> None:
        """All that was read is handled, and there is no more of it. What is left to be marked is waited for."""
        hold = self._hold
        if self._owes_marks():
            await self._stop_hook("ended")
        while self._owes_marks() and not hold.stopping:
            if not hold.halted:
                events = hold.done[0] - hold.stands(manual=True)[0]
                hold.halted, hold.caught_up = "at its end, which the application has not checkpointed", True
                self._parts.announce(EndUnmarked, partition=hold.partition, events=events)
            await hold.rest(MARKS_LOOK_S)
        if not hold.stopping:
            hold.halted, hold.children = "", children
            hold.stop("ended")

    def _owes_marks(self) -> bool:
        """Who marks by hand loses what is not marked when nobody reads this again. (Where it vanishes, children do.)"""
        manual = isinstance(self._parts.settings.checkpoint, Manual)
        if not manual or isinstance(self._parts.source, Vanishing):
            return False
        return self._hold.stands(manual=True)[0] < self._hold.done[0]

    async def _next(self, prefetch: Prefetch) -> Batch | None:
        """What comes next; meanwhile the application is told when nothing does, if it wants to be."""
        handlers, clock = self._parts.handlers, self._parts.clock
        while handlers.idle is not None:
            try:
                async with asyncio.timeout(max(0.0, self._called_s + handlers.idle_s - clock.now())):
                    return await (prefetch.full() if handlers.gathers else prefetch.next())
            except TimeoutError:
                if handlers.gathers and prefetch.has_events:
                    return await prefetch.joined()
                await self._yield_if_late()
                if not self._hold.stopping:
                    await self._hook("idle", self._partition)
                self._called_s = clock.now()
        return await prefetch.next()

    async def _yield_if_late(self) -> None:
        if not self._hold.may_begin(self._parts.clock.now()):
            self._coordination.fence(self._hold)

    async def _handle(self, batch: Batch) -> None:
        hold, events = self._hold, self._fresh(batch.events)
        first, at = hold.done[0], 0
        while at < len(events):
            if self._redrive.is_due():
                await self._redrive_patiently()
            await self._some(events, at, batch.resume)
            at = hold.done[0] - first
            if not hold.may_begin(self._parts.clock.now()):
                self._coordination.fence(hold)
                break
            if at < len(events):
                await self._parts.clock.sleep(0)
        if at == len(events):
            self._resume_after(batch.resume)
            hold.event_at = batch.events[-1].enqueued_us / MICROSECONDS
        self._look_whether_caught_up()

    async def _some(self, events: Sequence[Event], at: int, resume: Position) -> None:
        """Some more events: through the handler, or past it. Progress tells how far it came."""
        hold, failures = self._hold, self._failures
        count = len(events) - at
        if failures.parked:
            is_parked, count = failures.run_of(events, at)
            if is_parked:
                await failures.park(events[at : at + count])
                return
        if failures.has_killed():
            await failures.poison(events[at], Killed(), reason="killed")
            return
        size = self._size(count)
        part = events if size == len(events) else events[at : at + size]
        before = hold.done[0]
        after = resume if at + size == len(events) else None
        if failures.is_careful:
            async with failures.alone():
                error = await self._call(part, after)
        else:
            turn = await self._parts.turns.begin()
            try:
                error = await self._call(part, after)
            finally:
                self._parts.turns.end(turn)
        passed = hold.done[0] - before
        failures.passed(passed)
        if passed:
            self._went_on()
        self._committer.look(hold)
        if error is None or not hold.may_begin(self._parts.clock.now()):
            return
        if passed == len(part):
            await self._trouble("handler", error, 1, 0.0)  # after its transaction had committed: they are handled
        elif isinstance(error, LeaseLost):
            # Whoever fences its effects by the epoch knows it before we do. The event has no part in it.
            await self._trouble("handler", error, 1, LOST_REST_S, event=part[passed])
            raise error
        elif isinstance(error, PartitionHalted):
            await failures.stop(part[passed], error)
        elif self._caller.whole and size > 1:
            await failures.batch_failed(part[passed], error, size - passed)
        else:
            await failures.failed(part[passed], error)

    def _size(self, count: int) -> int:
        """How many events the next call takes."""
        if self._caller.whole:
            return self._failures.size(count)
        most = room(self._parts.settings.checkpoint, self._hold.done[0] - self._hold.committed)
        return min(self._failures.size(count), count if most is None else most)

    async def _call(self, part: Sequence[Event], resume: Position | None) -> Exception | None:
        """One call of the handler, or one for each event; what it raised, if it did."""
        hold = self._hold
        try:
            async with self._parts.gate:
                began_s = self._parts.clock.now()
                try:
                    with the_applications_own(self._parts.cut_off):
                        await self._caller(hold, self._partition, part, resume if self._caller.whole else None)
                finally:
                    hold.busy_s += self._parts.clock.now() - began_s
        except Exception as error:
            return await judged(self._parts, hold, error)  # by what its transactions did, which may be in doubt
        finally:
            hold.current = hold.current_resume = hold.began_s = None
        return None

    async def _call_aside(self, stand_in: Hold, event: Event) -> Exception | None:
        """A call that is not part of the flow, such as a redriven dead letter. Progress shows whether there was one."""
        self._hold.aside, stand_in.task = stand_in, self._hold.task
        try:
            async with self._parts.turns.together(), self._parts.gate:
                # Whoever had to wait for its turn must not go by what held before.
                stand_in.deadline_s, stand_in.stopping = self._hold.deadline_s, self._hold.stopping
                with the_applications_own(self._parts.cut_off):
                    await self._caller(stand_in, self._partition, [event], None)
        except Exception as error:
            await learn(self._parts, self._hold)
            await self._trouble("handler", error, 1, 0.0, event=event)
            return error
        finally:
            self._hold.aside = None
        return None

    async def _redrive_patiently(self) -> None:
        """Dead letters that cannot be read or written now are redriven when they can."""
        attempt = 0
        while self._hold.may_begin(self._parts.clock.now()) and self._redrive.is_due():
            try:
                await self._redrive.run()
            except Exception as error:
                attempt += 1
                await self._trouble("dead letters", error, attempt)

    def _fresh(self, events: Sequence[Event]) -> Sequence[Event]:
        """Without what the source delivers again although it was handled."""
        last = self._hold.position.sequence
        first = events[0].sequence
        if last is None or first is None or first > last:
            return events
        fresh = [event for event in events if event.sequence is None or event.sequence > last]
        self._parts.announce(Repeated, partition=self._hold.partition, events=len(events) - len(fresh))
        return fresh

    def _resume_after(self, position: Position) -> None:
        """All of a batch is handled. What a source delivers again does not take progress back."""
        here = self._hold.position.sequence
        if here is None or position.sequence is None or position.sequence >= here:
            self._hold.done = (self._hold.done[0], position)

    # --- small things
    def _most_bytes(self) -> int:
        share = self._parts.settings.prefetch_bytes // max(1, self._coordination.count())
        return max(PREFETCH_LEAST_BYTES, min(PREFETCH_MOST_BYTES, share))

    def _look_whether_caught_up(self) -> None:
        end, position = self._caught_up_at, self._hold.position
        if end is not None and end.sequence is not None and position.sequence is not None:
            self._hold.caught_up = position.sequence >= end.sequence

    async def _trouble(
        self,
        where: str,
        error: Exception,
        attempt: int,
        again_in_s: float | None = None,
        *,
        event: Event | None = None,
        events: int = 1,
    ) -> None:
        """Say it, tell the application, and wait a little, unless the hold stops before."""
        if again_in_s is None:
            again_in_s = pause_s(attempt, self._parts.clock.chance())
        partition, is_new = self._hold.partition, True
        whose = self._parts.whose(event) if event is not None and events == 1 else ""
        if event is not None and whose:
            _note(error, f"event {event.position} of partition {partition} ({whose})")
        if where != "handler":  # of failures of its own there is an end: see `Retry`
            # The source may have tried for long before it gave up; a hook takes the time that it takes.
            tried_s = self._parts.clock.now() if where == "hook" else self._went_on_s
            is_new = self._parts.waits.begin(self._waiting, error, tried_s)
        self._parts.announce(
            Trouble,
            where=where,
            error=error,
            partition=partition,
            after=self._hold.position if self._hold.sealed is not None else None,
            position=event.position if event is not None else None,
            whose=whose,
            events=events,
            attempt=attempt,
            again_in_s=again_in_s or None,
        )
        if is_new or where == "hook" or not self._parts.handlers.errors_once:
            await self._hook("error", error, self._partition)
        if again_in_s > 0:
            await self._hold.rest(again_in_s)

    def _went_on(self) -> None:
        self._went_on_s = self._parts.clock.now()
        self._parts.waits.end(self._waiting)

    async def _hook(self, name: str, *args: object) -> None:
        hook: Callable[..., object] | None = getattr(self._parts.handlers, name)
        if hook is None:
            return
        try:
            async with self._parts.gate:
                await call_hook(self._parts.threads, self._parts.cut_off, hook, *args)  # type: ignore[arg-type]
        except Exception as error:
            self._parts.announce(Trouble, where="hook", error=error, partition=self._hold.partition)


def _note(error: BaseException, told: str) -> None:
    """For whoever shows the error, with its traceback. One that is raised again and again keeps the last note only."""
    others = [note for note in getattr(error, "__notes__", ()) if not note.startswith(NOTE)]
    error.__notes__ = [*others, f"{NOTE}{told}"]
