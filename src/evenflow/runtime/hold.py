"""One partition under one epoch in this instance: how long it may be handled, and how far it has come.

The coordinator alone moves the deadline and ends a hold, on the event loop. The pump, and the thread that runs a
plain handler for it, only look and write progress; each of those writes is one assignment, so the two threads never
see half of one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

from evenflow.model import Checkpoint, Event, Owner, PartitionId, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

StopReason: TypeAlias = Literal["handed over", "leaving", "kept", "paused", "seek", "lost", "fenced", "ended", "failed"]
"""Why a partition stops: planned (the first five) or not. "kept": the plan changed while it was drained."""

Progress: TypeAlias = tuple[int, Event | Position]
"""An ordinal, and the event or position that it stands for."""


class Hold:
    def __init__(self, partition: PartitionId, epoch: int, deadline_s: float, *, late: bool = False) -> None:
        self.partition = partition
        self.epoch = epoch
        self.late = late
        self.deadline_s = deadline_s
        """No handler call begins at or after this time."""
        self.stopping = False
        """No further handler call begins."""
        self.over = False
        """Nothing is done under this epoch any more."""
        self.reason: StopReason = "lost"
        self.heir: Owner | None = None
        self.why = ""
        """The plan's reason for passing it on."""
        self.passing = False
        """The swap was sent: it counts as done, answered or not."""
        self.seek: Seek | None = None
        """To be drained, and gone on with elsewhere, under a new epoch."""
        self.jump: Seek | None = None
        """This is that new epoch: where to begin."""
        self.sealed: Checkpoint | None = None
        self.done: Progress = (0, Position(""))
        self.marked: Progress | None = None
        """What the application marked itself."""
        self.task: asyncio.Task[None] | None = None
        self.thread: int | None = None
        """Who runs its handler: only there `current` is the event of one's own call."""
        self.current: Event | Sequence[Event] | None = None
        self.current_resume: Position | None = None
        self.committed = 0
        """The ordinal that the store is known to have."""
        self.committed_at_s = 0.0
        self.busy_s = 0.0
        """How long handler calls have run, all together: the partition's load."""
        self.caught_up = False
        self.stopped = asyncio.Event()
        self.on_stop: Callable[[], None] | None = None
        """Interrupts what the pump waits for."""

    def begin(self, record: Checkpoint, now_s: float) -> None:
        """Sealed: go on from the record."""
        self.sealed = record
        self.done = (record.ordinal, record.position)
        self.committed, self.committed_at_s = record.ordinal, now_s

    def stop(self, reason: StopReason) -> None:
        """Begin no further call. The first reason stays: a planned stop that is cut short is still that."""
        if not self.stopping:
            self.reason = reason
        self.stopping = True
        self.stopped.set()
        if self.on_stop is not None:
            self.on_stop()

    @property
    def handled(self) -> int:
        return self.done[0] - self.sealed.ordinal if self.sealed is not None else 0

    def may_begin(self, now_s: float) -> bool:
        """The look at the clock before each handler call: a timer alone fires too late after a stall."""
        return not self.stopping and now_s < self.deadline_s

    def checkpoint(self, *, manual: bool) -> Checkpoint | None:
        """What may be committed now; None before the seal, or when nothing was ever marked."""
        best = self.marked if manual else self.done
        if self.marked is not None and not manual and self.marked[0] > self.done[0]:
            best = self.marked
        if best is None or self.sealed is None:
            return None
        ordinal, last = best
        position = last if isinstance(last, Position) else last.position
        return Checkpoint(partition=self.partition, epoch=self.epoch, position=position, ordinal=ordinal)


class Seek:
    """A wish to go on elsewhere, and who waits for it."""

    def __init__(self, to: Position) -> None:
        self.to = to
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, error: Exception | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
