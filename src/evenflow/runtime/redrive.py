"""Gives dead letters to the handler again, when somebody asked for it: in the partition's own pump, between batches.

So a redriven event never runs beside another one of its partition, and a key is unparked at a moment when nothing of
it can overtake. Progress does not move: the checkpoint passed these events long ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.core.filed import fold, is_key_clear, outstanding
from evenflow.core.notes import shortened
from evenflow.model import Position
from evenflow.observe.happenings import Redriven
from evenflow.runtime.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evenflow.core.filed import Filed
    from evenflow.model import Event
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.failures import Failures
    from evenflow.runtime.parts import Parts


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
        return self._hold.redrives > self._hold.notes.redriven and self._parts.letters is not None

    async def run(self) -> None:
        """All that is to be done again in this partition. It begins anew after a failure, and asks nothing twice."""
        hold, letters, wanted = self._hold, self._parts.letters, self._hold.redrives
        assert letters is not None
        filed = fold([record async for record in letters.read(self._parts.group, hold.partition)])
        done = failed = 0
        blocked: set[str] = set()
        for one in outstanding(filed):
            if not hold.may_begin(self._parts.clock.now()):
                return
            key = one.letter.event.key
            if key is not None and key in blocked:
                await self._answer(one, "an earlier letter of this key failed again")
                failed += 1
                continue
            error = await self._call(self._stand_in(), one.letter.event)
            if error is not None and self._keeps_order and key is not None:
                blocked.add(key)
            await self._answer(one, None if error is None else shortened(error))
            done, failed = done + (error is None), failed + (error is not None)
        await self._unpark()
        hold.note(redriven=wanted)
        self._committer.ask(hold)
        if done or failed:
            self._parts.announce(Redriven, partition=hold.partition, done=done, failed=failed)

    @property
    def _keeps_order(self) -> bool:
        return self._parts.settings.dead_letter_order == "key"

    def _stand_in(self) -> Hold:
        """Whatever a caller writes about progress must not reach the partition's own."""
        stand_in = Hold(self._hold.partition, self._hold.epoch, self._hold.deadline_s)
        stand_in.done = (0, Position(""))
        return stand_in

    async def _answer(self, one: Filed, error: str | None) -> None:
        assert self._parts.letters is not None
        verdict = one.answered(error, by=self._parts.announce.instance, at=self._parts.clock.wall())
        await self._parts.letters.file(self._parts.group, self._hold.partition, [verdict])

    async def _unpark(self) -> None:
        """Keys of which no letter is left: what comes next of them may be handled."""
        parked = self._failures.parked
        if not parked:
            return
        assert self._parts.letters is not None
        filed: Sequence[Filed] = fold(
            [record async for record in self._parts.letters.read(self._parts.group, self._hold.partition)]
        )
        clear = frozenset(key for key in parked if is_key_clear(filed, key))
        if clear:
            self._failures.unpark(clear)
