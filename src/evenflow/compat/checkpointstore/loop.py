"""The event loop behind the checkpoint stores of plain code: one thread for all of them in a process.

It is started by the first call, so that a program may fork before it, and ended with the last store that used it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that wait for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evenflow-checkpointstore", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            work.close()
            raise Misconfigured("This checkpoint store was used before the process forked: make one in each process.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Lender:
    """Lends the one thread to those who need it, for as long as somebody does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: LoopThread | None = None
        self._users = 0

    def borrow(self) -> LoopThread:
        with self._lock:
            if self._lent is None:
                self._lent = LoopThread()
            self._users += 1
            return self._lent

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._lent is not None:
                self._lent.end()
                self._lent = None


THREAD = Lender()
