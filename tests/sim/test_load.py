"""With balance="load", in worlds whose partitions have Zipf-distributed loads: even by the true loads, no flapping."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.load import live
from evenflow.core import load as core_load
from evenflow.runtime import load as runtime_load
from evenflow.testing.simulated import World, draw
from evenflow.testing.simulated.checkers import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET_S = 200.0
NOISY: dict[str, Any] = {
    "balance": "load",
    "zipf": 0.0,
    "noise": 0.1,
    "partitions": 9,
    "instances": 3,
    "incidents": (),
    "rates": {},
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What goes wrong in a simulated world is meant to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("power", "seed"), [(0.6, 1), (1.0, 2), (1.5, 1)])
def test_after_joins_and_leaves_the_load_is_even_and_then_nothing_moves(power: float, seed: int) -> None:
    found = live(seed, 20, power, "load", quiet_s=QUIET_S)
    assert found.most <= found.bar + 1e-9
    assert found.moves > 0
    assert found.quiet_moves == 0


def test_the_same_worlds_are_uneven_by_count() -> None:
    found = live(10, 20, 1.0, "count", quiet_s=0.0)
    assert found.most > found.bar


def test_worlds_that_balance_by_load_are_among_those_that_are_drawn() -> None:
    by_load = [seed for seed in range(20_000, 20_300) if draw(seed).balance == "load"]
    assert 20 <= len(by_load) <= 90
    assert {draw(seed).zipf for seed in by_load} == {0.0, 0.7, 1.0, 1.5}


def test_without_hysteresis_the_checker_finds_leases_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least gain is enough for a move, and the least change is published: noise keeps leases moving."""
    for name in ("START", "STOP", "GAIN", "FINE", "PACK_GAIN", "ENOUGH", "STEP"):
        monkeypatch.setattr(core_load, name, 1e-6)
    for name in ("NEWS", "NEWS_LATER"):
        monkeypatch.setattr(runtime_load, name, 1e-6)
    with pytest.raises(Violation, match="leases move"):
        World(draw(6, **NOISY)).run()


def test_with_it_the_same_world_is_quiet() -> None:
    World(draw(6, **NOISY)).run()
