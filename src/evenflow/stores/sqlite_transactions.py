"""One transaction of an application in `progress.sqlite`: its effects and a checkpoint, durable together or not at all.

A transaction has the file's thread for itself, from BEGIN to COMMIT. So whatever else is asked of the file waits in
line behind it and never becomes part of it, and the deadline is kept by that thread alone: also when the event loop is
blocked, or gone. What the application may not say is decided in `sqlite_guard`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import apsw

from evenflow.errors import EvenflowError, Misconfigured, StoreUnavailable, TransactionTimeout
from evenflow.local.database import immediate
from evenflow.stores.sqlite_files import guarded
from evenflow.stores.sqlite_guard import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from evenflow.model import Checkpoint

Rows: TypeAlias = "list[tuple[object, ...]]"


class _Statement(NamedTuple):
    work: Callable[[apsw.Connection], Rows]
    answer: Future[Rows]


class _GivenUp(StoreUnavailable):
    """The transaction was rolled back, because it was cancelled, or the store was closed."""


class SQLiteTransaction:
    """The contract of Transaction, on the event loop; and what serves it, on the file's thread."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._limit_s = limit_s
        self._deadline_s = perf_counter() + limit_s
        self._requests: SimpleQueue[_Statement | None] = SimpleQueue()
        self._door = Lock()
        self._ended: EvenflowError | None = None
        """Why nothing more is taken in; under `_door`, so that no statement waits for an answer for ever."""
        self._broken: EvenflowError | None = None
        """Why nothing of this may be committed any more."""
        self._given_up = False
        self._guard = Guard()
        self.begun: Future[None] = Future()

    # --- on the event loop
    async def execute(self, statement: str, values: Sequence[object] = ()) -> Rows:
        given = tuple(values)
        return await self._ask(lambda file: file.execute(statement, given).fetchall())

    async def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        given = [tuple(row) for row in rows]  # here: an iterator of the application's has no place on our thread
        await self._ask(lambda file: file.executemany(statement, self._in_time(given)).fetchall())

    async def _ask(self, work: Callable[[apsw.Connection], Rows]) -> Rows:
        answer: Future[Rows] = Future()
        self._put(_Statement(work, answer))
        return await asyncio.wrap_future(answer)

    def _put(self, request: _Statement | None) -> None:
        with self._door:
            if self._ended is not None:
                raise self._ended
            self._requests.put(request)

    def commit(self) -> None:
        """The block has ended well. Raises when the transaction is over already."""
        self._put(None)

    def give_up(self) -> None:
        """The block has not. What runs now is interrupted, and all is rolled back."""
        self._given_up = True
        with self._door:
            if self._ended is None:
                self._requests.put(None)

    # --- on the file's thread
    def serve(
        self,
        connection: apsw.Connection,
        admit: Callable[[apsw.Connection], Checkpoint],
        keep: Callable[[apsw.Connection, Checkpoint], None],
    ) -> None:
        """All of it, from BEGIN to COMMIT. Raises what kept it from being committed, unless it was given up."""
        why: EvenflowError = Misconfigured("This transaction has ended: a statement belongs inside the block.")
        try:
            self._look()
            with immediate(connection):
                record = admit(connection)
                self.begun.set_result(None)
                self._converse(connection)
                keep(connection, record)
        except _GivenUp as error:
            why = error
        except TransactionTimeout as error:
            why = error
            raise
        finally:
            self._end(why)

    def _converse(self, connection: apsw.Connection) -> None:
        """Statement by statement, until the block has ended."""
        with self._guard.over(connection, self._must_stop):
            while (statement := self._next()) is not None:
                self._answer(connection, statement)
        self._look()
        if self._broken is not None:
            raise self._broken

    def _next(self) -> _Statement | None:
        try:
            return self._requests.get(timeout=max(0.0, self._deadline_s - perf_counter()))
        except Empty:
            raise self._timeout() from None

    def _answer(self, connection: apsw.Connection, statement: _Statement) -> None:
        if not statement.answer.set_running_or_notify_cancel():
            return
        try:
            self._look()
            if self._broken is not None:
                raise self._broken
            rows = self._run(connection, statement.work)
        except BaseException as error:
            statement.answer.set_exception(error)
            if isinstance(error, TransactionTimeout):
                raise
        else:
            statement.answer.set_result(rows)

    def _run(self, connection: apsw.Connection, work: Callable[[apsw.Connection], Rows]) -> Rows:
        try:
            with guarded(self._path), self._guard.understood():
                return work(connection)
        except EvenflowError as error:
            self._look()  # it may have been interrupted because of that
            if not connection.in_transaction:
                self._broken = error
            raise
        except apsw.Error as error:
            if not connection.in_transaction:
                self._broken = Misconfigured(
                    f"A statement rolled the whole transaction back ({error}). Nothing of it took effect: leave out"
                    " OR ROLLBACK and RAISE(ROLLBACK)."
                )
            raise

    def _in_time(self, rows: list[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
        """Many short statements one after the other: none of them is long enough to be interrupted."""
        for row in rows:
            self._look()
            yield row

    def _must_stop(self) -> bool:
        return self._given_up or perf_counter() >= self._deadline_s

    def _look(self) -> None:
        if self._given_up:
            raise _GivenUp
        if perf_counter() >= self._deadline_s:
            raise self._timeout()

    def _timeout(self) -> TransactionTimeout:
        return TransactionTimeout(
            f"The transaction was not over after {self._limit_s:.1f} s, and was rolled back: nothing of it took effect."
            " Others wait for it, and a lease does not last longer: do what takes long before the block begins, and"
            " give it fewer events (batch_events)."
        )

    def _end(self, why: EvenflowError) -> None:
        with self._door:
            self._ended = self._broken or why
        while True:
            try:
                left = self._requests.get_nowait()
            except Empty:
                return
            if left is not None and left.answer.set_running_or_notify_cancel():
                left.answer.set_exception(self._ended)


async def begun(transaction: SQLiteTransaction, served: asyncio.Future[None]) -> None:
    """Until the application may write; or what kept it from beginning."""
    beginning = asyncio.ensure_future(asyncio.wrap_future(transaction.begun))
    try:
        await asyncio.wait([beginning, served], return_when=asyncio.FIRST_COMPLETED)
    finally:
        beginning.cancel()
    if not transaction.begun.done():
        await served
        raise StoreUnavailable("The transaction did not begin: the store was closed.")


async def ended(transaction: SQLiteTransaction, served: asyncio.Future[None]) -> None:
    """Rolled back, or never begun: then it gives up its place in the line."""
    transaction.give_up()
    if transaction.begun.done():
        await asyncio.wait([served])
    else:
        served.cancel()
