"""Writes checkpoints: all that are due in one call of the store, whatever the number of partitions.

One task commits for the whole processor. Pumps tell it when enough events have passed; the clock tells it when enough
seconds have; who must have a checkpoint written before it goes on (a drain, a manual checkpoint) waits for rounds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.core.checkpointing import Every, Manual, is_due
from evenflow.core.failure import pause_s
from evenflow.errors import LeaseLost, Transient
from evenflow.observe.happenings import Committed, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from evenflow.model import PartitionId, Position
    from evenflow.runtime.hold import Hold, Progress
    from evenflow.runtime.parts import Parts


class Committer:
    def __init__(self, parts: Parts, holds: Callable[[], Iterable[Hold]], lost: Callable[[Hold], None]) -> None:
        self._parts = parts
        self._policy = parts.settings.checkpoint
        self._manual = isinstance(self._policy, Manual)
        self._holds = holds
        self.lost = lost
        self._urgent: set[Hold] = set()
        self._under_way: set[Hold] = set()
        self._kick = asyncio.Event()
        self._round: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._round_at_s = parts.clock.now()
        self._failures = 0

    async def run(self) -> None:
        while True:
            is_time = await self._wait()
            self._under_way, self._urgent = self._urgent, set()
            if is_time:
                self._under_way.update(self._holds())
                self._round_at_s = self._parts.clock.now()
            await self._commit(self._under_way)
            self._under_way = set()
            done, self._round = self._round, asyncio.get_running_loop().create_future()
            done.set_result(None)

    def look(self, hold: Hold) -> None:
        """Called by pumps between calls: commit when enough events have passed."""
        if is_due(self._policy, hold.done[0] - hold.committed, 0.0):
            self.ask(hold)

    async def mark(self, hold: Hold, progress: Progress) -> None:
        """Everything up to here is handled, says the application. Returns when that is written."""
        if hold.marked is None or hold.marked[0] < progress[0]:
            hold.marked = progress
        while hold.committed < progress[0]:
            if hold.over:
                raise LeaseLost(f"partition {hold.partition}: somebody else owns it; this checkpoint was not written.")
            await self._one_round(hold)

    async def settle(self, hold: Hold) -> bool:
        """All that may be committed is; False when the hold was over before that."""
        while not hold.over:
            wanted = hold.checkpoint(manual=self._manual)
            if wanted is None or not hold.is_due(wanted):
                return True
            await self._one_round(hold)
        return False

    async def keep(self, hold: Hold) -> bool:
        """Its notes are written, as they are now; False when the hold was over before that."""
        wanted = hold.noted
        while hold.notes_kept < wanted and not hold.over:
            await self._one_round(hold)
        return not hold.over

    async def last_try(self, hold: Hold) -> None:
        """The hold is over: if nobody has sealed the record since, this saves repeating what was handled."""
        self.ask(hold)
        while hold in self._urgent or hold in self._under_way:
            await asyncio.shield(self._round)

    async def _one_round(self, hold: Hold) -> None:
        self.ask(hold)
        await asyncio.shield(self._round)

    def ask(self, hold: Hold) -> None:
        """Commit soon what this hold has."""
        self._urgent.add(hold)
        self._kick.set()

    async def _wait(self) -> bool:
        """Until somebody asks for a commit (False), or the seconds of the policy have passed (True)."""
        if self._failures:
            await self._parts.clock.sleep(pause_s(self._failures, self._parts.clock.chance(), most_s=2.0))
        left_s = None
        if isinstance(self._policy, Every) and self._policy.seconds is not None:
            left_s = max(0.0, self._round_at_s + self._policy.seconds - self._parts.clock.now())
        try:
            async with asyncio.timeout(left_s):
                await self._kick.wait()
            self._kick.clear()
            return left_s == 0.0
        except TimeoutError:
            return True

    async def _commit(self, holds: Iterable[Hold]) -> None:
        wanted = [(hold, hold.checkpoint(manual=self._manual), hold.noted) for hold in holds]
        due = [(hold, record, noted) for hold, record, noted in wanted if record is not None and hold.is_due(record)]
        if not due:
            return
        try:
            async with self._parts.answered():
                outcomes = await self._parts.store.commit(self._parts.group, [record for _, record, _ in due])
        except Transient as error:
            self._failures += 1
            self._parts.announce(Trouble, where="commit", error=error, attempt=self._failures)
            for hold, _, _ in due:
                if not hold.over:
                    self.ask(hold)
            return
        self._failures = 0
        written: dict[PartitionId, Position] = {}
        for (hold, record, noted), outcome in zip(due, outcomes, strict=True):
            if outcome.ok:
                written[hold.partition] = record.position
                if record.ordinal >= hold.committed:
                    hold.committed, hold.committed_to = record.ordinal, record.position
                hold.committed_at_s = self._round_at_s
                hold.notes_kept = max(hold.notes_kept, noted)
            elif not hold.over:
                self.lost(hold)
        self._parts.committed(written)
        self._parts.announce(Committed, partitions=len(due))
