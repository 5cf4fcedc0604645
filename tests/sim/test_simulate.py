"""A user's own handler in the simulated world."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from evenflow.testing import Violation, simulate

if TYPE_CHECKING:
    from evenflow import Event, OwnedPartition

SEEDS = range(30)


def test_a_handler_sees_every_event_and_some_twice() -> None:
    seen: Counter[bytes] = Counter()

    async def count(event: Event, partition: OwnedPartition) -> None:
        seen[event.body] += 1

    assert simulate(count, seeds=SEEDS, body=lambda number: b"event %d" % number) == len(SEEDS)
    assert min(seen.values()) >= 1
    assert max(seen.values()) > 1


def test_a_handler_that_never_succeeds_is_found_and_the_seed_named() -> None:
    async def fail(event: Event, partition: OwnedPartition) -> None:
        raise ValueError("always")

    with pytest.raises(Violation, match=r"seed 0: .*not handled"):
        simulate(fail, seeds=[0])
