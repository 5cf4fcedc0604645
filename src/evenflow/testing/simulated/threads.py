"""Threads of a simulated process, on which its plain handlers run.

Each is a thread of the operating system, but only one of all runs at a time: it is given the baton at a moment of
virtual time, and hands it back where it waits. So the real runtime runs unchanged, and the seed draws how threads and
loops interleave.
A thread goes on while its loop is blocked; it stands still while its process does, and for good when that has died.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

    from evenflow.testing.simulated.timeline import ProcessLoop, Timeline

T = TypeVar("T")

LATE = ((0.85, 0.002), (0.97, 0.1), (1.0, 3.0))
"""How long a thread waits for the processor at most, in what share of all cases."""
PREEMPTED = 0.05
"""How often it is interrupted where it looks at the clock."""


class ThreadEnds(BaseException):
    """The world is over."""


class SimulatedThreads:
    """The contract of runtime.threads.ThreadSystem, for one process."""

    def __init__(self, timeline: Timeline, loop: ProcessLoop, rng: random.Random, *, calm: bool = False) -> None:
        self._timeline, self._loop, self._rng = timeline, loop, rng
        self._threads: list[_Thread] = []
        self.running: _Thread | None = None
        """The one that has the baton."""
        self.calm = calm
        """Threads are hardly ever late any more."""

    # --- what the runtime asks for
    def start(self, target: Callable[[], None], name: str) -> None:
        thread = _Thread(self, self._timeline, target, name)
        self._threads.append(thread)
        self.wake(thread)

    def signal(self) -> _Signal:
        return _Signal(self)

    def wait_for(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        thread = self._here()
        if thread.ending:
            work.close()
            raise ThreadEnds
        future = asyncio.run_coroutine_threadsafe(work, loop)
        future.add_done_callback(lambda _: self.wake(thread))
        while not future.done():
            thread.wait()
        return future.result()

    # --- what an application does on a thread
    def sleep(self, seconds: float) -> None:
        thread = self._here()
        self._timeline.push(self._timeline.now_s + seconds, thread.piece(self._loop), self._loop)
        thread.wait()

    def freeze(self, seconds: float) -> None:
        """The process is stopped right here."""
        self._loop.stall()
        self._timeline.push(self._timeline.now_s + seconds, self._loop.resume)
        self.sleep(0.0)

    def linger(self) -> None:
        """Where others may come first: before it looks at the clock, or after an application's function."""
        if not self.calm and self._rng.random() < PREEMPTED:
            self.sleep(self._late_s())

    # --- inside
    def _here(self) -> _Thread:
        assert self.running is not None, "this belongs on a thread"
        return self.running

    def wake(self, thread: _Thread) -> None:
        self._timeline.push(self._timeline.now_s + self._late_s(), thread.piece(self._loop), self._loop)

    def _late_s(self) -> float:
        chance = self._rng.random()
        most_s = LATE[0][1] if self.calm else next(most_s for share, most_s in LATE if chance < share)
        return self._rng.uniform(0.0, most_s)

    def end(self) -> None:
        """At the world's end, whatever they are in the middle of."""
        for thread in self._threads:
            thread.end()


class ThreadPiece(asyncio.Handle):
    """Lets a thread go on. It is not held up by a loop that is blocked, only by a process that is stopped."""


class _Thread:
    def __init__(self, threads: SimulatedThreads, timeline: Timeline, target: Callable[[], None], name: str) -> None:
        self._threads, self._timeline, self._target = threads, timeline, target
        self._baton, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_over = self.ending = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def piece(self, loop: ProcessLoop) -> ThreadPiece:
        return ThreadPiece(self._go_on, (), loop)

    def _go_on(self) -> None:
        """Called by the timeline; returns when the thread waits, or has ended."""
        if self._is_over:
            return
        self._threads.running = self
        self._baton.release()
        self._back.acquire()
        self._threads.running = None
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Called on the thread, until it is woken."""
        if not self.ending:
            self._back.release()
            self._baton.acquire()
        if self.ending:
            raise ThreadEnds

    def end(self) -> None:
        self.ending = True
        self._go_on()
        self._thread.join()

    def _live(self) -> None:
        self._baton.acquire()
        self._timeline.threads.add(threading.get_ident())
        try:
            if not self.ending:
                self._target()
        except ThreadEnds:
            pass
        except BaseException as error:
            self._error = error
        self._timeline.threads.discard(threading.get_ident())
        self._is_over = True
        self._back.release()


class _Signal:
    """A semaphore for which one thread waits."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._count = 0
        self._waiter: _Thread | None = None

    def acquire(self) -> None:
        thread = self._threads._here()
        while not self._count:
            self._waiter = thread
            thread.wait()
        self._waiter = None
        self._count -= 1

    def release(self) -> None:
        self._count += 1
        if self._waiter is not None:
            self._threads.wake(self._waiter)


def drive(call: Coroutine[Any, Any, None]) -> None:
    """Run what waits on its thread alone, and never for the loop."""
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("a plain handler awaited something")
