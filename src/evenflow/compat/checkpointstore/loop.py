"""The event loop of the blocking checkpoint stores: one thread for all stores of a process.

The first call starts it, so that a program may fork before. It ends with the last store that uses it.
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
    """Runs coroutines on an event loop for callers in other threads, which wait for the result."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evenflow-checkpointstore", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            work.close()
            raise Misconfigured(
                "This checkpoint store was used before the process forked; create a new one in each process."
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SharedLoopThread:
    """One loop thread, shared by all stores that use it and stopped with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._users = 0

    def acquire(self) -> LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            self._users += 1
            return self._thread

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._thread is not None:
                self._thread.end()
                self._thread = None


SHARED_THREAD = SharedLoopThread()
