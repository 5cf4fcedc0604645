"""Daemon threads for plain handlers: as many as there are calls at the same time, reused, never waited for at exit.

A pool of the standard library joins its threads when the interpreter ends, so one handler that hangs would keep a
process from leaving inside its deadline.

What a thread is, and how it waits, is the one part that the simulated world replaces.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Signal(Protocol):
    """What a thread waits for, as many times as it is given."""

    def acquire(self) -> object: ...
    def release(self) -> None: ...


class ThreadSystem(Protocol):
    """Starts threads, and makes them wait."""

    def start(self, target: Callable[[], None], name: str) -> None: ...

    def signal(self) -> Signal: ...

    def wait_for(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        """Called on a thread: run this on the loop, and block until it is done."""
        ...


@runtime_checkable
class OwnThreads(Protocol):
    """A clock with threads of its own: those of the operating system do not run in virtual time."""

    threads: ThreadSystem


class SystemThreads:
    def start(self, target: Callable[[], None], name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()

    def signal(self) -> Signal:
        return threading.Semaphore(0)

    def wait_for(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()


class Threads:
    def __init__(self, name: str, system: ThreadSystem | None = None) -> None:
        self._name = name
        self._system = system or SystemThreads()
        self.wait_for = self._system.wait_for
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
        worker = _Worker(self._system, f"{self._name}-{len(self._workers) + 1}", self._is_free)
        self._workers.append(worker)
        return worker

    def _is_free(self, worker: _Worker) -> None:
        if self._closed:
            worker.end()
        else:
            self._idle.append(worker)


class _Worker:
    def __init__(self, system: ThreadSystem, name: str, is_free: Callable[[_Worker], None]) -> None:
        self._is_free = is_free
        self._work: tuple[Callable[..., Any], tuple[Any, ...], asyncio.AbstractEventLoop, asyncio.Future[Any]] | None
        self._work = None
        self._ready = system.signal()
        system.start(self._live, name)

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
