"""Breaking a rule on purpose makes the simulated world fail: each of the checkers is known to bite."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.testing.simulated import Violation, World, draw
from tests.sim.sabotage import WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_violation(seeds: int, **fixed: Any) -> tuple[int, str] | None:
    for seed in range(seeds):
        try:
            World(draw(seed, **fixed)).run()
        except Violation as violation:
            return seed, str(violation)
    return None


@pytest.mark.parametrize("way", WAYS)
def test_breaking_a_rule_is_found(way: str) -> None:
    sabotage, fixed = WAYS[way]
    with sabotage():
        found = first_violation(SEEDS, **fixed)
    assert found is not None, f"{way}: {SEEDS} worlds found nothing"
    print(f"{way}: seed {found[0]}: {found[1]}")


@pytest.mark.parametrize("way", WAYS)
def test_the_same_worlds_are_clean_when_no_rule_is_broken(way: str) -> None:
    _, fixed = WAYS[way]
    assert first_violation(25, **fixed) is None
