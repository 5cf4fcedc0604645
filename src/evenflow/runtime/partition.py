"""What a handler is given beside its event: which partition, under which epoch, how to checkpoint and to transact."""

from __future__ import annotations

import asyncio
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING

from evenflow.core.checkpointing import Manual
from evenflow.errors import Misconfigured
from evenflow.model import Event, PartitionId, Position
from evenflow.runtime.transaction import PartitionTransaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from evenflow.runtime.committer import Committer
    from evenflow.runtime.hold import Hold, Progress
    from evenflow.runtime.parts import Parts


class OwnedPartition:
    """A partition while this instance owns it. Two owners of one partition never have the same `epoch`."""

    def __init__(self, hold: Hold, committer: Committer, loop: asyncio.AbstractEventLoop, parts: Parts) -> None:
        self._hold = hold
        self._committer = committer
        self._loop = loop
        self._parts = parts

    @property
    def id(self) -> PartitionId:
        return self._hold.partition

    @property
    def epoch(self) -> int:
        """The fencing token: write it along with your effects, and refuse a lower one."""
        return self._hold.epoch

    @property
    def position(self) -> Position:
        """After which the next event comes: in on_partition_start, where the checkpoint stands.

        An application that keeps state of its own compares it with this, and finds out what it has lost.
        """
        return self._hold.position

    @property
    def is_stopping(self) -> bool:
        """A long handler may look at this, and return early: no further call begins."""
        return self._hold.stopping

    def checkpoint(self, event: Event | None = None) -> Awaitable[None]:
        """Mark everything up to `event` (by default: what this call was given) as handled, durably.

        Outside a handler call, as in on_partition_stop or a task of one's own, it marks all that was handled.
        `await` it in an async function. In a plain one it blocks, and is done when it returns. LeaseLost when
        somebody else owns the partition by now: the effects of this call may be repeated there.
        """
        marked = self._progress(event)
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            return called(self._committer.mark(self._hold, marked), "partition.checkpoint")
        self._parts.threads.wait_for(self._committer.mark(self._hold, marked), self._loop)
        return _Done()

    def transaction(self, event: Event | None = None) -> PartitionTransaction:
        """Effects in the store's own database, and the checkpoint of this call's events, in one transaction.

        `async with partition.transaction() as tx: await tx.execute(statement, values)`, and `tx.execute_many`; in a
        plain handler `with`, without `await`. It covers what this call was given (or, of a batch, everything up to
        `event`), and it happens whole or not at all: an event counts as handled when its effects are there.

        Misconfigured outside a handler call, and with a store that cannot do it. LeaseLost, AlreadyDone, Transient
        and TransactionTimeout may be raised at its beginning and its end: let them pass, evenflow knows what to do.
        """

        def covers() -> Progress:
            if not self._is_in_call() or (self._hold.current is None and self._hold.aside is None):
                raise Misconfigured("partition.transaction() belongs inside a handler call, and not into its tasks.")
            return self._progress(event, "transaction")

        return PartitionTransaction(self._parts, self._hold, self._loop, covers)

    # --- for another interface on top of this one (evenflow.compat)
    @property
    def ordinal(self) -> int:
        """How many events were handled before this call, over all owners."""
        return self._hold.done[0]

    async def mark(self, ordinal: int, event: Event) -> None:
        """As `checkpoint`, for an event of whichever call: its ordinal is the partition's then, and one for itself."""
        await self._committer.mark(self._hold, (ordinal, event))

    async def give_up(self, rest_s: float) -> None:
        """Let go of it after a rest, and take it again under a new epoch, which begins after the checkpoint."""
        await self._hold.rest(rest_s)
        self._committer.lost(self._hold)

    def _progress(self, event: Event | None, what: str = "checkpoint") -> Progress:
        hold = self._hold
        if hold.aside is not None and self._is_in_call():
            return self._aside(hold.aside, event, what)
        current = hold.current if self._is_in_call() else None
        if current is None:
            if event is not None:
                raise Misconfigured(f"partition.{what}(event) belongs inside a handler call; there is none now.")
            return hold.done
        if isinstance(current, Event):
            if event is not None and event is not current:
                raise Misconfigured(f"partition.{what}(event) takes the event that the handler was given.")
            return hold.done[0] + 1, current
        return _in_batch(hold, current, event, what)

    def _aside(self, stand_in: Hold, event: Event | None, what: str) -> Progress:
        """A redriven dead letter moves nothing: its event was passed long ago."""
        given = stand_in.current
        if event is not None and event is not given and not (isinstance(given, list) and event in given):
            raise Misconfigured(f"partition.{what}(event) takes an event that the handler was given.")
        return self._hold.stands(manual=isinstance(self._parts.settings.checkpoint, Manual))

    def _is_in_call(self) -> bool:
        """Whether the caller is the handler itself, and not a task or thread that it left behind."""
        hold = self._hold
        if get_ident() in (hold.thread, hold.aside.thread if hold.aside is not None else None):
            return True
        try:
            return asyncio.current_task() is self._hold.task
        except RuntimeError:
            return False

    def __repr__(self) -> str:
        return f"<partition {self.id} epoch {self.epoch}>"


def called(marking: Awaitable[None], name: str) -> Awaitable[None]:
    """The same. Python warns by this name of one that nobody awaits."""
    if isinstance(marking, CoroutineType):
        marking.__qualname__ = name
    return marking


class _Done:
    """What a blocking checkpoint returns: an awaitable that has nothing left to wait for."""

    def __await__(self):  # type: ignore[no-untyped-def]
        yield from ()


def _in_batch(hold: Hold, batch: Sequence[Event], event: Event | None, what: str) -> Progress:
    if event is None:
        last: Event | Position = hold.current_resume if hold.current_resume is not None else batch[-1]
        return hold.done[0] + len(batch), last
    for index, candidate in enumerate(batch):
        if candidate is event:
            return hold.done[0] + index + 1, event
    raise Misconfigured(f"partition.{what}(event) takes one of the events that the handler was given.")
