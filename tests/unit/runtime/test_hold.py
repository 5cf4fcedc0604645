"""One partition under one epoch: how long it may be handled, and how far it has come."""

from __future__ import annotations

import asyncio

import pytest

from evenflow.errors import LeaseLost
from evenflow.model import Checkpoint, Event
from evenflow.runtime.hold import Hold, Seek
from tests.unit.runtime.stage import at


def sealed(ordinal: int = 10, sequence: int = 7) -> Hold:
    hold = Hold("0", epoch=3, deadline_s=100.0)
    hold.begin(Checkpoint(partition="0", epoch=3, position=at(sequence), ordinal=ordinal), 50.0)
    return hold


def test_it_begins_where_the_record_stands() -> None:
    hold = sealed()
    assert (hold.done, hold.committed, hold.committed_at_s, hold.handled) == ((10, at(7)), 10, 50.0, 0)
    hold.done = (15, at(12))
    assert hold.handled == 5


def test_before_the_seal_nothing_was_handled_and_nothing_can_be_written() -> None:
    hold = Hold("0", 3, 100.0)
    hold.marked = (1, at(1))
    assert hold.handled == 0
    assert hold.checkpoint(manual=False) is None
    assert hold.checkpoint(manual=True) is None


@pytest.mark.parametrize(("now_s", "may"), [(0.0, True), (99.999, True), (100.0, False), (100.1, False)])
def test_no_call_begins_at_or_after_the_deadline(now_s: float, may: bool) -> None:
    hold = sealed()
    assert hold.may_begin(now_s) is may
    hold.stop("handed over")
    assert not hold.may_begin(now_s)


def test_the_first_reason_stays() -> None:
    hold = sealed()
    told: list[str] = []
    hold.on_stop = lambda: told.append(hold.reason)
    hold.stop("handed over")
    hold.stop("lost")
    assert (hold.reason, hold.stopping, hold.over, hold.stopped.is_set()) == ("handed over", True, False, True)
    assert told == ["handed over", "handed over"], "whoever waits is interrupted each time"


def test_a_checkpoint_is_what_is_done() -> None:
    hold = sealed()
    hold.done = (12, Event(b"", sequence=9))
    record = hold.checkpoint(manual=False)
    assert record == Checkpoint(partition="0", epoch=3, position=at(9), ordinal=12)
    assert hold.checkpoint(manual=True) is None, "nothing was marked"


def test_a_manual_checkpoint_is_what_was_marked() -> None:
    hold = sealed()
    hold.done, hold.marked = (15, at(12)), (12, Event(b"", sequence=9))
    record = hold.checkpoint(manual=True)
    assert record is not None
    assert (record.ordinal, record.position) == (12, at(9))


@pytest.mark.parametrize(("marked", "ordinal", "position"), [(12, 15, 99), (15, 15, 99), (16, 16, 16)])
def test_with_a_policy_a_mark_counts_where_it_is_ahead(marked: int, ordinal: int, position: int) -> None:
    """A handler may mark its own event before it returns."""
    hold = sealed()
    hold.done, hold.marked = (15, at(99)), (marked, at(marked))
    record = hold.checkpoint(manual=False)
    assert record is not None
    assert (record.ordinal, record.position) == (ordinal, at(position))


async def test_a_seek_is_settled_once() -> None:
    seek = Seek(at(3))
    seek.settle()
    seek.settle(LeaseLost())
    assert seek.done.result() is None
    failed = Seek(at(3))
    failed.settle(LeaseLost("gone"))
    failed.settle()
    with pytest.raises(LeaseLost, match="gone"):
        await failed.done


async def test_who_does_not_wait_any_more_is_not_told() -> None:
    seek = Seek(at(3))
    seek.done.cancel()
    seek.settle()
    await asyncio.wait([seek.done])
    assert seek.done.cancelled()


def test_each_record_that_is_sent_has_a_later_edition() -> None:
    hold = sealed()
    record = hold.record_at(hold.done)
    assert [hold.edited(record).edition for _ in range(2)] == [1, 2]


def test_what_is_remembered_without_a_mark_is_where_it_was_sealed() -> None:
    assert Hold("0", 3, 1e9).remembered(manual=True) is None
    hold = sealed()
    hold.done = (hold.done[0] + 1, at(9))
    for manual, ordinal in ((True, hold.done[0] - 1), (False, hold.done[0])):
        known = hold.remembered(manual=manual)
        assert known is not None
        assert known.ordinal == ordinal
