"""The books of the demo: events lost, handled twice and handled again are counted exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples.home_security.accounts import Books, ConsumerAccount, HandledCounts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)


@pytest.fixture
def ada(tmp_path: Path) -> Iterator[ConsumerAccount]:
    account = ConsumerAccount(tmp_path, "ada")
    yield account
    account.close()


@pytest.fixture
def bo(tmp_path: Path) -> Iterator[ConsumerAccount]:
    account = ConsumerAccount(tmp_path, "bo")
    yield account
    account.close()


def tally(books: Books, newest: int = 9) -> HandledCounts:
    books.read()
    return books.tally({"0": newest})


def test_a_planned_move_without_a_gap(books: Books, ada: ConsumerAccount, bo: ConsumerAccount) -> None:
    ada.handled("0", 1, range(4))
    ada.handled("0", 1, range(4, 6))
    ada.ended("0", 1, "handed over")
    bo.handled("0", 2, range(6, 10))
    assert tally(books) == HandledCounts(handled=10)
    assert books.reached("0") == 9
    assert books.by_consumer == {"ada": 6, "bo": 4}


def test_an_event_in_no_account_is_lost(books: Books, ada: ConsumerAccount) -> None:
    ada.handled("0", 1, range(4))
    ada.handled("0", 1, range(5, 9))
    assert tally(books) == HandledCounts(handled=8, lost=2)


def test_a_partition_that_nobody_touched_is_lost_whole(books: Books) -> None:
    assert tally(books) == HandledCounts(lost=10)
    assert books.tally({"0": -1}) == HandledCounts()


@pytest.mark.parametrize("reason", ["handed over", "leaving", "kept"])
def test_twice_is_what_a_planned_move_repeats(
    books: Books, ada: ConsumerAccount, bo: ConsumerAccount, reason: str
) -> None:
    ada.handled("0", 1, range(6))
    ada.ended("0", 1, reason)
    bo.handled("0", 2, range(4, 10))
    assert tally(books) == HandledCounts(handled=10, twice=2)


def test_again_is_what_a_kill_repeats(books: Books, ada: ConsumerAccount, bo: ConsumerAccount) -> None:
    ada.handled("0", 1, range(6))
    bo.handled("0", 2, range(4, 10))
    assert tally(books) == HandledCounts(handled=10, again=2)


@pytest.mark.parametrize("reasons", [["fenced"], ["lost"], ["fenced", "handed over"]])
def test_again_is_what_a_stall_repeats(
    books: Books, ada: ConsumerAccount, bo: ConsumerAccount, reasons: list[str]
) -> None:
    ada.handled("0", 1, range(6))
    for reason in reasons:
        ada.ended("0", 1, reason)
    bo.handled("0", 2, range(4, 10))
    assert tally(books) == HandledCounts(handled=10, again=2)


def test_each_repeat_counts_and_is_blamed_on_the_last_who_had_it(
    books: Books, ada: ConsumerAccount, bo: ConsumerAccount
) -> None:
    ada.handled("0", 1, range(6))
    bo.handled("0", 2, range(2, 8))
    bo.ended("0", 2, "handed over")
    ada.handled("0", 3, range(10))
    # 2..5 again in epoch 2; then 0..1 of ada's, who never ended epoch 1, and 2..7 of bo's, who did end epoch 2.
    assert tally(books) == HandledCounts(handled=10, again=4 + 2, twice=6)


def test_an_epoch_that_repeats_itself_is_no_better(books: Books, ada: ConsumerAccount) -> None:
    ada.handled("0", 1, range(6))
    ada.handled("0", 1, range(4, 10))
    ada.ended("0", 1, "leaving")
    assert tally(books) == HandledCounts(handled=10, twice=2)


def test_events_out_of_order_are_written_one_by_one(books: Books, ada: ConsumerAccount) -> None:
    ada.handled("0", 1, [0, 1, 3])
    assert tally(books, newest=3) == HandledCounts(handled=3, lost=1)


def test_reading_goes_on_where_it_ended_and_leaves_half_a_line(
    books: Books, ada: ConsumerAccount, tmp_path: Path
) -> None:
    ada.handled("0", 1, range(4))
    books.read()
    with (tmp_path / "ada.account").open("ab") as file:
        file.write(b"handled 0 1 4 ")
        file.flush()
        assert tally(books, newest=3) == HandledCounts(handled=4)
        file.write(b"9\n")
        file.flush()
        assert tally(books) == HandledCounts(handled=10)


# --- what somebody wanted
def began(account: ConsumerAccount, epoch: int, ordinal: int, sequence: int) -> None:
    """As an owner does that goes on after this event."""
    account._write(f"began 0 {epoch} {ordinal} {sequence}\n")


def test_what_a_seek_brings_again_was_wanted(books: Books, ada: ConsumerAccount, bo: ConsumerAccount) -> None:
    began(ada, 1, 0, -1)
    ada.handled("0", 1, range(6))
    ada.ended("0", 1, "paused")
    began(bo, 4, 7, 1)  # a seek: ordinals go on, sequences go back
    bo.handled("0", 4, range(2, 8))
    bo.ended("0", 4, "handed over")
    began(ada, 5, 12, 6)
    ada.handled("0", 5, range(7, 10))
    assert tally(books) == HandledCounts(handled=10, sought=4, twice=1), "and a move after it is an ordinary one"


def test_a_pause_without_a_seek_repeats_nothing(books: Books, ada: ConsumerAccount, bo: ConsumerAccount) -> None:
    began(ada, 1, 0, -1)
    ada.handled("0", 1, range(6))
    ada.ended("0", 1, "paused")
    began(bo, 4, 2, 1)  # a checkpoint that was lost: both go back
    bo.handled("0", 4, range(2, 10))
    assert tally(books) == HandledCounts(handled=10, twice=4)


def test_what_a_seek_passes_over_is_not_lost(books: Books, ada: ConsumerAccount, bo: ConsumerAccount) -> None:
    began(ada, 1, 0, -1)
    ada.handled("0", 1, range(2))
    ada.handled("0", 1, range(3, 5))
    ada.ended("0", 1, "paused")
    began(bo, 4, 6, 7)
    bo.handled("0", 4, range(8, 10))
    assert tally(books) == HandledCounts(handled=6, passed_over=3, lost=1), "2 is, which it did not pass over"


def test_what_a_seek_passed_over_and_a_second_one_came_back_to_was_handled(
    books: Books, ada: ConsumerAccount, bo: ConsumerAccount
) -> None:
    began(ada, 1, 0, -1)
    ada.handled("0", 1, range(5))
    ada.ended("0", 1, "paused")
    began(bo, 4, 6, 7)
    bo.handled("0", 4, range(8, 10))
    bo.ended("0", 4, "paused")
    began(ada, 7, 9, 5)
    ada.handled("0", 7, range(6, 10))
    assert tally(books) == HandledCounts(handled=9, sought=2, passed_over=1)
