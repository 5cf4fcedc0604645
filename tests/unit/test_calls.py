"""What the integration tests check handler calls with finds what it is meant to find."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.integration.calls import Call, Diaries, Diary, Repeat, lost, repeats, violations

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = 101, 102


def call(pid: int, epoch: int, events: tuple[int, int], began_s: float, ended_s: float | None) -> Call:
    return Call(pid, "0", epoch, *events, began_s, ended_s)


FINE = [
    call(ONE, 1, (0, 4), 1.0, 1.5),
    call(ONE, 1, (5, 9), 1.5, 9.0),  # it stood still, and went on
    call(TWO, 2, (5, 9), 4.0, 4.5),
    call(TWO, 2, (10, 10), 5.0, None),  # killed in the middle
    call(ONE, 3, (10, 12), 9.0, 9.5),
]


def test_all_is_well_when_old_calls_only_end_late() -> None:
    assert violations(FINE) == []
    assert lost(FINE, {"0": 12}) == []
    assert repeats(FINE) == [Repeat("0", sequence, FINE[1], FINE[2]) for sequence in range(5, 10)]


def test_a_call_that_never_ended_has_handled_nothing() -> None:
    assert lost(FINE[:-1], {"0": 12, "1": 0}) == [("0", 10), ("0", 11), ("0", 12), ("1", 0)]


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ([call(ONE, 1, (0, 4), 1.0, 1.5), call(ONE, 1, (6, 9), 2.0, 2.5)], "out of order"),
        ([call(ONE, 1, (0, 4), 1.0, 1.5), call(ONE, 1, (0, 4), 2.0, 2.5)], "out of order"),
        ([call(ONE, 1, (0, 4), 1.0, 1.5), call(TWO, 1, (5, 9), 2.0, 2.5)], "two owners in one epoch"),
        ([call(ONE, 1, (0, 4), 1.0, 1.5), call(ONE, 1, (5, 9), 1.4, 2.5)], "side by side in one process"),
        ([call(ONE, 1, (0, 4), 1.0, 9.0), call(ONE, 3, (5, 9), 8.0, 8.5)], "side by side in one process"),
        ([*FINE, call(TWO, 2, (11, 11), 9.1, 9.2)], "began after a newer epoch had"),
        ([call(TWO, 2, (0, 0), 1.0, 1.5), call(ONE, 1, (0, 0), 1.1, 1.2)], "began after a newer epoch had"),
    ],
)
def test_each_violation_is_found(calls: list[Call], fault: str) -> None:
    assert fault in "\n".join(violations(calls))


def test_diaries_are_read_on_where_the_last_reading_ended(tmp_path: Path) -> None:
    diaries = Diaries(tmp_path)
    with closing(Diary(tmp_path / f"{ONE}.calls")) as diary:
        diary.write("began", "0", 1, (0, 4), 1.0)
        assert list(diaries.read()) == [call(ONE, 1, (0, 4), 1.0, None)]
        diary.write("ended", "0", 1, (0, 4), 1.5)
        diary.write("began", "0", 1, (5, 5), 1.5)
        assert list(diaries.read()) == [call(ONE, 1, (0, 4), 1.0, 1.5), call(ONE, 1, (5, 5), 1.5, None)]
