"""Faults that rarely come together by chance, and are to be seen together often enough in a thousand worlds.

By dice of their own: other worlds stay.
"""

from __future__ import annotations

import random
from typing import Any

from evenflow.testing.simulated.burdens import is_crowded

TOGETHER_SHARE = 0.2
TOGETHER: tuple[tuple[tuple[str, ...], dict[str, float]], ...] = (
    (("cut", "lose_writes", "join", "retire"), {}),
    (("cut", "lose_quietly", "join", "retire"), {}),
    (("cut", "empty", "join"), {}),
    (("cut",), {"blocked": 0.01}),
    (("cut", "join", "retire"), {"blocked": 0.03}),
)
"""What happens beside what was drawn, and what each step may meet."""
CROWDED_SHARE = 0.75
CROWDED = (
    ("empty", "cut", "set_wall"),
    ("delete_group", "lose_quietly", "lag"),
    ("lose_quietly", "cut", "leap"),
    ("lose_writes", "cut", "lag"),
    ("delete_group", "set_wall", "leap"),
)
"""What happens where partitions are many."""
BY_LEASE_SHARE = 0.3
BY_LEASE = (("cut",), ("cut", "suspend"), ("lag",), ("suspend", "lag", "cut"))
"""What happens where each lease changes by itself."""
LOST = ("empty", "delete_group", "lose_quietly", "lose_writes")


def draw_together(seed: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """What is added to a world that has faults, and no bad events, splits or loads."""
    rng = random.Random(seed * 7919 + 23)
    share = CROWDED_SHARE if is_crowded(seed) else TOGETHER_SHARE
    if rng.random() >= share or {"empty", "delete_group"} & {*drawn["incidents"]}:
        return {}
    more, rates = (rng.choice(CROWDED), {}) if is_crowded(seed) else rng.choice(TOGETHER)
    kinds = dict.fromkeys((*drawn["incidents"], *more))
    if {*LOST} & {*more}:
        kinds.pop("seek", None)  # it would be lost, too
    start = rng.choice(("earliest", "latest", "latest")) if {*LOST} & {*more} else drawn["start"]
    start = "earliest" if "empty" in kinds and {"suspend", "lag"} & kinds.keys() else start
    return {"incidents": tuple(kinds), "rates": drawn["rates"] | rates, "start": start}


def draw_by_lease(seed: int) -> tuple[str, ...]:
    """What is added to a world in which each lease changes by itself."""
    rng = random.Random(seed * 7919 + 24)
    return rng.choice(BY_LEASE) if rng.random() < BY_LEASE_SHARE else ()
