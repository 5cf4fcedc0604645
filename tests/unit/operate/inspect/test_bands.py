"""Who owned what when: bands from moves and the lease, with nothing made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from evenflow.core.decide import silence_told
from evenflow.operate.inspect.bands import bands_of, longest_gap_s
from tests.unit.console.scenes import WALL_S, lease, move

TAKEN = "taken over: no heartbeat of node-1 for 8.1 s"


def shown(*moves: object, holder: object) -> list[tuple[object, ...]]:
    found = bands_of(moves, {"0": holder})["0"]  # type: ignore[arg-type, dict-item]
    return [(band.since, band.until, band.owner, band.kind) for band in found]


def test_a_partition_that_was_claimed_and_handed_over_has_two_bands() -> None:
    moves = [move("0", None, 1, 1, "claimed", 10.0), move("0", 1, 2, 2, "handed over: node-1 had 2", 20.0)]
    assert shown(*reversed(moves), holder=lease("0", 2, 2)) == [
        (10.0, 20.0, "node-1", "owned"),
        (20.0, None, "node-2", "owned"),
    ]


def test_a_takeover_shows_for_how_long_its_owner_was_silent() -> None:
    moves = [
        move("0", None, 1, 1, "claimed", 10.0),
        move("0", 1, 2, 2, TAKEN, 40.0),
    ]
    assert shown(*moves, holder=lease("0", 2, 2)) == [
        (10.0, pytest.approx(31.9), "node-1", "owned"),
        (pytest.approx(31.9), 40.0, "node-1", "silent"),
        (40.0, None, "node-2", "owned"),
    ]


def test_a_silence_does_not_begin_before_its_owner_had_it() -> None:
    moves = [
        move("0", None, 1, 1, "claimed", 10.0),
        move("0", 1, 2, 2, TAKEN, 15.0),
    ]
    assert shown(*moves, holder=lease("0", 2, 2))[0] == (10.0, 15.0, "node-1", "silent")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("released: node-1 leaves", "unowned"),
        ("released: node-1 has caught up", "halted"),
        ("released: paused by ann: db", "halted"),
        ("seek: to 3 by ann", "halted"),
    ],
)
def test_a_requested_gap_is_no_gap(reason: str, kind: str) -> None:
    moves = [move("0", None, 1, 1, "claimed", 10.0), move("0", 1, None, 2, reason, 20.0)]
    assert shown(*moves, holder=lease("0", None, 2, reason))[-1] == (20.0, None, None, kind)


def test_what_has_ended_keeps_its_past_and_is_no_gap() -> None:
    reason = "ended: split into 4, 5"
    over = replace(lease("0", None, 2, reason), ended=True)
    moves = [move("0", None, 1, 1, "claimed", 10.0), move("0", 1, None, 2, reason, 20.0)]
    assert shown(*moves, holder=over) == [(10.0, 20.0, "node-1", "owned"), (20.0, None, None, "ended")]
    assert longest_gap_s(bands_of(moves, {"0": over}), 0.0, 100.0) is None
    assert shown(holder=over) == [(WALL_S - 30, None, None, "ended")], "where the store has forgotten, too"


def test_what_the_store_has_forgotten_is_unknown_but_the_lease_says_since_when() -> None:
    moves = [move("0", 3, 1, 5, "handed over", 10.0)]
    assert shown(*moves, holder=lease("0", 2, 9)) == [
        (None, 10.0, "node-3", "owned"),
        (10.0, WALL_S - 30, "node-1", "owned"),
        (WALL_S - 30, None, "node-2", "owned"),
    ]
    assert shown(holder=lease("0", 2, 9)) == [(WALL_S - 30, None, "node-2", "owned")]


def test_the_longest_gap_counts_unplanned_and_current_gaps() -> None:
    halted = [move("0", None, 1, 1, "claimed", 10.0), move("0", 1, None, 2, "released: paused by ann", 20.0)]
    bands = bands_of(halted, {"0": lease("0", None, 2)})
    assert longest_gap_s(bands, 0.0, 100.0) is None
    left = [move("1", None, 1, 1, "claimed", 10.0), move("1", 1, None, 2, "released: node-1 leaves", 20.0)]
    bands |= bands_of(left, {"1": lease("1", None, 2)})
    assert longest_gap_s(bands, 0.0, 100.0) == 80.0
    assert longest_gap_s(bands, 90.0, 100.0) == 10.0


def test_a_silence_begins_with_the_owners_last_heartbeat_where_that_is_known() -> None:
    moves = [move("0", None, 1, 1, "claimed", 10.0), move("0", 1, 2, 2, TAKEN, 40.0)]
    found = bands_of(moves, {"0": lease("0", 2, 2)}, {("0", 2): 29.5})
    assert [(band.since, band.until, band.kind) for band in found["0"]] == [
        (10.0, 29.5, "owned"),
        (29.5, 40.0, "silent"),
        (40.0, None, "owned"),
    ]
    assert longest_gap_s(found, 0.0, 100.0) == 10.5


def test_an_owner_that_is_silent_now_is_a_gap_that_goes_on() -> None:
    bands = bands_of([move("0", None, 1, 1, "claimed", 10.0)], {"0": lease("0", 1, 1)})
    assert longest_gap_s(bands, 0.0, 100.0) is None
    assert longest_gap_s(bands, 0.0, 100.0, {"node-1": 93.0}) == 7.0
    assert longest_gap_s(bands, 0.0, 100.0, {"node-2": 93.0}) is None
    assert longest_gap_s(bands, 0.0, 12.0, {"node-1": 5.0}) == 2.0, "not before it had it"


def test_a_silence_and_then_no_owner_are_one_gap() -> None:
    moves = [
        move("0", None, 1, 1, "claimed", 10.0),
        move("0", 1, None, 2, "taken over: no heartbeat of node-1 for 8.0 s", 40.0),
        move("0", None, 2, 3, "claimed", 45.0),
    ]
    assert longest_gap_s(bands_of(moves, {"0": lease("0", 2, 3)}), 0.0, 100.0) == 13.0


@pytest.mark.parametrize(
    ("reason", "silent_s"),
    [
        ("taken over: no heartbeat of a for 9 for 8.1 s", 8.1),
        ("taken over: somehow", None),
        ("handed over: no heartbeat of a for 8.1 s", None),
        ("", None),
    ],
)
def test_the_reason_of_a_takeover_says_how_long_the_silence_was(reason: str, silent_s: float | None) -> None:
    assert silence_told(reason) == silent_s
