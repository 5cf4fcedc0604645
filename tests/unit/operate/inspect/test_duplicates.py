"""Events handled again at a move: exactly none when it was planned, and never more than the bound after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from evenflow.operate.inspect.duplicates import DuplicateEstimate, DuplicateEstimator
from evenflow.operate.inspect.watcher import GroupWatcher
from tests.unit.console.scenes import TTL_S, found, lease, look_at, member, move, record

if TYPE_CHECKING:
    from evenflow.model import Checkpoint

TAKEN = "taken over: no heartbeat of node-1 for 8.0 s"


class Crash:
    """node-1 heartbeats and commits until it dies; the log grows by ten events a second; node-2 takes over."""

    def __init__(self) -> None:
        self.duplicates, self._watcher = DuplicateEstimator(), GroupWatcher()
        self.now_s = 0.0

    def observe(self, *, epoch: int, mark: int, committed: int, begun: int = 0, sealed: bool = True) -> None:
        owner = 1 if epoch == 1 else 2
        survey = found(
            members=[member(1, mark), member(2, int(self.now_s * 10))],
            leases=[lease("0", owner, epoch)],
            records=[record("0", committed, epoch if sealed else epoch - 1, begun)],
            newest={"0": int(self.now_s * 10)},
        )
        self.duplicates.observe(look_at(survey, self.now_s, self._watcher), self.now_s)
        self.now_s += 1.0

    def happen(self) -> None:
        """It heartbeats at 0, 2 and 4 s, and dies then, with 30 events committed."""
        while self.now_s <= 4.0:
            self.observe(epoch=1, mark=int(self.now_s // 2), committed=30)
        while self.now_s < 4.0 + TTL_S:
            self.observe(epoch=1, mark=2, committed=30)


def test_after_a_crash_it_is_at_most_what_was_in_the_log_when_the_next_heartbeat_was_due() -> None:
    crash = Crash()
    crash.happen()
    crash.observe(epoch=2, mark=2, committed=30, sealed=False)
    crash.observe(epoch=2, mark=2, committed=90, begun=31)
    repeat = crash.duplicates.of(move("0", 1, 2, 2, TAKEN))
    # Its last heartbeat was seen at 4 s. Dead by 6 s, when 60 events were there; cut off, it may have gone on until 12
    # s.
    assert (repeat.certainty, repeat.events, repeat.cut_off) == ("at most", 60 - 30, 120 - 30)


def test_what_it_committed_after_our_last_look_is_not_repeated() -> None:
    crash = Crash()
    crash.happen()
    crash.observe(epoch=2, mark=2, committed=200, begun=41)
    assert crash.duplicates.of(move("0", 1, 2, 2, TAKEN)).events == 60 - 40


def test_looks_that_are_far_apart_make_the_bound_wider_and_never_too_low() -> None:
    crash = Crash()
    for crash.now_s, mark in ((0.0, 1), (17.0, 2), (20.0, 2)):
        crash.observe(epoch=1, mark=mark, committed=30)
    crash.now_s = 40.0
    crash.observe(epoch=2, mark=2, committed=300, begun=31)
    # At 20 s it had been silent for three; but it may have beaten again, until 8 s before the last look.
    assert crash.duplicates.of(move("0", 1, 2, 2, TAKEN)).events == 400 - 30


@pytest.mark.parametrize(
    ("kind", "before", "certainty", "events"),
    [
        ("handed over: node-1 had 3", 1, "unknown", None),
        ("released: node-1 leaves", 1, "unknown", None),
        ("claimed: nobody owned it", None, "unknown", None),
        ("claimed", 1, "unknown", None),
        ("seek: to 4 by ann", 1, "asked for", None),
        (TAKEN, 1, "unknown", None),
        ("taken again: it had stopped", 1, "unknown", None),
    ],
)
def test_an_unobserved_move_is_unknown(kind: str, before: int | None, certainty: str, events: int | None) -> None:
    repeat = DuplicateEstimator().of(move("0", before, 2, 2, kind))
    assert (repeat.certainty, repeat.events) == (certainty, events)


def test_the_first_owner_repeats_nothing() -> None:
    assert DuplicateEstimator().of(move("0", None, 1, 1, "claimed")) == DuplicateEstimate(certainty="exact", events=0)


class Handover:
    """node-1 has committed up to 30 and hands the partition over, directly or by a release."""

    def __init__(self) -> None:
        self._duplicates, self._watcher, self._now_s = DuplicateEstimator(), GroupWatcher(), 0.0

    def observe(self, owner: int | None, epoch: int, committed: Checkpoint) -> None:
        survey = found(
            members=[member(1), member(2)], leases=[lease("0", owner, epoch)], records=[committed], newest={"0": 99}
        )
        self._now_s += 1.0
        self._duplicates.observe(look_at(survey, self._now_s, self._watcher), self._now_s)

    def of(self, kind: str, epoch: int = 2) -> tuple[str, int | None]:
        found = self._duplicates.of(move("0", None if kind == "claimed" else 1, 2, epoch, kind))
        return found.certainty, found.events


@pytest.mark.parametrize(("begun", "again"), [(31, 0), (35, 0), (29, 2)])
def test_after_a_planned_move_it_is_counted_from_where_the_new_owner_begins(begun: int, again: int) -> None:
    handover = Handover()
    handover.observe(1, 1, record("0", 30, 1))
    handover.observe(2, 2, record("0", 30, 1))
    assert handover.of("handed over") == ("unknown", None), "not before it has begun"
    handover.observe(2, 2, record("0", 60, 2, begun))
    assert handover.of("handed over") == ("exact", again)


@pytest.mark.parametrize(("of_epoch", "again"), [(1, 7), (0, 0)])
def test_what_the_old_owner_left_unmarked_comes_again(of_epoch: int, again: int) -> None:
    handover = Handover()
    notes = {"unmarked": {"epoch": of_epoch, "events": 7}}
    handover.observe(1, 1, record("0", 30, 1))
    handover.observe(2, 2, replace(record("0", 30, 2, 31), notes=notes))
    assert handover.of("handed over") == ("exact", again)


def test_a_release_is_counted_at_the_next_claim() -> None:
    handover = Handover()
    handover.observe(1, 1, record("0", 30, 1))
    handover.observe(None, 2, record("0", 30, 1))
    assert handover.of("released") == ("unknown", None)
    handover.observe(2, 3, record("0", 40, 3, 28))
    assert handover.of("released") == handover.of("claimed", 3) == ("exact", 3)


def test_a_release_for_a_seek_repeats_nothing_by_itself() -> None:
    handover = Handover()
    handover.observe(1, 1, record("0", 30, 1))
    handover.observe(2, 4, replace(record("0", 12, 4, 32), ordinal=40))
    assert handover.of("released") == ("exact", 0)


def test_without_a_source_it_is_unknown() -> None:
    duplicates, watcher = DuplicateEstimator(), GroupWatcher()
    for now_s, epoch in ((0.0, 1), (1.0, 1), (9.0, 2)):
        survey = found(members=[member(1)], leases=[lease("0", epoch, epoch)], records=[record("0", 3, epoch)])
        duplicates.observe(look_at(survey, now_s, watcher), now_s)
    assert duplicates.of(move("0", 1, 2, 2, TAKEN)).certainty == "unknown"
