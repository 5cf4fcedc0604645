"""Transactions of an application in `progress.sqlite`, which commit its effects and a checkpoint atomically.

The writer process (`writer`) holds the transaction and ends it in time, whatever the application's process does. This
module is the application's side. Transactions and commits of one instance take turns, so that none of them waits for a
lock that another one holds.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable, TransactionTimeout
from evenflow.stores.sqlite.messages import (
    BeginTransaction,
    CommitTransaction,
    ExecuteStatement,
    RollBackTransaction,
    error_of,
    plain_row,
    timed_out,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from evenflow.model import Checkpoint, Group
    from evenflow.stores.sqlite.channel import WriterChannel
    from evenflow.stores.sqlite.messages import Row, WriterRequest

GRACE_S = 5.0
"""A writer process that does not answer this long after the deadline is killed."""

ENDED = "This transaction has ended. Execute statements inside its block."


class SQLiteTransaction:
    """The contract of Transaction."""

    def __init__(self, channel: WriterChannel, limit_s: float) -> None:
        self._channel = channel
        self._limit_s = limit_s
        self._line = asyncio.Lock()
        """Allows one statement at a time, because any other message interrupts it."""
        self._ended: EvenflowError | None = None
        """Why no more requests are sent. After the end another transaction may use the channel."""

    async def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        row = plain_row(tuple(values))
        return await self._ask(lambda number: ExecuteStatement(number, statement, [row]))

    async def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        given = [plain_row(tuple(row)) for row in rows]
        await self._ask(lambda number: ExecuteStatement(number, statement, given, many=True))

    # --- called by the store
    async def begin(
        self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int, left_s: float, at: float
    ) -> None:
        limit_s = self._limit_s
        await self._ask(
            lambda number: BeginTransaction(number, group, checkpoint, committed, start, limit_s, left_s, at)
        )
        if self._ended is not None:
            raise self._ended

    async def commit(self) -> None:
        await self._ask(CommitTransaction)
        self._ended = Misconfigured(ENDED)

    async def roll_back(self) -> None:
        """Rolls back unless it is committed. Interrupts a running statement."""
        if self._ended is None:
            self._ended = Misconfigured(ENDED)
            await self._end()

    async def time_out(self) -> None:
        """Rolls back, and fails later statements of the block with TransactionTimeout."""
        if self._ended is None:
            self._ended = timed_out(self._limit_s)
        await self._end()

    async def _end(self) -> None:
        if self._channel.closed is None:
            answer = await self._channel.send(RollBackTransaction(self._channel.number()))
            await asyncio.wait([answer])

    async def _ask(self, make: Callable[[int], WriterRequest]) -> list[Row]:
        """A cancelled caller returns at once; the next statement is sent after this one is answered."""
        await self._line.acquire()
        try:
            if self._ended is not None:
                raise self._ended
            asked = await self._channel.send(make(self._channel.number()))
        except BaseException:
            self._line.release()
            raise
        asked.add_done_callback(lambda _: self._line.release())
        answer = await asyncio.shield(asked)
        if answer.fault is not None:
            raise self._ended or error_of(answer.fault)
        return answer.rows


class ProgressTurns:
    """Serialises all writes of one instance to progress.sqlite."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def mine(self) -> asyncio.Lock:
        """A lock of the running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


class SQLiteTransactions:
    """Runs one transaction at a time in one writer process, which the first transaction starts."""

    def __init__(
        self,
        turns: ProgressTurns,
        make: Callable[[], WriterChannel],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._turns = turns
        self._make = make
        self._in_thread = in_thread
        self._channel: WriterChannel | None = None

    @asynccontextmanager
    async def open(
        self, group: Group, checkpoint: Checkpoint, *, committed: int, start: int, limit_s: float, at: float
    ) -> AsyncIterator[SQLiteTransaction]:
        deadline_s = perf_counter() + limit_s
        turn = self._turns.mine()
        await self._wait_for(turn, limit_s)
        async with AsyncExitStack() as stack:
            stack.callback(turn.release)
            channel = await self._ready()
            stack.callback(channel.listen())
            transaction = SQLiteTransaction(channel, limit_s)
            left_s = deadline_s - perf_counter()
            stack.push_async_callback(_TransactionTimer(transaction, channel, left_s, stack).stop)
            try:
                await transaction.begin(group, checkpoint, committed=committed, start=start, left_s=left_s, at=at)
                yield transaction
                await transaction.commit()
            except BaseException:
                await transaction.roll_back()
                raise

    def shut(self) -> None:
        """Rolls back the open transaction."""
        if self._channel is not None:
            self._channel.shut(StoreUnavailable("The transaction was rolled back because the store was closed."))

    def end(self) -> None:
        """Blocks until the writer process has ended."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.end()

    async def _wait_for(self, turn: asyncio.Lock, limit_s: float) -> None:
        if not turn.locked():
            await turn.acquire()
            return
        try:
            async with asyncio.timeout(limit_s):
                await turn.acquire()
        except TimeoutError:
            raise TransactionTimeout(
                f"The transaction did not begin within {limit_s:.1f} s because other transactions of this instance were"
                " ahead of it; nothing took effect. Process more events per transaction (batch_events), or do less in"
                " it."
            ) from None

    async def _ready(self) -> WriterChannel:
        if self._channel is None or self._channel.closed is not None:
            await self._in_thread(self._renew)
        assert self._channel is not None
        return self._channel

    def _renew(self) -> None:
        """Reuses a channel that an earlier, cancelled caller started."""
        if self._channel is None or self._channel.closed is not None:
            self.end()
            self._channel = self._make()


class _TransactionTimer:
    """Ends a transaction at its deadline and lets the next one start, even if its block is still running.

    A writer process that does not answer is killed, even if it is stopped.
    """

    def __init__(
        self, transaction: SQLiteTransaction, channel: WriterChannel, left_s: float, stack: AsyncExitStack
    ) -> None:
        self._transaction = transaction
        self._channel = channel
        self._stack = stack
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._expire)

    async def stop(self) -> None:
        """Called when the block was left in time. A pending task must not run: another transaction may use the
        channel."""
        self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _expire(self) -> None:
        self._task = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        """Releases everything on the stack once the transaction is over."""
        async with self._stack.pop_all():
            try:
                async with asyncio.timeout(GRACE_S):
                    await self._transaction.time_out()
            except TimeoutError:
                self._channel.kill()
