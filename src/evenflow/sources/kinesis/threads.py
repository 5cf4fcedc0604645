"""A bounded pool of daemon threads for blocking requests: process exit does not wait for them.

A pool of the standard library joins its threads at interpreter exit, and a request to an unreachable service may block
for longer than a process may take to end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class DaemonThreads:
    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = self._wanted = 0

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a function on a free thread. If this is cancelled, the call completes and its result is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def answer(result: Any, error: Exception | None) -> None:
            self._wanted -= 1
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = None if future.cancelled() else function(*args)
            except Exception as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed, so no task waits for this
                loop.call_soon_threadsafe(answer, result, error)

        self._wanted += 1
        if self._started < min(self._wanted, self._most):
            self._started += 1
            Thread(target=self._work_loop, name=f"{self._name}-{self._started}", daemon=True).start()
        self._work.put(work)
        return await future

    def end(self) -> None:
        """The threads end when the queued calls are done."""
        for _ in range(self._started):
            self._work.put(None)

    def _work_loop(self) -> None:
        while (work := self._work.get()) is not None:
            work()
