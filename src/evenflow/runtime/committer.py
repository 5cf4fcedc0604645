"""Writes checkpoints: all that are due in one request to the store, or as many as a slow store answers for in time.

One task commits for the whole processor. Pumps tell it when enough events have passed; the clock tells it when enough
seconds have; a caller that needs a checkpoint written before it goes on (a drain, a manual checkpoint) waits for
requests until its own was in one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from evenflow.core.checkpointing import Every, Manual, is_due
from evenflow.core.failure import pause_s
from evenflow.core.pacing import in_turn
from evenflow.errors import LeaseLost, Transient
from evenflow.runtime.pacer import Pacer
from evenflow.signals import Committed, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from evenflow.model import Checkpoint, PartitionId, Position
    from evenflow.runtime.hold import Hold, Progress
    from evenflow.runtime.parts import Parts


class Due(NamedTuple):
    """A checkpoint to write."""

    hold: Hold
    record: Checkpoint
    noted: int
    """Up to which change of its notes it has them."""
    since_s: float
    """When it was put into the queue."""


class Committer:
    def __init__(
        self,
        parts: Parts,
        holds: Callable[[], Iterable[Hold]],
        lost: Callable[[Hold], None],
        may_save: Callable[[Hold], bool] = lambda hold: True,
    ) -> None:
        """`may_save`: whether what a hold that is over came to may still be committed."""
        self._parts = parts
        self._policy = parts.settings.checkpoint
        self._manual = isinstance(self._policy, Manual)
        self._holds = holds
        self.lost = lost
        self._may_save = may_save
        self._pacer = Pacer(parts, stretches=True)
        self._queue: dict[Hold, float] = {}
        """Those that may have something to write, and since when they wait for their turn."""
        self._waiting: set[Hold] = set()
        """Those of them that a caller waits for."""
        self._under_way: Collection[Hold] = ()
        self._kick = asyncio.Event()
        self._round: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._round_at_s = parts.clock.now()
        self._failures = 0

    async def run(self) -> None:
        while True:
            if await self._wait():
                self._round_at_s = self._parts.clock.now()
                for hold in self._holds():
                    if hold.sealed is not None:
                        self._queue.setdefault(hold, self._round_at_s)
            due = self._take()
            self._under_way = [one.hold for one in due]
            await self._commit(due)
            self._under_way = ()
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
        await self._one_round(hold)
        while hold in self._queue or hold in self._under_way:
            await asyncio.shield(self._round)

    async def _one_round(self, hold: Hold) -> None:
        self._waiting.add(hold)
        self.ask(hold)
        await asyncio.shield(self._round)

    def ask(self, hold: Hold) -> None:
        """Commit soon what this hold has."""
        self._queue.setdefault(hold, self._parts.clock.now())
        self._kick.set()

    async def _wait(self) -> bool:
        """Until there is something to look at. True when the seconds of the policy have passed."""
        if self._failures:
            await self._parts.clock.sleep(pause_s(self._failures, self._parts.clock.chance(), most_s=2.0))
        left_s = None
        if isinstance(self._policy, Every) and self._policy.seconds is not None:
            left_s = max(0.0, self._round_at_s + self._policy.seconds - self._parts.clock.now())
        if self._queue:
            self._kick.clear()
            return left_s == 0.0
        try:
            async with asyncio.timeout(left_s):
                await self._kick.wait()
            self._kick.clear()
            return left_s == 0.0
        except TimeoutError:
            return True

    def _take(self) -> list[Due]:
        """What the next request carries. Those that have nothing to write leave the queue as well."""
        due: list[Due] = []
        for hold in in_turn(self._queue, self._waiting):
            if len(due) == self._pacer.most:
                break
            since_s = self._queue.pop(hold)
            self._waiting.discard(hold)
            if hold.over and not self._may_save(hold):
                continue
            record, noted = hold.checkpoint(manual=self._manual), hold.noted
            if record is not None and hold.is_due(record):
                due.append(Due(hold, record, noted, since_s))
        return due

    async def _commit(self, due: Sequence[Due]) -> None:
        if not due:
            return
        records = [one.hold.edited(one.record) for one in due]
        try:
            async with self._pacer.request(len(due)):
                outcomes = await self._parts.store.commit(self._parts.group, records)
        except Transient as error:
            self._failures += 1
            self._parts.announce(Trouble, where="commit", error=error, attempt=self._failures)
            self._again(due)
            return
        self._failures = 0
        written: dict[PartitionId, Position] = {}
        for (hold, record, noted, _), outcome in zip(due, outcomes, strict=True):
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

    def _again(self, due: Sequence[Due]) -> None:
        """They keep their turn once. If the store never takes one of them, the others must not wait behind it."""
        now_s = self._parts.clock.now()
        for one in due:
            if not one.hold.over:
                self._queue.setdefault(one.hold, one.since_s if self._failures == 1 else now_s)
