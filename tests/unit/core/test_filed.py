"""What becomes of a dead letter, by the records that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.core.filed import Filed, fold
from evenflow.model import DeadLetter, Event, Verdict

if TYPE_CHECKING:
    from evenflow.model import DeadLetterRecord


def dead_letter(number: int, key: str | None = None, error: str = "first", epoch: int = 1) -> DeadLetter:
    event = Event(b"", key, sequence=number)
    return DeadLetter(partition="0", event=event, reason="poison", error=error, epoch=epoch)


def verdict(kind: str, number: int = 0, of: int = 0, why: str = "") -> Verdict:
    return Verdict(dead_letter=f"0@{of}", kind=kind, number=number, why=why)


def only(*records: DeadLetterRecord) -> Filed:
    (found,) = fold(records)
    return found


A = dead_letter(0)


@pytest.mark.parametrize(
    ("verdicts", "state", "number"),
    [
        ([], "dead", 0),
        ([("again", 1)], "again", 1),
        ([("again", 1), ("again", 1)], "again", 1),
        ([("again", 1), ("failed", 1)], "dead", 1),
        ([("again", 1), ("failed", 1), ("again", 1)], "dead", 1),
        ([("again", 1), ("failed", 1), ("again", 2)], "again", 2),
        ([("again", 1), ("failed", 1), ("again", 2), ("failed", 1)], "again", 2),
        ([("again", 1), ("failed", 1), ("again", 2), ("redriven", 2)], "redriven", 2),
        ([("again", 1), ("redriven", 1)], "redriven", 1),
        ([("again", 1), ("redriven", 1), ("failed", 1)], "redriven", 1),
        ([("again", 1), ("failed", 1), ("redriven", 1)], "redriven", 1),
        ([("again", 1), ("redriven", 1), ("again", 2)], "redriven", 1),
        ([("again", 1), ("redriven", 1), ("dropped", 1)], "redriven", 1),
        ([("dropped", 0)], "dropped", 0),
        ([("dropped", 0), ("again", 1)], "dropped", 0),
        ([("again", 1), ("dropped", 1)], "dropped", 1),
        ([("again", 1), ("dropped", 1), ("failed", 1)], "dropped", 1),
        ([("again", 1), ("dropped", 1), ("redriven", 1)], "redriven", 1),
        ([("sent to the moon", 7)], "dead", 0),
    ],
)
def test_a_state_follows_from_the_verdicts(verdicts: list[tuple[str, int]], state: str, number: int) -> None:
    filed = only(A, *[verdict(kind, n) for kind, n in verdicts])
    assert (filed.state, filed.number) == (state, number)


def test_a_dead_letter_filed_twice_is_one_and_the_first_is_shown() -> None:
    """After a crash the next owner files it again: under another epoch, perhaps only as a follower of its key."""
    again = dead_letter(0, error="parked", epoch=2)
    assert only(A, A) == only(A, again) == only(A)
    assert only(A, verdict("again", 1), again).state == "again"


def test_dead_letters_are_in_the_order_of_their_first_filing() -> None:
    found = fold(
        [dead_letter(2), dead_letter(0), dead_letter(2), verdict("again", 1, of=2), dead_letter(1), dead_letter(0)]
    )
    assert [filed.dead_letter.event.sequence for filed in found] == [2, 0, 1]


def test_a_failed_try_shows_its_error() -> None:
    filed = only(A, verdict("again", 1), verdict("failed", 1, why="second"))
    assert (filed.state, filed.error, filed.dead_letter.error) == ("dead", "second", "first")
    assert only(A, verdict("again", 1, why="mended")).error == "first"


def test_all_verdicts_are_told() -> None:
    verdicts = (verdict("again", 1), verdict("failed", 1), verdict("hm", 1))
    assert only(A, *verdicts, verdicts[0]).verdicts == verdicts


@pytest.mark.parametrize("end", [verdict("dropped", 1), verdict("redriven", 1)])
def test_what_fails_anew_after_it_was_settled_is_dead_again(end: Verdict) -> None:
    anew = dead_letter(0, error="anew", epoch=5)
    filed = only(A, verdict("again", 1), end, anew)
    assert (filed.state, filed.number, filed.error, filed.dead_letter) == ("dead", 1, "anew", anew)
    late = only(A, verdict("again", 1), end, anew, end, verdict("redriven", 1, why="late"), verdict("failed", 1), A)
    assert (late.state, late.dead_letter) == ("dead", anew), "what is over does not speak for what came after it"
    once_more = only(A, verdict("again", 1), end, anew, filed.asked(by="", why="", at=0.0))
    assert (once_more.state, once_more.number) == ("again", 2)


def test_of_two_who_ask_for_the_same_try_one_is_heard() -> None:
    """They looked at the same time; the second one's wish arrives when the try has been answered."""
    bea = Verdict(dead_letter="0@0", kind="again", number=1, by="bea")
    assert only(A, verdict("again", 1), verdict("failed", 1), bea).state == "dead"


def test_what_nobody_knows_is_ignored() -> None:
    assert fold([verdict("again", 1, of=7), A, object(), None]) == [Filed(dead_letter=A)]


def test_a_verdict_that_came_first_counts() -> None:
    assert only(verdict("again", 1), A).state == "again"


def test_what_is_to_be_done_again_is_in_order() -> None:
    filed = fold([dead_letter(0), dead_letter(1), dead_letter(2), verdict("again", 1, of=2), verdict("again", 1, of=0)])
    assert [one.dead_letter.event.sequence for one in filed if one.state == "again"] == [0, 2]


def test_its_own_verdicts_fit() -> None:
    filed = only(A)
    asked = filed.asked(by="me", why="mended", at=1.0)
    filed = only(A, asked)
    assert filed.state == "again"
    failed = filed.answered("no", by="one", at=2.0)
    assert only(A, asked, failed).error == "no"
    assert only(A, asked, filed.answered(None, by="one", at=2.0)).state == "redriven"
    assert only(A, asked, filed.dropped(by="me", why="", at=2.0)).state == "dropped"
