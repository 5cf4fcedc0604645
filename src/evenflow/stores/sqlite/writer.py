"""The process that holds the write lock on `progress.sqlite` while an application's transaction is open.

SQLite's write lock belongs to a process. If the application's process held it and stopped in the middle of a
transaction, every other partition would wait. So a separate process takes the lock and runs the application's
statements. It rolls back on its own if the transaction's deadline passes, or if the application's process is stopped or
has ended. Later requests for that transaction are answered with the reason.

The process imports as little as possible and ends when its socket is closed. `guard` decides which statements are
allowed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import apsw

from evenflow.errors import EvenflowError, Misconfigured, TransactionTimeout
from evenflow.local.database import immediate
from evenflow.stores.sqlite import checkpoints as sqlite_progress
from evenflow.stores.sqlite.file import StoreFile
from evenflow.stores.sqlite.folder import StoreFolder, guarded
from evenflow.stores.sqlite.guard import StatementGuard
from evenflow.stores.sqlite.messages import (
    CHUNK_BYTES,
    BeginTransaction,
    CommitTransaction,
    ExecuteStatement,
    FrameBuffer,
    RollBackTransaction,
    WriterAnswer,
    decode_request,
    fault_of,
    framed,
    timed_out,
)
from evenflow.stores.sqlite.schema import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.stores.sqlite.messages import Row, WriterRequest

POLL_S = 0.2
"""How often it checks that an idle application process is still running."""
STOPPED_POLLS = 2
"""This many checks in a row must find it stopped, because a debugger or profiler may stop a process briefly."""
IDLE_POLL_S = 5.0
ROWS_PER_CHECK = 256

ENDED = "This transaction has ended. Execute statements inside its block."
LEFT_OUT = (
    "A statement rolled back the whole transaction ({}); nothing took effect. Remove OR ROLLBACK and RAISE(ROLLBACK)."
)


class ApplicationGone(Exception):
    """The application's process has ended or closed its store."""


class TransactionAborted(Exception):
    """The application left the block with an exception."""


class ApplicationProcess:
    """The connection to the application's process."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        """`pid` is 0 if it is this process."""
        self._end = end
        self._pid = pid
        self._frames = FrameBuffer()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, round(POLL_S * 1_000_000)))

    def request(self, wait_s: float) -> WriterRequest | None:
        """The next request, or None if none arrives in time. Raises ApplicationGone."""
        while (body := self._frames.body()) is None:
            if wait_s < POLL_S and not self._poll.poll(max(0.0, wait_s) * 1000):
                return None
            try:
                data = self._end.recv(CHUNK_BYTES)  # waits up to POLL_S; a poll before each would cost a system call
            except BlockingIOError:
                if not self._poll.poll(max(0.0, wait_s - POLL_S) * 1000):
                    return None
                continue
            except OSError as error:
                raise ApplicationGone from error
            if not data:
                raise ApplicationGone
            self._frames.feed(data)
        request: WriterRequest = decode_request(body)
        return request

    def answer(self, answer: WriterAnswer) -> None:
        try:
            self._end.sendall(framed(answer))
        except OSError as error:
            raise ApplicationGone from error

    def has_message(self) -> bool:
        """During a statement the only message is a rollback; the connection may also close."""
        return len(self._frames) > 0 or bool(self._poll.poll(0))

    def is_gone(self) -> bool:
        """Checked separately, because a fork of that process may keep its end of the socket open."""
        return self._pid != 0 and os.getppid() != self._pid

    def is_stopped(self) -> bool:
        """Stopped by a signal or a debugger. Without /proc, only the transaction's deadline applies."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(") ")[2][:1] in ("T", "t")
        except OSError:
            return False


class TransactionLimits(NamedTuple):
    """The time limit of a transaction."""

    limit_s: float
    deadline_s: float


class TransactionServer:
    def __init__(self, file: StoreFile, application: ApplicationProcess) -> None:
        self._file = file
        self._application = application
        self._asked: WriterRequest | None = None
        """The unanswered request."""
        self._ended: Exception = Misconfigured(ENDED)
        """The error for statements after the end."""
        self._broken: EvenflowError | None = None
        """Why this transaction can no longer commit."""

    def run(self) -> None:
        """Serves requests until the application's process is gone."""
        try:
            while not self._application.is_gone():
                request = self._application.request(IDLE_POLL_S)
                if isinstance(request, BeginTransaction):
                    self._transact(request)
                elif isinstance(request, RollBackTransaction):
                    self._application.answer(WriterAnswer(request.number))
                elif request is not None:
                    self._application.answer(WriterAnswer(request.number, fault=fault_of(self._ended)))
        except ApplicationGone:
            pass
        finally:
            self._file.close()

    def _transact(self, begin: BeginTransaction) -> None:
        self._asked, self._broken, self._ended = begin, None, Misconfigured(ENDED)
        limits = TransactionLimits(begin.limit_s, perf_counter() + begin.left_s)
        try:
            self._file.do(lambda connection: self._serve(connection, begin, limits))
        except ApplicationGone:
            raise
        except TransactionAborted:
            self._reply(None if isinstance(self._asked, RollBackTransaction) else self._ended)
        except Exception as error:
            self._ended = error
            self._reply(None if isinstance(self._asked, RollBackTransaction) else error)
        else:
            self._reply()

    def _serve(self, connection: apsw.Connection, begin: BeginTransaction, limits: TransactionLimits) -> None:
        """Runs from BEGIN to COMMIT. The commit is answered after this returns."""
        self._check_deadline(limits)
        with immediate(connection):
            record = sqlite_progress.admit(
                connection, begin.group, begin.checkpoint, committed=begin.committed, start=begin.start
            )
            self._reply()
            guard = StatementGuard()
            with guard.guarding(
                connection, lambda: perf_counter() >= limits.deadline_s or self._application.has_message()
            ):
                while isinstance(asked := self._next(limits), ExecuteStatement):
                    self._execute(connection, asked, guard, limits)
            if not isinstance(asked, CommitTransaction):
                raise TransactionAborted
            self._check_deadline(limits)
            if self._broken is not None:
                raise self._broken
            sqlite_progress.keep(connection, begin.group, record, begin.checkpoint, begin.at)

    def _reply(self, error: Exception | None = None, rows: list[Row] | None = None) -> None:
        if self._asked is not None:
            number, self._asked = self._asked.number, None
            self._application.answer(WriterAnswer(number, rows or [], fault_of(error) if error is not None else None))

    def _next(self, limits: TransactionLimits) -> WriterRequest:
        """The next request, while the application's process runs and the deadline has not passed."""
        stopped = 0
        while stopped < STOPPED_POLLS:
            left_s = limits.deadline_s - perf_counter()
            if (request := self._application.request(min(POLL_S, left_s))) is not None:
                self._asked = request
                return request
            if left_s <= POLL_S:
                raise timed_out(limits.limit_s)
            if self._application.is_gone():
                raise ApplicationGone
            stopped = stopped + 1 if self._application.is_stopped() else 0
        raise TransactionTimeout(
            "This process was stopped inside a transaction by a signal or a debugger. The transaction was rolled back"
            " so that other partitions can continue; nothing took effect."
        )

    def _execute(
        self, connection: apsw.Connection, asked: ExecuteStatement, guard: StatementGuard, limits: TransactionLimits
    ) -> None:
        try:
            self._check_deadline(limits)
            if self._broken is not None:
                raise self._broken
            rows = self._run(connection, asked, guard, limits)
        except (TransactionTimeout, TransactionAborted):
            raise
        except Exception as error:
            self._reply(error)
        else:
            self._reply(rows=rows)

    def _run(
        self, connection: apsw.Connection, asked: ExecuteStatement, guard: StatementGuard, limits: TransactionLimits
    ) -> list[Row]:
        try:
            with guarded(self._file.path), guard.explained():
                if asked.many:
                    return connection.executemany(asked.statement, self._in_time(asked.rows, limits)).fetchall()
                return connection.execute(asked.statement, asked.rows[0]).fetchall()
        except EvenflowError as error:
            self._check_deadline(limits)  # the deadline may have interrupted it
            if self._application.has_message():
                raise TransactionAborted from error
            if not connection.in_transaction:
                self._broken = error
            raise
        except apsw.Error as error:
            if not connection.in_transaction:
                self._broken = Misconfigured(LEFT_OUT.format(error))
            raise

    def _in_time(self, rows: list[Row], limits: TransactionLimits) -> Iterator[Row]:
        """Checks the deadline between short statements, none of which runs long enough to be interrupted."""
        for number, row in enumerate(rows):
            if number % ROWS_PER_CHECK == 0:
                self._check_deadline(limits)
                if self._application.has_message():
                    raise TransactionAborted
            yield row

    def _check_deadline(self, limits: TransactionLimits) -> None:
        if perf_counter() >= limits.deadline_s:
            raise timed_out(limits.limit_s)


def serve(end: socket.socket, pid: int, folder: Path, busy_timeout_s: float) -> None:
    """Serves until the other end of the socket is closed."""
    store = StoreFolder(folder, busy_timeout_s=busy_timeout_s, create=True)
    with end:
        TransactionServer(StoreFile(store, PROGRESS), ApplicationProcess(end, pid)).run()


def main(descriptor: int, pid: int, folder: str, busy_timeout_s: float) -> None:
    """The main function of the writer process. It ignores signals to its group, because the application ends it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(socket.socket(fileno=descriptor), pid, Path(folder), busy_timeout_s)
