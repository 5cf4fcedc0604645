"""Gives dead letters to the handler again, when somebody asked for it: in the partition's own pump, between batches.

So a redriven event never runs beside another one of its partition, and a key is unparked at a moment when nothing of
it can overtake. Progress does not move: the checkpoint passed these events long ago.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from evenflow.core.filed import fold
from evenflow.core.notes import shortened
from evenflow.model import Position
from evenflow.runtime.hold import Hold
from evenflow.signals import Redriven

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from evenflow.core.filed import Filed
    from evenflow.model import Event, PartitionId
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.failures import Failures
    from evenflow.runtime.parts import Parts


ATTEMPTS_MOST = 3
PAUSE_MOST_S = 1.0
NOT_CALLED = "it was not called: there was no time left"


class Redrive:
    """`call` gives one event to the handler, for a hold that only stands in, and returns what it raised."""

    def __init__(
        self,
        parts: Parts,
        hold: Hold,
        failures: Failures,
        committer: Committer,
        call: Callable[[Hold, Event], Awaitable[Exception | None]],
    ) -> None:
        self._parts = parts
        self._hold = hold
        self._failures = failures
        self._committer = committer
        self._call = call

    def is_due(self) -> bool:
        """Another count than ours may also be a lower one, after the store has lost writes."""
        return self._hold.redrives != self._hold.notes.redriven and self._parts.dead_letters is not None

    async def run(self) -> None:
        """All that is to be done again in this partition. It begins anew after a failure, and asks nothing twice."""
        hold, wanted = self._hold, self._hold.redrives
        fatal = hold.notes.redriving if hold.unplanned else ""
        answers: Counter[bool] = Counter()
        blocked: set[str] = set()
        for one in await self._open_dead_letters():
            key = one.dead_letter.event.key if self._keeps_order else None
            error = await self._try(one, blocked=key in blocked, fatal=one.dead_letter.id == fatal)
            if error == NOT_CALLED or not hold.may_begin(self._parts.clock.now()):
                return
            if error is not None and key is not None:
                blocked.add(key)
            if one.state == "again":
                answers[error is None] += 1
        await self._unpark()
        hold.note(redriven=wanted, redriving="", effected="")
        self._committer.ask(hold)
        if answers:
            self._parts.announce(Redriven, partition=hold.partition, done=answers[True], failed=answers[False])

    async def _open_dead_letters(self) -> list[Filed]:
        """In the order of their events, also where they were filed in another one, as after a seek; those of partitions
        that have ended before those of a child."""
        found = []
        for partition in (*self._hold.wards, self._hold.partition):
            found += await self._open_dead_letters_of(partition)
        return found

    async def _open_dead_letters_of(self, partition: PartitionId) -> list[Filed]:
        assert self._parts.dead_letters is not None
        log = [record async for record in self._parts.dead_letters.read(self._parts.group, partition)]
        return sorted([one for one in fold(log) if one.is_open], key=_place)

    async def _try(self, one: Filed, *, blocked: bool, fatal: bool) -> str | None:
        """Why it is still dead; None when it is handled."""
        if one.state == "dead":
            return one.error
        if blocked:
            return await self._answer(one, "an earlier dead letter of its key is dead; redrive or drop that one first")
        if self._hold.notes.effected == one.dead_letter.id:
            return await self._answer(one, None)  # a transaction has committed its effects, and then somebody ended
        if fatal:
            return await self._answer(one, "the process that redrove it ended, or fell silent, before it returned")
        # Known before the call: one that ends its process does so once for each time that somebody asks for it.
        self._hold.note(redriving=one.dead_letter.id, effected="")
        await self._committer.keep(self._hold)
        error = await self._call_patiently(one.dead_letter.event)
        return error if error == NOT_CALLED else await self._answer(one, error)

    async def _call_patiently(self, event: Event) -> str | None:
        """A few tries with short pauses: the partition stands still meanwhile."""
        retry = self._parts.settings.retry
        for attempt in range(1, ATTEMPTS_MOST + 1):
            stand_in = self._stand_in()
            error = await self._call(stand_in, event)
            if self._hold.notes.effected == self._hold.notes.redriving:
                return None  # whatever it raised afterwards: its effects are there
            if error is None:
                return None if stand_in.done[0] else NOT_CALLED
            if attempt == ATTEMPTS_MOST or not retry.tries_again(error, attempt):
                return shortened(error)
            await self._hold.rest(min(PAUSE_MOST_S, retry.pause_s(attempt, self._parts.clock.chance())))
        raise AssertionError("the last attempt has returned")

    @property
    def _keeps_order(self) -> bool:
        return self._parts.settings.dead_letter_order == "key"

    def _stand_in(self) -> Hold:
        """Whatever a caller writes about progress must not reach the partition's own."""
        stand_in = Hold(self._hold.partition, self._hold.epoch, self._hold.deadline_s)
        stand_in.done = (0, Position(""))
        return stand_in

    async def _answer(self, one: Filed, error: str | None) -> str | None:
        verdict = one.answered(error, by=self._parts.announce.instance, at=self._parts.clock.wall())
        await self._failures.file([verdict], one.dead_letter.partition)
        return error

    async def _unpark(self) -> None:
        """Keys stay parked behind the first of their dead letters that is open; those without one may be handled."""
        before = self._failures.parked
        if not before:
            return
        after: dict[str, int] = {}
        for one in reversed(await self._open_dead_letters_of(self._hold.partition)):
            if one.dead_letter.event.key in before:
                after[one.dead_letter.event.key] = _place(one)
        if after != before:
            self._failures.repark(after)


def _place(one: Filed) -> int:
    sequence = one.dead_letter.event.sequence
    return -1 if sequence is None else sequence
