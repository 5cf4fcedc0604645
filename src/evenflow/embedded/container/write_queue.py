"""The write queue of a container, with group commit: one thread writes for all that wait, in one durable transaction.

An operation either raises an `EvenflowError` before it writes anything, and the other operations still commit, or it
writes. `write` returns only after the commit is durable and the bell was rung, so its caller can read what it wrote.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from evenflow.errors import EvenflowError, SourceUnavailable
from evenflow.local.database import immediate

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import apsw

    from evenflow.embedded.container.metadata import ContainerMetadata

T = TypeVar("T")

GROUP_OPERATIONS = 256
"""How many operations share a transaction at most, so that it does not keep the write lock for long."""


class WriteTransaction:
    """The transaction that an operation runs in."""

    def __init__(self, connection: apsw.Connection, metadata: ContainerMetadata, now_us: int) -> None:
        self.connection = connection
        self.metadata = metadata
        self.now_us = now_us
        self.slots_to_ring: set[int] = set()
        """The bell's slots to ring after the commit."""


class _QueuedWrite(Generic[T]):
    def __init__(self, operation: Callable[[WriteTransaction], T]) -> None:
        self.operation = operation
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self, transaction: WriteTransaction) -> None:
        try:
            self.result, self.error = self.operation(transaction), None
        except EvenflowError as error:
            self.error = error


class WriteQueue:
    """Runs operations from any number of threads, grouped into transactions."""

    def __init__(
        self, begin: Callable[[], AbstractContextManager[WriteTransaction]], ring: Callable[[set[int]], None]
    ) -> None:
        """`begin` provides the transaction's context and translates SQLite's errors."""
        self._begin = begin
        self._ring = ring
        self._lock = Lock()
        self._writer_lock = Lock()
        self._waiting: list[_QueuedWrite[Any]] = []

    def write(self, operation: Callable[[WriteTransaction], T]) -> T:
        task = _QueuedWrite(operation)
        with self._lock:
            self._waiting.append(task)
        while not task.done:
            with self._writer_lock:
                # Another thread may have written this operation while this one waited for the lock.
                if not task.done:
                    self._write_group()
        if task.error is not None:
            raise task.error
        return task.result  # type: ignore[return-value]

    def _write_group(self) -> None:
        with self._lock:
            group, self._waiting = self._waiting[:GROUP_OPERATIONS], self._waiting[GROUP_OPERATIONS:]
        for task in group:
            task.error = SourceUnavailable("The writing thread was interrupted. Check whether the write took effect.")
        try:
            self._write_all(group)
        finally:
            for task in group:
                task.done = True

    def _write_all(self, group: list[_QueuedWrite[Any]]) -> None:
        try:
            with self._begin() as transaction, immediate(transaction.connection):
                for task in group:
                    task.run(transaction)
        except EvenflowError as error:
            for task in group:
                task.error = _copy_of(error)
        except Exception as error:
            if len(group) == 1:
                group[0].error = error
                return
            # One operation failed unexpectedly. Write them one by one, so that the others succeed.
            for task in group:
                self._write_all([task])
        else:
            self._ring(transaction.slots_to_ring)


def _copy_of(error: EvenflowError) -> EvenflowError:
    """A copy of the error for each writer, since every raise adds to an error's traceback."""
    copy = type(error)(str(error))
    copy.__cause__ = error
    return copy
