"""Breaking a rule on purpose makes the simulated world fail: each of the checkers is known to bite."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.testing.simulated import Violation, World, draw
from tests.sim.sabotage import WAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEEDS = 400
CLEAN = range(6)
"""More than the first ones find in any way; see FOUND for the others."""
FOUND = {
    "a commit without the epoch": 44,
    "a swap in doubt taken for undone": 21,
    "a late seal that makes a record": 20,
    "a newcomer's start that stands in an emptied store": 12,
    "moves back to one that leaves": 19,
}
"""Worlds that are known to find it, where the first ones do not: they are tried first, and then all in turn."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_violation(seeds: Iterable[int], **fixed: Any) -> tuple[int, str] | None:
    for seed in seeds:
        try:
            World(draw(seed, **fixed)).run()
        except Violation as violation:
            return seed, str(violation)
    return None


@pytest.mark.parametrize("way", WAYS)
def test_breaking_a_rule_is_found(way: str) -> None:
    sabotage, fixed = WAYS[way]
    with sabotage():
        found = first_violation([FOUND.get(way, 0), *range(SEEDS)], **fixed)
    assert found is not None, f"{way}: {SEEDS} worlds found nothing"
    print(f"{way}: seed {found[0]}: {found[1]}")


def by_options() -> dict[str, tuple[set[int], dict[str, Any]]]:
    """What the worlds of all ways are: those with the same options are the same worlds."""
    found: dict[str, tuple[set[int], dict[str, Any]]] = {}
    for way, (_, fixed) in WAYS.items():
        same = (name for name, (_, options) in found.items() if options == fixed)
        seeds, _ = found.setdefault(next(same, way), (set(CLEAN), fixed))
        seeds.add(FOUND.get(way, 0))
    return found


@pytest.mark.parametrize(("seeds", "fixed"), by_options().values(), ids=by_options())
def test_the_same_worlds_are_clean_when_no_rule_is_broken(seeds: set[int], fixed: dict[str, Any]) -> None:
    assert first_violation(sorted(seeds), **fixed) is None
