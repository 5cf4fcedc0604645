"""Daemon threads for plain handlers: as many as there are calls at the same time, reused, never waited for at exit.

A pool of the standard library joins its threads when the interpreter ends, so one handler that hangs would keep a
process from leaving inside its deadline.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads:
    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[_Worker] = deque()
        self._workers: list[_Worker] = []
        self._closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run it on a thread and wait. When cancelled, the thread goes on, and its result is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        worker = self._idle.pop() if self._idle else self._start()
        worker.give(function, args, loop, future)
        return await future

    def close(self) -> None:
        """Threads end: the idle ones now, those with a call when it has returned."""
        self._closed = True
        self._idle.clear()
        for worker in self._workers:
            worker.end()

    def _start(self) -> _Worker:
        worker = _Worker(f"{self._name}-{len(self._workers) + 1}", self._is_free)
        self._workers.append(worker)
        return worker

    def _is_free(self, worker: _Worker) -> None:
        if self._closed:
            worker.end()
        else:
            self._idle.append(worker)


class _Worker:
    def __init__(self, name: str, is_free: Callable[[_Worker], None]) -> None:
        self._is_free = is_free
        self._work: tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, asyncio.Future[Any]] | None
        self._work = None
        self._ready = threading.Semaphore(0)
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def give(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        self._work = (function, args, loop, future)
        self._ready.release()

    def end(self) -> None:
        """Now, or when its call has returned, whether the loop that wants the answer still runs or not."""
        self._ready.release()

    def _live(self) -> None:
        while True:
            self._ready.acquire()
            if self._work is None:
                return
            function, args, loop, future = self._work
            self._work = None
            result, error = None, None
            try:
                result = function(*args)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(self._answer, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits for this any more
            del function, args, future, result, error

    def _answer(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._is_free(self)
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError(f"a handler raised {error!r}"))
        else:
            future.set_exception(error)
