"""All interleavings of two instances over one partition, within bounds, in the real rules of the protocol."""

from __future__ import annotations

import pytest

from tests.exhaustive.sabotage import WAYS
from tests.exhaustive.scenarios import SCENARIOS, searched


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    bounds, states, reaches = SCENARIOS[name]
    found, reached = searched(bounds)
    print(f"{name}: {found}")
    assert not found.violation, f"{name}: {found}"
    assert found.states >= states
    assert reaches <= reached, f"{name}: {reaches - reached} did not happen"


@pytest.mark.parametrize("way", WAYS)
def test_breaking_a_rule_is_found_and_only_that(way: str) -> None:
    sabotage, bounds = WAYS[way]
    with sabotage():
        found, _ = searched(bounds)
    print(f"{way}: {found}")
    assert found.violation, f"{way}: not found in {found}"
    assert found.trace
    clean, _ = searched(bounds, most=min(found.states, 20_000))
    assert not clean.violation, f"without breaking anything: {clean}"
