"""The process that holds `progress.sqlite` locked while a transaction of an application is open.

SQLite's write lock belongs to a process, and the application's own may stop in the middle of a transaction: then every
other partition would wait for it. So a process of the store's takes the lock, runs what the application asks for, and
rolls back by itself when the transaction's time is over, when the application's process is stopped, or gone. What is
asked of the transaction afterwards is answered with the reason.

It imports as little as it can, and lives as long as the other end of its socket. What the application may not say is
decided in `sqlite_guard`.
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
from evenflow.stores.sqlite.files import StoreFolder, guarded
from evenflow.stores.sqlite.guard import Guard
from evenflow.stores.sqlite.messages import (
    CHUNK_BYTES,
    Answer,
    Begin,
    Commit,
    Execute,
    Frames,
    RollBack,
    decode_request,
    fault_of,
    framed,
    timed_out,
)
from evenflow.stores.sqlite.schema import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.stores.sqlite.messages import Request, Row

LOOK_S = 0.2
"""How often it looks whether the application's process runs, while that says nothing."""
STOPPED_LOOKS = 2
"""So many looks in a row must find it stopped: a debugger or a profiler may stop a process for a moment."""
IDLE_LOOK_S = 5.0
ROWS_A_LOOK = 256

ENDED = "This transaction has ended: a statement belongs inside the block."
LEFT_OUT = (
    "A statement rolled the whole transaction back ({}). Nothing of it took effect: leave out OR ROLLBACK and"
    " RAISE(ROLLBACK)."
)


class Gone(Exception):
    """The application's process has ended, or closed its store."""


class GivenUp(Exception):
    """The block was left by an exception."""


class Client:
    """The application's process, as seen from here."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        """`pid` 0: it is this very process."""
        self._end = end
        self._pid = pid
        self._frames = Frames()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, round(LOOK_S * 1_000_000)))

    def request(self, wait_s: float) -> Request | None:
        """The next one; None when there is none for so long. It raises Gone."""
        while (body := self._frames.body()) is None:
            if wait_s < LOOK_S and not self._poll.poll(max(0.0, wait_s) * 1000):
                return None
            try:
                data = self._end.recv(CHUNK_BYTES)  # for LOOK_S: a poll before each would be a call of the system more
            except BlockingIOError:
                if not self._poll.poll(max(0.0, wait_s - LOOK_S) * 1000):
                    return None
                continue
            except OSError as error:
                raise Gone from error
            if not data:
                raise Gone
            self._frames.feed(data)
        request: Request = decode_request(body)
        return request

    def answer(self, answer: Answer) -> None:
        try:
            self._end.sendall(framed(answer))
        except OSError as error:
            raise Gone from error

    def has_spoken(self) -> bool:
        """During a statement it only speaks to give up, or by going away."""
        return len(self._frames) > 0 or bool(self._poll.poll(0))

    def is_gone(self) -> bool:
        """A copy of that process may still have its end of the socket open."""
        return self._pid != 0 and os.getppid() != self._pid

    def is_stopped(self) -> bool:
        """By a signal or a debugger. Where there is no /proc, the transaction's limit alone bounds it."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(") ")[2][:1] in ("T", "t")
        except OSError:
            return False


class Limits(NamedTuple):
    """When a transaction must be over."""

    limit_s: float
    deadline_s: float


class Writer:
    def __init__(self, file: StoreFile, client: Client) -> None:
        self._file = file
        self._client = client
        self._asked: Request | None = None
        """What has no answer yet."""
        self._ended: Exception = Misconfigured(ENDED)
        """What a statement is told that comes after the end."""
        self._broken: EvenflowError | None = None
        """Why nothing of this may be committed any more."""

    def run(self) -> None:
        """Until the application's process is gone."""
        try:
            while not self._client.is_gone():
                request = self._client.request(IDLE_LOOK_S)
                if isinstance(request, Begin):
                    self._transact(request)
                elif isinstance(request, RollBack):
                    self._client.answer(Answer(request.number))
                elif request is not None:
                    self._client.answer(Answer(request.number, fault=fault_of(self._ended)))
        except Gone:
            pass
        finally:
            self._file.close()

    def _transact(self, begin: Begin) -> None:
        self._asked, self._broken, self._ended = begin, None, Misconfigured(ENDED)
        limits = Limits(begin.limit_s, perf_counter() + begin.left_s)
        try:
            self._file.do(lambda connection: self._serve(connection, begin, limits))
        except Gone:
            raise
        except GivenUp:
            self._reply(None if isinstance(self._asked, RollBack) else self._ended)
        except Exception as error:
            self._ended = error
            self._reply(None if isinstance(self._asked, RollBack) else error)
        else:
            self._reply()

    def _serve(self, connection: apsw.Connection, begin: Begin, limits: Limits) -> None:
        """From BEGIN to COMMIT, which is answered when this has returned."""
        self._look(limits)
        with immediate(connection):
            record = sqlite_progress.admit(
                connection, begin.group, begin.checkpoint, committed=begin.committed, start=begin.start
            )
            self._reply()
            guard = Guard()
            with guard.over(connection, lambda: perf_counter() >= limits.deadline_s or self._client.has_spoken()):
                while isinstance(asked := self._next(limits), Execute):
                    self._execute(connection, asked, guard, limits)
            if not isinstance(asked, Commit):
                raise GivenUp
            self._look(limits)
            if self._broken is not None:
                raise self._broken
            sqlite_progress.keep(connection, begin.group, record, begin.checkpoint, begin.at)

    def _reply(self, error: Exception | None = None, rows: list[Row] | None = None) -> None:
        if self._asked is not None:
            number, self._asked = self._asked.number, None
            self._client.answer(Answer(number, rows or [], fault_of(error) if error is not None else None))

    def _next(self, limits: Limits) -> Request:
        """What is asked next, while the application's process runs and there is time."""
        stopped = 0
        while stopped < STOPPED_LOOKS:
            left_s = limits.deadline_s - perf_counter()
            if (request := self._client.request(min(LOOK_S, left_s))) is not None:
                self._asked = request
                return request
            if left_s <= LOOK_S:
                raise timed_out(limits.limit_s)
            if self._client.is_gone():
                raise Gone
            stopped = stopped + 1 if self._client.is_stopped() else 0
        raise TransactionTimeout(
            "This process was stopped inside a transaction (by a signal, or a debugger), which was rolled back so that"
            " other partitions go on: nothing of it took effect."
        )

    def _execute(self, connection: apsw.Connection, asked: Execute, guard: Guard, limits: Limits) -> None:
        try:
            self._look(limits)
            if self._broken is not None:
                raise self._broken
            rows = self._run(connection, asked, guard, limits)
        except (TransactionTimeout, GivenUp):
            raise
        except Exception as error:
            self._reply(error)
        else:
            self._reply(rows=rows)

    def _run(self, connection: apsw.Connection, asked: Execute, guard: Guard, limits: Limits) -> list[Row]:
        try:
            with guarded(self._file.path), guard.understood():
                if asked.many:
                    return connection.executemany(asked.statement, self._in_time(asked.rows, limits)).fetchall()
                return connection.execute(asked.statement, asked.rows[0]).fetchall()
        except EvenflowError as error:
            self._look(limits)  # it may have been interrupted because of that
            if self._client.has_spoken():
                raise GivenUp from error
            if not connection.in_transaction:
                self._broken = error
            raise
        except apsw.Error as error:
            if not connection.in_transaction:
                self._broken = Misconfigured(LEFT_OUT.format(error))
            raise

    def _in_time(self, rows: list[Row], limits: Limits) -> Iterator[Row]:
        """Many short statements one after the other: none of them is long enough to be interrupted."""
        for number, row in enumerate(rows):
            if number % ROWS_A_LOOK == 0:
                self._look(limits)
                if self._client.has_spoken():
                    raise GivenUp
            yield row

    def _look(self, limits: Limits) -> None:
        if perf_counter() >= limits.deadline_s:
            raise timed_out(limits.limit_s)


def serve(end: socket.socket, pid: int, folder: Path, busy_timeout_s: float) -> None:
    """Until the other end of the socket is closed."""
    store = StoreFolder(folder, busy_timeout_s=busy_timeout_s, create=True)
    with end:
        Writer(StoreFile(store, PROGRESS), Client(end, pid)).run()


def main(descriptor: int, pid: int, folder: str, busy_timeout_s: float) -> None:
    """A process of its own. It does not end with the terminal or with its service: the application's does so first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(socket.socket(fileno=descriptor), pid, Path(folder), busy_timeout_s)
