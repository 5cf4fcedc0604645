"""A user's own handler in the simulated world."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from evenflow import Misconfigured
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

    with pytest.raises(Violation, match=r"seed 0: .*not handled.*last error was ValueError\('always'\)"):
        simulate(fail, seeds=[0])


def test_a_handler_may_checkpoint_itself() -> None:
    async def mark(event: Event, partition: OwnedPartition) -> None:
        await partition.checkpoint()

    assert simulate(mark, seeds=SEEDS) == len(SEEDS)


def test_a_plain_handler_runs_on_simulated_threads_and_may_checkpoint_itself() -> None:
    seen: Counter[bytes] = Counter()
    threads: set[threading.Thread] = set()

    def count(event: Event, partition: OwnedPartition) -> None:
        seen[event.body] += 1
        threads.add(threading.current_thread())
        if event.sequence == 3:
            partition.checkpoint()

    assert simulate(count, seeds=SEEDS, body=lambda number: b"event %d" % number) == len(SEEDS)
    assert min(seen.values()) >= 1
    assert max(seen.values()) > 1
    assert threading.main_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("handler", [5, lambda event: None])
def test_what_is_no_handler_is_refused(handler: Any) -> None:
    with pytest.raises(Misconfigured):
        simulate(handler, seeds=[0])
