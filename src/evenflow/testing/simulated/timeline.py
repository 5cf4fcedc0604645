"""Virtual time for several processes in one thread: each simulated process has an event loop of its own.

All loops put what is to be run on one timeline, which runs it in order of true time, one piece after the other. A
loop that is stalled keeps its pieces until it goes on, as a process does that was stopped by a signal; a loop that is
dead never goes on. A loop's own clock may run a little fast or slow, stand still or leap, and starts anywhere.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from asyncio import events
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from evenflow.testing.simulated.clocks import LoopClock
from evenflow.testing.simulated.threads import ThreadPiece

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")

PIECES_AT_ONCE_MAX = 200_000
"""More than this without time passing is a loop that spins."""
ROUNDING_S, A_MOMENT_S = 1e-6, 1e-9


class TimeStandsStill(RuntimeError):
    """Something spins: it runs again and again without waiting for anything."""


class Timeline:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.threads = {threading.get_ident()}
        """Those that may speak to a loop: this one, and simulated ones."""
        self._heap: list[tuple[float, int, asyncio.Handle | Callable[[], None], ProcessLoop | None]] = []
        self._order = 0

    def push(self, at_s: float, piece: asyncio.Handle | Callable[[], None], loop: ProcessLoop | None = None) -> None:
        """To be run at that true time; `loop` None is the world itself, which is never stalled."""
        self._order += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._order, piece, loop))

    def run_until(self, end_s: float) -> None:
        pieces = 0
        while self._heap and self._heap[0][0] <= end_s:
            at_s, _, piece, loop = heapq.heappop(self._heap)
            pieces = pieces + 1 if at_s == self.now_s else 0
            if pieces > PIECES_AT_ONCE_MAX:
                raise TimeStandsStill(f"at {at_s:.3f} s: {piece}")
            self.now_s = at_s
            if loop is None:
                assert not isinstance(piece, asyncio.Handle)
                piece()
            else:
                assert isinstance(piece, asyncio.Handle)
                loop.take(piece)
        self.now_s = max(self.now_s, end_s)

    @property
    def is_empty(self) -> bool:
        return not self._heap

    def timers_of(self, loop: ProcessLoop) -> list[asyncio.TimerHandle]:
        """In the order in which they would run."""
        ours = sorted(entry[:3] for entry in self._heap if entry[3] is loop)
        return [piece for _, _, piece in ours if isinstance(piece, asyncio.TimerHandle)]


class ProcessLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the runtime needs: timers, tasks and futures; no files, no sockets, no threads."""

    def __init__(
        self, timeline: Timeline, *, rate: float = 1.0, start_s: float = 0.0, clock: LoopClock | None = None
    ) -> None:
        self._timeline = timeline
        self._clock = LoopClock(rate=rate, start_s=start_s) if clock is None else clock
        self._stalls = self._blocks = 0
        self.dead = False
        self._held: deque[asyncio.Handle] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self._clock.at(self._timeline.now_s)

    def take(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        if self.dead or self._stalls > (self._blocks if isinstance(handle, ThreadPiece) else 0):
            self._held.append(handle)
            return
        if not isinstance(handle, asyncio.TimerHandle) or self._is_due(handle):
            self.within(handle._run)

    # --- a clock that does not run evenly
    def _is_due(self, timer: asyncio.TimerHandle) -> bool:
        """A timer comes too soon where the clock stood still meanwhile, and a second time where it leapt."""
        if not timer._scheduled:  # type: ignore[attr-defined]
            return False
        if timer.when() > self.time() + ROUNDING_S:
            self._push(timer)
            return False
        timer._scheduled = False  # type: ignore[attr-defined]
        return True

    def _push(self, timer: asyncio.TimerHandle) -> None:
        at_s, now_s = self._clock.when(timer.when()), self._timeline.now_s
        if at_s <= now_s and timer.when() > self.time():
            # By a rounding error it is not due yet: whoever sets it anew would do so for ever without time passing.
            at_s = now_s + A_MOMENT_S
        self._timeline.push(at_s, timer, self)

    def stand_still(self, seconds: float) -> None:
        """Its clock does, while the process goes on."""
        self._clock.stand_still(self._timeline.now_s, seconds)

    def leap(self, seconds: float) -> None:
        """Its clock leaps ahead, and what is due then is due now."""
        self._clock.leap(self._timeline.now_s, seconds)
        for timer in self._timeline.timers_of(self):
            if not timer.cancelled():
                self._push(timer)

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: neither the process nor its clock goes on."""
        self.stand_still(seconds)
        self.stall()
        self._timeline.push(self._timeline.now_s + seconds, self.resume)

    def within(self, function: Callable[[], T]) -> T:
        """Call it as if from inside this loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return function()
        finally:
            events._set_running_loop(before)

    @property
    def stalled(self) -> bool:
        return self._stalls > 0

    def stall(self) -> None:
        self._stalls += 1

    def resume(self) -> None:
        """Undo one stall; it goes on when all are undone."""
        self._stalls -= 1
        if self._stalls == self._blocks and not self.dead:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, deque()
        for handle in held:
            self._timeline.push(self._timeline.now_s, handle, self)

    def freeze(self, seconds: float, *, loop_alone: bool = False) -> None:
        """Called from inside this loop: the process is stopped right here, while the world goes on. So do its threads,
        if it is the loop alone that is blocked."""
        self.stall()
        self._blocks += loop_alone
        self._timeline.run_until(self._timeline.now_s + seconds)
        self._blocks -= loop_alone
        self.resume()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.within(lambda: self.create_task(work))

    def raise_from_the_dead(self) -> None:
        """For the world's end alone, so that every coroutine can be ended properly."""
        self.dead, self._stalls, self._blocks = False, 0, 0
        self._release()

    def cancel_all(self) -> int:
        """For the world's end: returns how many tasks are left."""
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            self.call_soon(task.cancel)
        return len(tasks)

    # --- what asyncio asks of a loop
    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._timeline.push(self._timeline.now_s, handle, self)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if threading.get_ident() not in self._timeline.threads:
            self.errors.append(
                {"message": "a thread answered: it does not know of virtual time, which went on by chance"}
            )
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._push(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)
