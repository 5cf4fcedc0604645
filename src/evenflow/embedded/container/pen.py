"""Writes to a container: whoever holds the pen writes for all who wait, in one durable transaction.

A step either raises one of our errors before it has written anything, and then the others go on without it; or it
writes. An answer is given only after the commit is durable and the bell was rung, so whoever has seen an answer can
read what it is about.
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

    from evenflow.embedded.container.facts import ContainerFacts

T = TypeVar("T")

GROUP_STEPS = 256
"""So many share a transaction at most, so that none holds its lock for long."""


class Turn:
    """What a step is given: one transaction."""

    def __init__(self, connection: apsw.Connection, facts: ContainerFacts, now_us: int) -> None:
        self.connection = connection
        self.facts = facts
        self.now_us = now_us
        self.rung: set[int] = set()
        """The slots of the bell that are rung after the commit."""


class _Task(Generic[T]):
    def __init__(self, step: Callable[[Turn], T]) -> None:
        self.step = step
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self, turn: Turn) -> None:
        try:
            self.result, self.error = self.step(turn), None
        except EvenflowError as error:
            self.error = error


class Pen:
    """Any number of threads may write through it."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Turn]], ring: Callable[[set[int]], None]) -> None:
        """`begin` gives what a transaction is made in; SQLite's errors leave it as ours."""
        self._begin = begin
        self._ring = ring
        self._lock = Lock()
        self._pen = Lock()
        self._waiting: list[_Task[Any]] = []

    def write(self, step: Callable[[Turn], T]) -> T:
        task = _Task(step)
        with self._lock:
            self._waiting.append(task)
        while not task.done:
            with self._pen:
                # Whoever had it before may have written this one, too.
                if not task.done:
                    self._write_group()
        if task.error is not None:
            raise task.error
        return task.result  # type: ignore[return-value]

    def _write_group(self) -> None:
        with self._lock:
            group, self._waiting = self._waiting[:GROUP_STEPS], self._waiting[GROUP_STEPS:]
        for task in group:
            task.error = SourceUnavailable("The thread that wrote was interrupted. Look whether it was done.")
        try:
            self._write_all(group)
        finally:
            for task in group:
                task.done = True

    def _write_all(self, group: list[_Task[Any]]) -> None:
        try:
            with self._begin() as turn, immediate(turn.connection):
                for task in group:
                    task.run(turn)
        except EvenflowError as error:
            for task in group:
                task.error = _own(error)
        except Exception as error:
            if len(group) == 1:
                group[0].error = error
                return
            # One of them could not be written at all; the others must not suffer for it.
            for task in group:
                self._write_all([task])
        else:
            self._ring(turn.rung)


def _own(error: EvenflowError) -> EvenflowError:
    """An error of one's own for each writer: a raised one collects the traceback of whoever raises it."""
    own = type(error)(str(error))
    own.__cause__ = error
    return own
