"""`partition.transaction()`: a handler's effects and its checkpoint in one transaction of the store, and what follows.

Here is what the runtime must know around it: from where to where a transaction reaches, how long it may be open, what
counts as committed afterwards; and, when nobody can tell whether one took effect, how to learn it. What a transaction
is, the store decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.core.failure import pause_s
from evenflow.core.notes import Notes, notes_of
from evenflow.errors import AlreadyDone, LeaseLost, Misconfigured, TransactionTimeout, Transient
from evenflow.model import BEGINNING, Checkpoint
from evenflow.ports import Transactional
from evenflow.runtime.hold import position_of
from evenflow.signals import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from evenflow.ports import Transaction
    from evenflow.runtime.hold import Hold, Progress
    from evenflow.runtime.parts import Parts
    from evenflow.runtime.threads import Threads


class PartitionTransaction:
    """What `partition.transaction()` returns: for `async with` in an async handler, for `with` in a plain one."""

    def __init__(
        self, parts: Parts, hold: Hold, loop: asyncio.AbstractEventLoop, covers: Callable[[], Progress]
    ) -> None:
        self._parts = parts
        self._hold = hold
        self._loop = loop
        self._covers = covers
        self._deadline_s = 0.0
        self._up_to: Progress | None = None
        self._block: AbstractAsyncContextManager[Transaction] | None = None

    async def __aenter__(self) -> Transaction:
        if not self._is_on_the_loop():
            raise Misconfigured("partition.transaction(): a plain handler writes `with`, not `async with`.")
        return await self._begin(self._covers())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    def __enter__(self) -> PlainTransaction:
        if self._is_on_the_loop():
            raise Misconfigured("partition.transaction(): an async handler writes `async with`, not `with`.")
        inner = self._parts.threads.wait_for(self._begin(self._covers()), self._loop)
        return PlainTransaction(inner, self._parts.threads, self._loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.threads.wait_for(self._end(error), self._loop)

    def _is_on_the_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # --- on the event loop
    async def _begin(self, up_to: Progress) -> Transaction:
        hold, parts = self._hold, self._parts
        store = _transactional(parts)
        if self._block is not None or hold.transaction is not None:
            raise Misconfigured("partition.transaction(): one at a time, and each `with` with one of its own.")
        start = _start(hold, up_to)
        now_s = parts.clock.now()
        self._up_to, self._deadline_s = up_to, hold.deadline_s
        self._block = store.transaction(
            parts.group,
            _record_after(hold, up_to),
            committed=hold.committed,
            start=start,
            limit_s=hold.deadline_s - now_s,
        )
        hold.transaction, hold.effects, hold.doubt = self, True, True
        try:
            return await self._block.__aenter__()
        except BaseException as error:
            hold.transaction = None
            hold.doubt = not isinstance(error, TransactionTimeout)
            raise

    async def _end(self, error: BaseException | None) -> None:
        hold = self._hold
        assert self._block is not None
        try:
            late = self._too_late() if error is None else None
            if error is not None or late is not None:
                await _rolled_back(self._block, error or late)
                hold.doubt = False
                if late is not None:
                    raise late
                return
            await self._commit(self._block)
        finally:
            hold.transaction = None

    def _too_late(self) -> Exception | None:
        """After a stall the clock tells before any timer does. Nobody has sealed, but the hold is not ours any more."""
        if self._hold.over:
            return LeaseLost(f"partition {self._hold.partition}: somebody else owns it; this was rolled back.")
        if self._parts.clock.now() >= self._deadline_s:
            return TransactionTimeout()
        return None

    async def _commit(self, block: AbstractAsyncContextManager[Transaction]) -> None:
        """Without an answer it stays in doubt: it may still take effect."""
        hold = self._hold
        assert self._up_to is not None
        try:
            async with self._parts.answered():
                await block.__aexit__(None, None, None)
        except TransactionTimeout:
            hold.doubt = False
            raise
        hold.transacted, hold.doubt = self._up_to, False
        if hold.aside is not None:
            hold.note(effected=hold.notes.redriving)
        if hold.marked is None or hold.marked[0] < self._up_to[0]:
            hold.marked = self._up_to
        if self._up_to[0] >= hold.committed:
            hold.committed, hold.committed_to = self._up_to[0], position_of(self._up_to)
        hold.committed_at_s = self._parts.clock.now()
        if hold.aside is None:
            self._parts.committed({hold.partition: position_of(self._up_to)})


class PlainTransaction:
    """A transaction for a plain handler: each call blocks its thread, and is done when it returns."""

    def __init__(self, inner: Transaction, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._threads = threads
        self._loop = loop

    def execute(self, statement: str, values: Sequence[object] = ()) -> Sequence[tuple[object, ...]]:
        """Run one statement; its rows."""
        return self._threads.wait_for(_execute(self._inner, statement, values), self._loop)

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement for each row of values."""
        given = list(rows)  # here: an iterator of the application's has no place on the event loop
        self._threads.wait_for(_execute_many(self._inner, statement, given), self._loop)


async def _execute(inner: Transaction, statement: str, values: Sequence[object]) -> Sequence[tuple[object, ...]]:
    return await inner.execute(statement, values)


async def _execute_many(inner: Transaction, statement: str, rows: Sequence[Sequence[object]]) -> None:
    await inner.execute_many(statement, rows)


async def _rolled_back(block: AbstractAsyncContextManager[Transaction], error: BaseException | None) -> None:
    assert error is not None
    try:
        await block.__aexit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


def _transactional(parts: Parts) -> Transactional:
    if not isinstance(parts.store, Transactional):
        raise Misconfigured(
            f"partition.transaction(): {type(parts.store).__name__} keeps no effects of an application. Use a store"
            " that does: sqlite:FOLDER, or postgresql://."
        )
    return parts.store


def _start(hold: Hold, up_to: Progress) -> int:
    """Where a transaction up to there begins: what is handled, or committed, before it is none of its business."""
    if hold.over:
        raise LeaseLost(f"partition {hold.partition}: somebody else owns it; no transaction begins.")
    start = max(hold.done[0], hold.committed)
    is_aside = hold.aside is not None  # a redriven dead letter: it moves no checkpoint
    if up_to[0] > start or (is_aside and hold.notes.effected != hold.notes.redriving):
        return max(up_to[0], hold.committed) if is_aside else start
    if is_aside or (hold.transacted is not None and up_to[0] <= hold.transacted[0]):
        raise Misconfigured(
            "partition.transaction(): an earlier transaction of this call has committed these events. Put all effects"
            " of an event into one: a crash between two would lose those of the second."
        )
    hold.doubt = True
    raise AlreadyDone(f"Partition {hold.partition!r}: these events have a checkpoint already; they are handled.")


def _record_after(hold: Hold, up_to: Progress) -> Checkpoint:
    """What is committed with the effects: the position, or for a redriven dead letter the note that it is done."""
    record = hold.edited(hold.record_at(up_to))
    if hold.aside is None:
        return record
    return replace(record, notes=replace(hold.notes, effected=hold.notes.redriving).as_dict())


# --- after a call that failed
async def judged(parts: Parts, hold: Hold, error: Exception) -> Exception | None:
    """What is left of a failed call's error, once it is clear what its transactions have done.

    What they committed is not handed to the handler again. Nothing is left of an error that only said that nobody
    knows, or that it was done before.
    """
    if hold.transacted is not None and hold.transacted[0] > hold.done[0]:
        hold.done = hold.transacted
    return None if await learn(parts, hold) else error


async def learn(parts: Parts, hold: Hold) -> int:
    """Read the record under the same epoch, if a transaction may have moved it; how many events more are handled."""
    attempt = 0
    while hold.doubt and not hold.stopping:
        try:
            record = await _record(parts, hold)
        except Transient as error:
            attempt += 1
            await _wait(parts, hold, error, attempt)
            continue
        hold.doubt = False
        return _moved(hold, record)
    return 0


async def _record(parts: Parts, hold: Hold) -> Checkpoint:
    assert hold.sealed is not None
    default = _without_effects(parts, hold) if hold.sealed.effects else hold.sealed
    async with parts.answered():
        return await parts.store.seal(parts.group, hold.partition, hold.epoch, default)


def _without_effects(parts: Parts, hold: Hold) -> Checkpoint:
    """The record to begin with where the store has none any more: the effects were lost with it, so that all events are
    handled again. Where the group began at a later one, the record says that its place was lost."""
    is_lost = parts.settings.start_of(hold.partition, late=hold.late) != "earliest"
    notes = Notes(lost=hold.epoch if is_lost else None).as_dict()
    return Checkpoint(partition=hold.partition, epoch=hold.epoch, position=BEGINNING, ordinal=0, notes=notes)


def _moved(hold: Hold, record: Checkpoint) -> int:
    if record.ordinal < hold.committed:
        raise LeaseLost(f"partition {hold.partition}: its record has gone back: the store has lost writes.")
    hold.committed, hold.committed_to = record.ordinal, record.position
    effected = notes_of(record).effected
    if effected and effected == hold.notes.redriving:
        hold.note(effected=effected)
    further = record.ordinal - hold.done[0]
    if further <= 0:
        return 0
    hold.done = (record.ordinal, record.position)
    return further


async def _wait(parts: Parts, hold: Hold, error: Transient, attempt: int) -> None:
    again_in_s = pause_s(attempt, parts.clock.chance(), most_s=2.0)
    parts.announce(
        Trouble, where="store", error=error, partition=hold.partition, attempt=attempt, again_in_s=again_in_s
    )
    await hold.rest(again_in_s)
