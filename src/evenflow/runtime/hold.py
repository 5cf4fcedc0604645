"""One partition under one epoch in this instance: how long it may be handled, and how far it has come.

The coordinator alone moves the deadline and ends a hold, on the event loop. The pump, and the thread that runs a
plain handler for it, only look and write progress; each of those writes is one assignment, so the two threads never
see half of one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import replace

from evenflow.core.notes import Notes, notes_of
from evenflow.model import MICROSECONDS, Checkpoint, Event, Owner, Partition, PartitionId, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

StopReason: TypeAlias = Literal["handed over", "leaving", "kept", "paused", "seek", "lost", "fenced", "ended", "failed"]
"""Why a partition stops: planned (the first five) or not. "kept": the plan changed while it was drained."""

Progress: TypeAlias = tuple[int, Event | Position]
"""An ordinal, and the event or position that it stands for."""


class Hold:
    def __init__(
        self,
        partition: PartitionId,
        epoch: int,
        deadline_s: float,
        *,
        late: bool = False,
        unplanned: bool = False,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.late = late
        self.unplanned = unplanned
        """It was taken over from somebody who fell silent."""
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
        self.sealed_s = inf
        self.done: Progress = (0, Position(""))
        self.marked: Progress | None = None
        """What the application marked itself."""
        self.task: asyncio.Task[None] | None = None
        self.thread: int | None = None
        """Who runs its handler: only there `current` is the event of one's own call."""
        self.current: Event | Sequence[Event] | None = None
        self.current_resume: Position | None = None
        self.began_s: float | None = None
        """When the call that runs began; None when none does."""
        self.event_at = 0.0
        """When the event was enqueued up to which a position stands, as far as is known."""
        self.notes = Notes()
        self.noted = 0
        """How often the notes changed, and up to which change the store has them."""
        self.notes_kept = 0
        self.children: tuple[Partition, ...] | None = None
        """It has ended: all that was read of it is handled, and these go on."""
        self.halted = ""
        """Why it stands still although it is owned: a poison event, or the breaker."""
        self.redrives = 0
        """How many redrives were asked for, as the last ledger says."""
        self.wards: tuple[PartitionId, ...] = ()
        """Partitions that have ended, whose dead letters are redriven here."""
        self.edition = 0
        """How many records were sent under this epoch."""
        self.committed = 0
        """The ordinal that the store is known to have."""
        self.committed_to: Position | None = None
        """The position that it is known to have. It moves without events, where a log has more than those."""
        self.committed_at_s = 0.0
        self.aside: Hold | None = None
        """Stands in for this one in a call that is not part of the flow: a dead letter is redriven."""
        self.transaction: object | None = None
        """The one that is open in the call that runs."""
        self.transacted: Progress | None = None
        """Up to where transactions of this hold are known to have committed."""
        self.doubt = False
        """A transaction may have taken effect or not, and the record tells."""
        self.effects = False
        """Effects live beside its record in the store: they go back when it does, so nothing is sealed from memory."""
        self.busy_s = 0.0
        """How long handler calls have run, all together: the partition's load."""
        self.caught_up = False
        self.stopped = asyncio.Event()
        self.on_stop: Callable[[], None] | None = None
        """Interrupts what the pump waits for."""

    def begin(self, record: Checkpoint, now_s: float) -> None:
        """Sealed: go on from the record."""
        self.sealed, self.sealed_s = record, now_s
        self.notes, self.event_at = notes_of(record), record.event_at
        self.done = (record.ordinal, record.position)
        self.committed, self.committed_to, self.committed_at_s = record.ordinal, record.position, now_s
        self.effects = record.effects

    def stop(self, reason: StopReason) -> None:
        """Begin no further call. The first reason stays: a planned stop that is cut short is still that."""
        if not self.stopping:
            self.reason = reason
        self.stopping = True
        self.stopped.set()
        if self.on_stop is not None:
            self.on_stop()

    async def rest(self, seconds: float) -> None:
        """So long, unless it stops before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopped.wait()

    @property
    def position(self) -> Position:
        """After which the next event comes."""
        return position_of(self.done)

    @property
    def handled(self) -> int:
        return self.done[0] - self.sealed.ordinal if self.sealed is not None else 0

    def may_begin(self, now_s: float) -> bool:
        """The look at the clock before each handler call: a timer alone fires too late after a stall."""
        return not self.stopping and now_s < self.deadline_s

    def note(self, **changes: Any) -> None:
        """Change what outlives this owner. It is written with the next commit."""
        self.notes = replace(self.notes, **changes)
        self.noted += 1

    def is_due(self, record: Checkpoint) -> bool:
        """Whether the store does not have this yet."""
        moved = record.ordinal == self.committed and record.position != self.committed_to
        return record.ordinal > self.committed or moved or self.noted > self.notes_kept

    def checkpoint(self, *, manual: bool) -> Checkpoint | None:
        """What may be committed now; None before the seal, or when nothing was ever marked or noted."""
        if self.sealed is None:
            return None
        if manual and self.marked is None and not self.noted:
            return None
        return self.record_at(self.stands(manual=manual))

    def stands(self, *, manual: bool) -> Progress:
        """Up to where everything is handled, or marked as such: what a commit may write now."""
        assert self.sealed is not None
        if manual:
            return self.marked if self.marked is not None else (self.sealed.ordinal, self.sealed.position)
        if self.marked is not None and self.marked[0] > self.done[0]:
            return self.marked
        return self.done

    def remembered(self, *, manual: bool) -> Checkpoint | None:
        """How far it came, whether that may be committed anew or has been; None before the seal."""
        return self.record_at(self.stands(manual=manual)) if self.sealed is not None else None

    def edited(self, record: Checkpoint) -> Checkpoint:
        """As it is sent: in front of what was sent before."""
        self.edition += 1
        return replace(record, edition=self.edition)

    def record_at(self, progress: Progress) -> Checkpoint:
        ordinal, last = progress
        return Checkpoint(
            partition=self.partition,
            epoch=self.epoch,
            position=position_of(progress),
            ordinal=ordinal,
            notes=self.notes.as_dict(),
            event_at=self.event_at if isinstance(last, Position) else last.enqueued_us / MICROSECONDS,
            effects_to=self.committed if self.effects else 0,
        )


def position_of(progress: Progress) -> Position:
    last = progress[1]
    return last if isinstance(last, Position) else last.position


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
