"""Events handled again at a move: exactly none when it was planned, and never more than the bound after a crash."""

from __future__ import annotations

import pytest

from evenflow.observe.repeats import Repeats
from evenflow.observe.watcher import Watcher
from tests.unit.console.scenes import TTL_S, found, lease, look_at, member, move, record

TAKEN = "taken over: no beat of node-1 for 8.0 s"


class Crash:
    """node-1 beats and commits until it dies; the log grows by ten events a second; node-2 takes over."""

    def __init__(self) -> None:
        self.repeats, self._watcher = Repeats(), Watcher()
        self.now_s = 0.0

    def look(self, *, epoch: int, mark: int, committed: int, begun: int = 0, sealed: bool = True) -> None:
        owner = 1 if epoch == 1 else 2
        survey = found(
            members=[member(1, mark), member(2, int(self.now_s * 10))],
            leases=[lease("0", owner, epoch)],
            records=[record("0", committed, epoch if sealed else epoch - 1, begun)],
            newest={"0": int(self.now_s * 10)},
        )
        self.repeats.look(look_at(survey, self.now_s, self._watcher), self.now_s)
        self.now_s += 1.0

    def happen(self) -> None:
        """It beats at 0, 2 and 4 s, and dies then, with 30 events committed."""
        while self.now_s <= 4.0:
            self.look(epoch=1, mark=int(self.now_s // 2), committed=30)
        while self.now_s < 4.0 + TTL_S:
            self.look(epoch=1, mark=2, committed=30)


def test_after_a_crash_it_is_at_most_what_was_in_the_log_when_the_next_beat_was_due() -> None:
    crash = Crash()
    crash.happen()
    crash.look(epoch=2, mark=2, committed=30, sealed=False)
    crash.look(epoch=2, mark=2, committed=90, begun=31)
    repeat = crash.repeats.of(move("0", 1, 2, 2, TAKEN))
    # Its last beat was seen at 4 s. Dead by 6 s, when 60 events were there; cut off, it may have gone on until 12 s.
    assert (repeat.certainty, repeat.events, repeat.cut_off) == ("at most", 60 - 30, 120 - 30)


def test_what_it_committed_after_our_last_look_is_not_repeated() -> None:
    crash = Crash()
    crash.happen()
    crash.look(epoch=2, mark=2, committed=200, begun=41)
    assert crash.repeats.of(move("0", 1, 2, 2, TAKEN)).events == 60 - 40


def test_looks_that_are_far_apart_make_the_bound_wider_and_never_too_low() -> None:
    crash = Crash()
    for crash.now_s, mark in ((0.0, 1), (17.0, 2), (20.0, 2)):
        crash.look(epoch=1, mark=mark, committed=30)
    crash.now_s = 40.0
    crash.look(epoch=2, mark=2, committed=300, begun=31)
    # At 20 s it had been silent for three; but it may have beaten again, until 8 s before the last look.
    assert crash.repeats.of(move("0", 1, 2, 2, TAKEN)).events == 400 - 30


@pytest.mark.parametrize(
    ("kind", "before", "certainty", "events"),
    [
        ("handed over: node-1 had 3", 1, "exact", 0),
        ("released: node-1 leaves", 1, "exact", 0),
        ("claimed: nobody owned it", None, "exact", 0),
        ("claimed", 1, "unknown", None),
        ("seek: to 4 by ann", 1, "asked for", None),
        (TAKEN, 1, "unknown", None),
        ("taken again: it had stopped", 1, "unknown", None),
    ],
)
def test_a_planned_move_is_exact_and_what_nobody_watched_is_unknown(
    kind: str, before: int | None, certainty: str, events: int | None
) -> None:
    repeat = Repeats().of(move("0", before, 2, 2, kind))
    assert (repeat.certainty, repeat.events) == (certainty, events)


def test_without_a_source_it_is_unknown() -> None:
    repeats, watcher = Repeats(), Watcher()
    for now_s, epoch in ((0.0, 1), (1.0, 1), (9.0, 2)):
        survey = found(members=[member(1)], leases=[lease("0", epoch, epoch)], records=[record("0", 3, epoch)])
        repeats.look(look_at(survey, now_s, watcher), now_s)
    assert repeats.of(move("0", 1, 2, 2, TAKEN)).certainty == "unknown"
