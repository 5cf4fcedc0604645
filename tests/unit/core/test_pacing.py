"""How many items a request carries, from what the store answered, and who is first."""

from __future__ import annotations

import pytest

from evenflow.core.pacing import FIRST, HEAD_START_S, Pace, in_turn

LIMIT_S = 4.0


@pytest.mark.parametrize(
    ("most", "items", "took_s", "then"),
    [
        (100, 100, 0.01, 400),  # quick: larger, but not by more than a factor
        (100, 100, 0.0, 400),
        (100, 100, 1.0, 200),  # so that it takes half of the limit
        (100, 100, 2.0, 100),
        (100, 100, 3.0, 100),  # more than half, but not near the limit
        (100, 100, 3.3, 60),
        (100, 100, 4.0, 50),
        (1, 1, 4.0, 1),
        (1, 1, 0.1, 4),
        (1, 1, 3.0, 1),
        (100, 99, 0.01, 100),  # not full
        (100, 60, 4.0, 30),  # a full one would not have been answered
        (100, 50, 4.0, 100),  # a small one that is slow: not because of its items
        (100, 5, 3.9, 100),
    ],
)
def test_an_answer_sizes_the_next_request(most: int, items: int, took_s: float, then: int) -> None:
    assert Pace(most).answered(items, took_s, LIMIT_S) == Pace(then)


@pytest.mark.parametrize(
    ("most", "items", "took_s", "then"),
    [
        (100, 100, 4.0, 25),
        (100, 40, 4.0, 10),
        (100, 200, 4.0, 25),  # it was sent before an earlier answer made requests smaller
        (3, 3, 4.0, 1),
        (100, 100, 2.0, 25),
        (100, 100, 1.9, 100),  # refused soon: not because it was large
        (100, 100, 0.0, 100),
    ],
)
def test_no_answer_makes_requests_smaller(most: int, items: int, took_s: float, then: int) -> None:
    assert Pace(most).unanswered(items, took_s, LIMIT_S) == Pace(then)


@pytest.mark.parametrize(
    ("pace", "items", "took_s", "then"),
    [
        (Pace(1), 1, 4.0, Pace(1, 2)),
        (Pace(100), 1, 4.0, Pace(1, 2)),
        (Pace(1, 2), 1, 8.0, Pace(1, 4)),
        (Pace(1, 4), 1, 16.0, Pace(1, 4)),
        (Pace(4, 4), 4, 16.0, Pace(1, 4)),
    ],
)
def test_where_not_even_one_item_is_answered_it_is_waited_for_longer(
    pace: Pace, items: int, took_s: float, then: Pace
) -> None:
    assert pace.unanswered(items, took_s, LIMIT_S * pace.stretch) == then


@pytest.mark.parametrize(
    ("pace", "items", "took_s", "then"),
    [
        (Pace(1, 4), 1, 10.0, Pace(2, 4)),  # it waited for others, and so may two
        (Pace(24, 4), 24, 12.0, Pace(27, 4)),
        (Pace(8, 4), 8, 14.0, Pace(4, 4)),
        (Pace(8, 4), 7, 9.0, Pace(8, 4)),
        (Pace(8, 4), 7, 2.0, Pace(8, 1)),  # as quick as usual again
        (Pace(8, 4), 8, 2.0, Pace(32, 1)),
        (Pace(8, 4), 8, 2.1, Pace(30, 4)),
    ],
)
def test_when_it_is_answered_again_requests_grow(pace: Pace, items: int, took_s: float, then: Pace) -> None:
    assert pace.answered(items, took_s, LIMIT_S * pace.stretch) == then


@pytest.mark.parametrize(
    ("pace", "others", "took_s", "then"),
    [
        (Pace(8), 8, 2.0, Pace(16)),
        (Pace(8), 8, 2.1, Pace(9)),
        (Pace(8), 8, 3.3, Pace(8)),  # it was behind something larger
        (Pace(8), 7, 0.1, Pace(8)),
        (Pace(8, 2), 8, 2.0, Pace(16)),
        (Pace(8, 2), 8, 4.1, Pace(9, 2)),
        (Pace(8, 2), 7, 1.0, Pace(8)),
    ],
)
def test_as_many_requests_are_under_way_as_are_answered(pace: Pace, others: int, took_s: float, then: Pace) -> None:
    assert pace.answered_beside(others, took_s, LIMIT_S * pace.stretch) == then


@pytest.mark.parametrize("each_s", [0.0, 0.0001, 0.001, 0.025, 0.1, 0.5, 1.0, 3.0])
def test_whatever_an_item_takes_a_few_requests_find_the_size(each_s: float) -> None:
    """From then on none is unanswered, and none is so small that trips matter."""
    pace, unanswered = Pace(), 0
    for _ in range(12):
        items = min(pace.most, 10_000)
        took_s = items * each_s
        if took_s > LIMIT_S:
            unanswered += 1
            pace = pace.unanswered(items, LIMIT_S, LIMIT_S)
        else:
            pace = pace.answered(items, took_s, LIMIT_S)
    assert unanswered <= 4
    took_s = pace.most * each_s
    assert took_s <= 0.8 * LIMIT_S
    assert took_s >= LIMIT_S / 4 or pace.most == 1 or pace.most >= 10_000


def test_the_first_request_of_a_common_group_is_whole() -> None:
    assert Pace().most == FIRST == 128


def test_who_came_first_is_first() -> None:
    assert in_turn({"b": 2.0, "a": 1.0, "c": 3.0}, ()) == ["a", "b", "c"]


def test_those_that_a_caller_waits_for_have_a_head_start() -> None:
    since_s = {"old": 0.0, "routine": 5.0, "waiting": HEAD_START_S + 1.0, "late": HEAD_START_S + 6.0}
    assert in_turn(since_s, {"waiting", "late"}) == ["old", "waiting", "routine", "late"]
