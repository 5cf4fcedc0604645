"""When a checkpoint is due."""

from __future__ import annotations

from typing import Any

import pytest

from evenflow.core.checkpointing import Every, Manual, is_due, room
from evenflow.errors import Misconfigured

BOTH = Every(events=10, seconds=2.0)


@pytest.mark.parametrize(
    ("policy", "events", "seconds", "due"),
    [
        (Every(events=10), 9, 1e9, False),
        (Every(events=10), 10, 0.0, True),
        (Every(events=10), 11, 0.0, True),
        (Every(seconds=2.0), 1, 1.9, False),
        (Every(seconds=2.0), 1, 2.0, True),
        (Every(seconds=2.0), 10**9, 1.9, False),
        (BOTH, 9, 1.9, False),
        (BOTH, 10, 0.0, True),
        (BOTH, 1, 2.0, True),
        (BOTH, 0, 1e9, False),
        (Every(seconds=2.0), 0, 1e9, False),
        (Manual(), 10**9, 1e9, False),
    ],
)
def test_due_is_enough_events_or_enough_seconds_with_something_to_write(
    policy: Every | Manual, events: int, seconds: float, due: bool
) -> None:
    assert is_due(policy, events, seconds) is due


@pytest.mark.parametrize(
    ("policy", "events", "most"),
    [
        (Every(events=10), 0, 10),
        (Every(events=10), 7, 3),
        (Every(events=10), 10, 1),
        (Every(events=10), 25, 1),
        (BOTH, 4, 6),
        (Every(seconds=2.0), 4, None),
        (Manual(), 4, None),
    ],
)
def test_room_ends_where_the_next_checkpoint_is_due(policy: Every | Manual, events: int, most: int | None) -> None:
    assert room(policy, events) == most


@pytest.mark.parametrize(
    "options",
    [
        {"events": 0},
        {"events": -1},
        {"events": 2.5},
        {"events": "10"},
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": "1"},
        {"events": True},
        {"seconds": True},
        {"events": 10, "seconds": 0.0},
        {"events": 0, "seconds": 1.0},
    ],
)
def test_a_policy_that_can_never_be_due_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="events must be a whole number of at least 1 and seconds above 0"):
        Every(**options)


def test_a_policy_without_a_measure_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"such as Every\(seconds=1\)"):
        Every()
