"""What one hold does about events that fail: try again, find the bad one, and go by the poison policy.

`core.failure` decides; here is the waiting, the filing and the telling. Nothing here runs for events that pass, but
for a look at a few numbers between calls.
"""

from __future__ import annotations

import asyncio
import traceback
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from evenflow.core.failure import CAREFUL_EVENTS, FRUITLESS_MOST, part_of, suspects_after
from evenflow.core.notes import PARKED_MOST, Failing, shortened
from evenflow.core.notes import Stopped as StoppedNote
from evenflow.core.notes import Tripped as TrippedNote
from evenflow.errors import EvenflowError
from evenflow.model import Event, Letter
from evenflow.observe.happenings import Careful, DeadLettered, Recovered, Skipped, Stopped, Tripped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from evenflow.model import LetterRecord
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.hold import Hold
    from evenflow.runtime.parts import Parts

TRACEBACK_CHARS = 16_000


class Killed(EvenflowError):
    """The process that handled this event ended, or fell silent, before the handler returned."""


class TellTrouble(Protocol):
    async def __call__(self, where: str, error: Exception, attempt: int, again_in_s: float | None = None) -> None:
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
        self.parked: frozenset[str] = frozenset()
        """Keys whose events go into the dead letters, after an earlier one of theirs."""

    def begin(self) -> None:
        """The record is sealed: take up what its last owner left."""
        hold = self._hold
        self.parked = frozenset(hold.notes.parked)
        fruitless = hold.sealed.fruitless if hold.sealed is not None else 0
        if hold.notes.trying is not None:
            hold.note(trying=None, deadly=hold.notes.trying if hold.unplanned else hold.notes.deadly)
        if fruitless >= FRUITLESS_MOST or hold.notes.deadly is not None:
            self._careful_left = CAREFUL_EVENTS
            self._parts.announce(Careful, partition=hold.partition, fruitless=fruitless)

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
        """Whether the next event is the one that was tried alone when the last owner ended."""
        return self._hold.notes.deadly == self._hold.done[0]

    def run_of(self, events: Sequence[Event], at: int) -> tuple[bool, int]:
        """The longest run of events from here that are all parked (True), or all not."""
        is_parked = events[at].key in self.parked
        end = at + 1
        while end < len(events) and (events[end].key in self.parked) == is_parked:
            end += 1
        return is_parked, end - at

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Around one event, while owners die here: the record says that it is being tried, before and no longer.

        One at a time in the whole instance, so that a process which ends leaves exactly one behind.
        """
        hold = self._hold
        async with self._parts.alone:
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
        self._careful_left = max(0, self._careful_left - count)
        self._broken_batches = 0
        notes = self._hold.notes
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

    async def batch_failed(self, error: Exception, size: int) -> None:
        """A call with several events failed: look for the bad one among them."""
        self._suspects = suspects_after(self._suspects, size, failed=True)
        self._broken_batches += 1
        again_in_s = self._settings.retry.pause_s(self._broken_batches, self._parts.clock.chance())
        await self._trouble("handler", error, self._broken_batches, again_in_s)

    async def failed(self, event: Event, error: Exception) -> None:
        """A call with this event alone failed."""
        hold, retry = self._hold, self._settings.retry
        attempts = 1 + self._attempts_before()
        hold.note(failing=Failing(hold.done[0], attempts, shortened(error)))
        if hold.notes.tripped is None and retry.tries_again(error, attempts):
            if attempts > 1:
                self._committer.ask(hold)
            await self._trouble("handler", error, attempts, retry.pause_s(attempts, self._parts.clock.chance()))
            return
        await self._trouble("handler", error, attempts, 0.0)
        await self.poison(event, error, attempts)

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
                error=shortened(error),
                attempts=attempts,
            )
            self._pass_over([event])
        else:
            await self._dead_letter(event, error, attempts, reason)

    async def park(self, events: Sequence[Event]) -> None:
        """Events of parked keys follow the one before them."""
        error = "an earlier event of this key is in the dead letters"
        if await self._file([self._letter(event, "parked", error) for event in events]):
            self._told(events, "parked", error, 0)
            self._pass_over(events)

    def unpark(self, keys: frozenset[str]) -> None:
        self.parked -= keys
        self._hold.note(parked=tuple(sorted(self.parked)))

    # --- inside
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
            error=shortened(error),
            pauses=pauses,
            again_in_s=again_in_s,
        )
        await wait(hold, again_in_s)

    async def _stop(self, event: Event, error: Exception, attempts: int) -> None:
        hold = self._hold
        stopped = StoppedNote(
            ordinal=hold.done[0],
            position=event.position,
            error=shortened(error),
            attempts=attempts,
            by=self._parts.announce.instance,
            at=self._parts.clock.wall(),
        )
        hold.note(stopped=stopped, failing=None)
        self._committer.ask(hold)
        await self._stand_still(stopped)

    async def _stand_still(self, stopped: StoppedNote) -> None:
        hold = self._hold
        hold.halted = f"stopped at {stopped.position}: {stopped.error}"
        hold.caught_up = True
        self._parts.announce(
            Stopped,
            partition=hold.partition,
            position=stopped.position,
            error=stopped.error,
            attempts=stopped.attempts,
        )
        await hold.stopped.wait()

    async def _dead_letter(self, event: Event, error: Exception, attempts: int, reason: str) -> None:
        keyed = self._settings.dead_letter_order == "key" and event.key is not None
        if keyed and event.key not in self.parked and len(self.parked) >= PARKED_MOST:
            too_many = EvenflowError(
                f"{PARKED_MOST} keys are parked already; redrive or drop their dead letters. The event failed with"
                f" {shortened(error)}"
            )
            await self._stop(event, too_many, attempts)
            return
        trace = "".join(traceback.format_exception(error))[-TRACEBACK_CHARS:]
        letter = self._letter(event, reason, f"{type(error).__name__}: {error}", trace, attempts)
        if not await self._file([letter]):
            return
        if keyed and event.key is not None:
            self.parked |= {event.key}
            self._hold.note(parked=tuple(sorted(self.parked)))
        self._told([event], reason, shortened(error), attempts)
        self._pass_over([event])

    def _letter(self, event: Event, reason: str, error: str, trace: str = "", attempts: int = 0) -> Letter:
        return Letter(
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

    async def _file(self, records: Sequence[LetterRecord]) -> bool:
        """Durable, before the checkpoint passes them. A target that is away is waited for: nothing is passed over."""
        hold, letters, attempt = self._hold, self._parts.letters, 0
        assert letters is not None
        while hold.may_begin(self._parts.clock.now()):
            try:
                await letters.file(self._parts.group, hold.partition, records)
                return True
            except Exception as error:
                attempt += 1
                await self._trouble("dead letters", error, attempt)
        return False

    def _told(self, events: Sequence[Event], reason: str, error: str, attempts: int) -> None:
        self._parts.announce(
            DeadLettered,
            partition=self._hold.partition,
            position=events[0].position,
            letters=len(events),
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
        if hold.notes.deadly is not None and hold.notes.deadly < hold.done[0]:
            hold.note(deadly=None)
        self._committer.look(hold)


async def wait(hold: Hold, seconds: float) -> None:
    """So long, unless the hold stops before."""
    try:
        async with asyncio.timeout(seconds):
            await hold.stopped.wait()
    except TimeoutError:
        pass
