"""`partition.checkpoint()`: in an async handler, on a thread, inside a batch, and where it does not belong."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from evenflow import Misconfigured
from evenflow.model import Event
from evenflow.runtime.hold import Hold
from evenflow.runtime.partition import OwnedPartition
from evenflow.runtime.threads import Threads
from tests.unit.runtime.stage import at, events

if TYPE_CHECKING:
    from evenflow.runtime.committer import Committer
    from evenflow.runtime.hold import Progress
    from evenflow.runtime.parts import Parts


class Marks:
    """Stands where the committer does."""

    def __init__(self) -> None:
        self.all: list[Progress] = []
        self.loops: list[Any] = []
        self.error: Exception | None = None

    async def mark(self, hold: Hold, progress: Progress) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.loops.append(asyncio.get_running_loop())
        self.all.append(progress)


def inside(current: Any = None, resume: Any = None) -> tuple[OwnedPartition, Marks, Hold]:
    """A partition in the middle of a call that was given `current`; 20 events were handled before."""
    hold, marks = Hold("7", 3, 100.0), Marks()
    hold.done = (20, at(4))
    hold.current, hold.current_resume = current, resume
    hold.task = asyncio.current_task()
    parts = cast("Parts", SimpleNamespace(threads=Threads("test")))  # nothing here transacts
    return OwnedPartition(hold, cast("Committer", marks), asyncio.get_running_loop(), parts), marks, hold


async def test_it_tells_who_it_is() -> None:
    partition, _, hold = inside()
    assert (partition.id, partition.epoch, partition.is_stopping) == ("7", 3, False)
    assert repr(partition) == "<partition 7 epoch 3>"
    hold.stop("handed over")
    assert partition.is_stopping


async def test_the_event_of_this_call_is_marked() -> None:
    (event,) = events(1, first=5)
    partition, marks, _ = inside(event)
    await partition.checkpoint()
    await partition.checkpoint(event)
    assert marks.all == [(21, event), (21, event)]


async def test_another_event_than_that_of_this_call_is_refused() -> None:
    event, other = events(2, first=5)
    partition, marks, _ = inside(event)
    with pytest.raises(Misconfigured, match="takes the event that the handler was given"):
        await partition.checkpoint(other)
    assert marks.all == []


async def test_a_whole_batch_is_marked_where_it_resumes() -> None:
    batch = events(3, first=5)
    partition, marks, hold = inside(batch, at(9))
    await partition.checkpoint()
    hold.current_resume = None
    await partition.checkpoint()
    assert marks.all == [(23, at(9)), (23, batch[-1])]


async def test_a_batch_is_marked_up_to_one_of_its_events() -> None:
    batch = events(3, first=5)
    partition, marks, _ = inside(batch, at(9))
    for event in batch:
        await partition.checkpoint(event)
    assert marks.all == [(21, batch[0]), (22, batch[1]), (23, batch[2])]


async def test_an_event_that_is_not_of_this_batch_is_refused() -> None:
    """It may be equal to one of them; which one, nobody could tell."""
    batch = events(3, first=5)
    partition, marks, _ = inside(batch)
    with pytest.raises(Misconfigured, match="takes one of the events that the handler was given"):
        await partition.checkpoint(Event(b"x", sequence=6))
    assert marks.all == []


async def test_outside_a_call_it_marks_all_that_was_handled() -> None:
    partition, marks, hold = inside(None)
    await partition.checkpoint()
    assert marks.all == [hold.done]


async def test_outside_a_call_there_is_no_event_to_mark() -> None:
    (event,) = events(1)
    partition, marks, _ = inside(None)
    with pytest.raises(Misconfigured, match="belongs inside a handler call"):
        await partition.checkpoint(event)
    assert marks.all == []


async def test_a_task_that_a_handler_left_behind_does_not_mark_the_call_of_another_event() -> None:
    (event,) = events(1, first=5)
    partition, marks, hold = inside(event)
    await asyncio.create_task(_checkpoint(partition))
    await asyncio.to_thread(partition.checkpoint)
    assert marks.all == [hold.done, hold.done]


async def _checkpoint(partition: OwnedPartition) -> None:
    await partition.checkpoint()


async def test_on_a_thread_it_blocks_until_it_is_written() -> None:
    (event,) = events(1)
    partition, marks, hold = inside(event)

    def handler() -> int:
        hold.thread = threading.get_ident()
        partition.checkpoint()
        return len(marks.all)

    assert await asyncio.to_thread(handler) == 1
    assert marks.all == [(21, event)]
    assert marks.loops == [asyncio.get_running_loop()]


async def test_what_refuses_it_is_raised_on_the_thread() -> None:
    (event,) = events(1)
    partition, marks, _ = inside(event)
    marks.error = KeyError("refused")
    with pytest.raises(KeyError, match="refused"):
        await asyncio.to_thread(partition.checkpoint)


async def test_in_another_event_loop_it_blocks_too_and_can_be_awaited() -> None:
    (event,) = events(1)
    partition, marks, _ = inside(event)

    async def elsewhere() -> int:
        awaitable = partition.checkpoint()
        written = len(marks.all)
        await awaitable
        return written

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 1
    assert marks.loops == [asyncio.get_running_loop()]
