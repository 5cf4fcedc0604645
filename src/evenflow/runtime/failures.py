"""What one hold does about events that fail: try again, find the bad one, and go by the poison policy.

`core.failure` decides; here is the waiting, the filing and the telling. Nothing here runs for events that pass, but
for a look at a few numbers between calls.
"""

from __future__ import annotations

import traceback
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from evenflow.core.failure import (
    CAREFUL_EVENTS,
    DEATHS_MOST,
    ENDS_MOST,
    FRUITLESS_MOST,
    ends_after,
    part_of,
    suspects_after,
)
from evenflow.core.notes import PARKED_CHARS_MOST, PARKED_MOST, SUSPECTS_MOST, Failing, Suspect, in_words, shortened
from evenflow.core.notes import Stopped as StoppedNote
from evenflow.core.notes import Tripped as TrippedNote
from evenflow.errors import EvenflowError
from evenflow.model import DeadLetter, Event
from evenflow.signals import Careful, DeadLettered, Recovered, Skipped, Stopped, Tripped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import DeadLetterRecord, PartitionId
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.hold import Hold
    from evenflow.runtime.parts import Parts

TEXT_CHARS = 16_000
"""Of an error, and of its traceback, in a dead letter."""


class Killed(EvenflowError):
    """The process that handled this event ended, or fell silent, before the handler returned."""


class TellTrouble(Protocol):
    async def __call__(
        self,
        where: str,
        error: Exception,
        attempt: int,
        again_in_s: float | None = None,
        *,
        event: Event | None = None,
        events: int = 1,
    ) -> None:
        """Say it, call on_error, and wait so long, or as long as is usual after so many failures."""
        ...


class Failures:
    def __init__(self, parts: Parts, hold: Hold, committer: Committer, trouble: TellTrouble) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._hold = hold
        self._committer = committer
        self._trouble = trouble
        self._suspects = 0
        """So many of the next events are known to hold a bad one."""
        self._broken_batches = 0
        self._poisoned: list[int] = []
        """The ordinals of the last poison events."""
        self._careful_left = 0
        self.parked: dict[str, int] = {}
        """Keys whose events go into the dead letters, after an earlier one of theirs, and where that one is."""

    def take_up(self) -> None:
        """The record is sealed: here is what its last owner left."""
        hold = self._hold
        self.parked = hold.notes.parked if self._settings.dead_letter_order == "key" else {}
        fruitless = hold.sealed.fruitless if hold.sealed is not None else 0
        if hold.notes.trying is not None:
            self._count_death(hold.notes.trying)
        self._forget_suspects()
        ended = self._count_ends(fruitless)
        if fruitless >= FRUITLESS_MOST or ended >= ENDS_MOST or hold.notes.suspects:
            self._careful_left = CAREFUL_EVENTS

    def begin(self) -> None:
        """Before the first event."""
        hold = self._hold
        if self._careful_left and hold.sealed is not None:
            fruitless, ends = hold.sealed.fruitless, hold.notes.ends
            ended = ends.owners if ends is not None and fruitless < FRUITLESS_MOST else 0
            self._parts.announce(Careful, partition=hold.partition, without_progress=fruitless, ended=ended)

    async def stand_still_if_stopped(self) -> None:
        """A stop survives its owner: it ends when somebody resumes the partition, which takes it from us."""
        stopped = self._hold.notes.stopped
        if stopped is not None:
            await self._stand_still(stopped)

    # --- which events come next
    def size(self, count: int) -> int:
        """How many of the next `count` events one call may take."""
        return 1 if self._careful_left else part_of(self._suspects, count)

    @property
    def is_careful(self) -> bool:
        return self._careful_left > 0

    def has_killed(self) -> bool:
        """Whether the next event is one that was handled alone when owner after owner ended."""
        return self._hold.notes.suspects != () and self._deaths_at(self._hold.done[0]) >= DEATHS_MOST

    def run_of(self, events: Sequence[Event], at: int) -> tuple[bool, int]:
        """The longest run of events from here that are all parked (True), or all not."""
        is_parked = self._is_parked(events[at])
        end = at + 1
        while end < len(events) and self._is_parked(events[end]) == is_parked:
            end += 1
        return is_parked, end - at

    def _is_parked(self, event: Event) -> bool:
        since = self.parked.get(event.key) if event.key is not None else None
        return since is not None and (event.sequence is None or event.sequence > since)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Around one event, while owners die here: the record says that it is being tried, before and no longer.

        No other call runs beside it in the whole instance, so that a process which ends leaves exactly one behind.
        """
        hold = self._hold
        async with self._parts.turns.alone():
            hold.note(trying=hold.done[0])
            await self._committer.keep(hold)
            try:
                yield
            finally:
                hold.note(trying=None)
            await self._committer.keep(hold)

    # --- what became of them
    def passed(self, count: int) -> None:
        """So many events more are handled."""
        if count == 0:
            return
        self._suspects = suspects_after(self._suspects, count, failed=False)
        if self._careful_left:
            self._careful_left = max(0, self._careful_left - count)
            if not self._careful_left:
                self._forget_ends()
        self._broken_batches = 0
        notes = self._hold.notes
        self._forget_suspects()
        if notes.failing is not None:
            self._hold.note(failing=None)
        if notes.tripped is not None:
            self._hold.note(tripped=None)
            self._hold.halted = ""
            self._poisoned = []
            self._parts.announce(Recovered, partition=self._hold.partition)

    def caught_up(self) -> None:
        """There is nothing to be careful about."""
        self._careful_left = 0
        self._forget_ends()

    async def batch_failed(self, first: Event, error: Exception, size: int) -> None:
        """A call with several events failed: look for the bad one among them."""
        self._suspects = suspects_after(self._suspects, size, failed=True)
        self._broken_batches += 1
        again_in_s = self._settings.retry.pause_s(self._broken_batches, self._parts.clock.chance())
        await self._trouble("handler", error, self._broken_batches, again_in_s, event=first, events=size)

    async def failed(self, event: Event, error: Exception) -> None:
        """A call with this event alone failed."""
        hold, retry = self._hold, self._settings.retry
        attempts = 1 + self._attempts_before()
        hold.note(failing=Failing(hold.done[0], attempts, shortened(error)))
        if hold.notes.tripped is None and retry.tries_again(error, attempts):
            if attempts > 1:
                self._committer.ask(hold)
            again_in_s = retry.pause_s(attempts, self._parts.clock.chance())
            await self._trouble("handler", error, attempts, again_in_s, event=event)
            return
        await self._trouble("handler", error, attempts, 0.0, event=event)
        await self.poison(event, error, attempts)

    async def stop(self, event: Event, error: Exception) -> None:
        """The application wants no more of this partition, and does not blame the event: no policy is asked."""
        await self._trouble("handler", error, 1, 0.0, event=event)
        if self._hold.may_begin(self._parts.clock.now()):
            await self._stop(event, error, 1)

    async def poison(self, event: Event, error: Exception, attempts: int = 0, reason: str = "poison") -> None:
        """It will not be handled: by the policy."""
        if not self._hold.may_begin(self._parts.clock.now()):
            return
        policy = self._settings.poison
        if policy == "stop":
            await self._stop(event, error, attempts)
        elif reason == "poison" and self._is_too_much():
            await self._trip(event, error)
        elif policy == "skip":
            self._parts.announce(
                Skipped,
                partition=self._hold.partition,
                position=event.position,
                whose=self._parts.whose(event),
                error=shortened(error),
                attempts=attempts,
            )
            self._pass_over([event])
        else:
            await self._give_up(event, error, attempts, reason)

    async def park(self, events: Sequence[Event]) -> None:
        """Events of parked keys follow the one before them."""
        error = "an earlier event of this key is in the dead letters"
        if await self.file([self._dead_letter(event, "parked", error) for event in events]):
            self._told(events, "parked", error, 0)
            self._pass_over(events)

    def repark(self, parked: dict[str, int]) -> None:
        self.parked = parked
        self._hold.note(parked=parked)

    async def file(self, records: Sequence[DeadLetterRecord], partition: PartitionId | None = None) -> bool:
        """Durable, before the checkpoint passes them. A target that is away is waited for: nothing is passed over."""
        hold, dead_letters, attempt = self._hold, self._parts.dead_letters, 0
        assert dead_letters is not None
        while hold.may_begin(self._parts.clock.now()):
            try:
                await dead_letters.file(self._parts.group, partition or hold.partition, records)
                return True
            except Exception as error:
                attempt += 1
                await self._trouble("dead letters", error, attempt)
        return False

    # --- inside
    def _count_ends(self, fruitless: int) -> int:
        """How many owners before this one ended unplanned not far from here."""
        hold, known = self._hold, self._hold.notes.ends
        ends = ends_after(known, hold.done[0], fruitless, unplanned=hold.unplanned)
        if ends != known:
            hold.note(ends=ends)
        return ends.owners if ends is not None else 0

    def _forget_ends(self) -> None:
        if self._hold.notes.ends is not None:
            self._hold.note(ends=None)

    def _count_death(self, ordinal: int) -> None:
        """Its last owner ended while it handled one event alone; a planned end is no sign of anything."""
        known = self._hold.notes.suspects
        if self._hold.unplanned:
            others = [one for one in known if one.ordinal != ordinal]
            known = (*others[-SUSPECTS_MOST + 1 :], Suspect(ordinal, self._deaths_at(ordinal) + 1))
        self._hold.note(trying=None, suspects=known)

    def _deaths_at(self, ordinal: int) -> int:
        return sum(one.deaths for one in self._hold.notes.suspects if one.ordinal == ordinal)

    def _forget_suspects(self) -> None:
        """The record has passed them, so that nobody will meet them again."""
        known = self._hold.notes.suspects
        left = tuple([one for one in known if one.ordinal >= self._hold.committed])
        if left != known:
            self._hold.note(suspects=left)

    def _attempts_before(self) -> int:
        known = self._hold.notes.failing
        return known.attempts if known is not None and known.ordinal == self._hold.done[0] else 0

    def _is_too_much(self) -> bool:
        breaker, ordinal = self._settings.breaker, self._hold.done[0]
        if breaker is None:
            return False
        self._poisoned = [one for one in self._poisoned if ordinal - breaker.events < one < ordinal] + [ordinal]
        return self._hold.notes.tripped is not None or breaker.trips(self._poisoned, ordinal)

    async def _trip(self, event: Event, error: Exception) -> None:
        hold, breaker, known = self._hold, self._settings.breaker, self._hold.notes.tripped
        assert breaker is not None
        pauses = known.pauses + 1 if known is not None else 1
        since_at = known.at if known is not None else self._parts.clock.wall()
        hold.note(tripped=TrippedNote(shortened(error), pauses, since_at))
        hold.halted = f"the breaker tripped: {shortened(error)}"
        hold.caught_up = True
        self._committer.ask(hold)
        again_in_s = breaker.pause_s(pauses, self._parts.clock.chance())
        self._parts.announce(
            Tripped,
            partition=hold.partition,
            position=event.position,
            whose=self._parts.whose(event),
            error=shortened(error),
            pauses=pauses,
            again_in_s=again_in_s,
        )
        await hold.rest(again_in_s)

    async def _stop(self, event: Event, error: Exception, attempts: int) -> None:
        hold = self._hold
        stopped = StoppedNote(
            ordinal=hold.done[0],
            position=event.position,
            error=shortened(error),
            attempts=attempts,
            by=self._parts.announce.instance,
            at=self._parts.clock.wall(),
            whose=self._parts.whose(event),
        )
        hold.note(stopped=stopped, failing=None)
        self._committer.ask(hold)
        await self._stand_still(stopped)

    async def _stand_still(self, stopped: StoppedNote) -> None:
        hold = self._hold
        whose = f" ({stopped.whose})" if stopped.whose else ""
        hold.halted = f"stopped at {stopped.position}{whose}: {stopped.error}"
        hold.caught_up = True
        self._parts.announce(
            Stopped,
            partition=hold.partition,
            position=stopped.position,
            whose=stopped.whose,
            error=stopped.error,
            attempts=stopped.attempts,
        )
        await hold.stopped.wait()

    async def _give_up(self, event: Event, error: Exception, attempts: int, reason: str) -> None:
        keyed = self._settings.dead_letter_order == "key" and event.key is not None
        if keyed and event.key not in self.parked and not self._has_room(event.key or ""):
            too_many = EvenflowError(
                f"{len(self.parked)} keys are parked, and the record has no room for more; redrive or drop their dead"
                f" dead letters. The event failed with {shortened(error)}"
            )
            await self._stop(event, too_many, attempts)
            return
        trace = "".join(traceback.format_exception(error))[-TEXT_CHARS:]
        dead_letter = self._dead_letter(event, reason, in_words(error, TEXT_CHARS), trace, attempts)
        if not await self.file([dead_letter]):
            return
        if keyed and event.key is not None and event.key not in self.parked:
            self.repark({**self.parked, event.key: -1 if event.sequence is None else event.sequence})
        self._told([event], reason, shortened(error), attempts)
        self._pass_over([event])

    def _dead_letter(self, event: Event, reason: str, error: str, trace: str = "", attempts: int = 0) -> DeadLetter:
        return DeadLetter(
            partition=self._hold.partition,
            event=event,
            reason=reason,
            error=error,
            traceback=trace,
            attempts=attempts,
            instance=self._parts.announce.instance,
            epoch=self._hold.epoch,
            at=self._parts.clock.wall(),
        )

    def _has_room(self, key: str) -> bool:
        return len(self.parked) < PARKED_MOST and sum(map(len, self.parked)) + len(key) <= PARKED_CHARS_MOST

    def _told(self, events: Sequence[Event], reason: str, error: str, attempts: int) -> None:
        self._parts.announce(
            DeadLettered,
            partition=self._hold.partition,
            position=events[0].position,
            whose=self._parts.whose(events[0]) if len(events) == 1 else "",
            dead_letters=len(events),
            reason=reason,
            error=error,
            attempts=attempts,
        )

    def _pass_over(self, events: Sequence[Event]) -> None:
        """They count as done: the checkpoint may pass them."""
        hold = self._hold
        self._suspects = suspects_after(self._suspects, len(events), failed=False)
        hold.done = (hold.done[0] + len(events), events[-1])
        if hold.notes.failing is not None:
            hold.note(failing=None)
        self._forget_suspects()
        self._committer.look(hold)
