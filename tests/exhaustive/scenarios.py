"""What is searched whole: small worlds, each with a few kinds of faults, and what must be found to happen in them.

`ticks` is how far `make test` goes; `deeper` is added to it by `python -m tests.exhaustive --deeper`.
"""

from __future__ import annotations

import gc
from typing import NamedTuple

from evenflow.core.decide import RECLAIMED
from tests.exhaustive.instance import still_loop
from tests.exhaustive.model import Bounds, Protocol
from tests.exhaustive.search import Found, explore


class Scenario(NamedTuple):
    bounds: Bounds
    states: int
    """At least so many."""
    reaches: frozenset[str]
    """What must have happened, so that the search cannot become empty unnoticed: see `Protocol.reached`."""


def scenario(states: int, *reaches: str, **bounds: object) -> Scenario:
    return Scenario(Bounds(**bounds), states, frozenset(reaches))  # type: ignore[arg-type]


BROKEN_OFF = "taken over", "taken again", "seal"
SCENARIOS = {
    "a group begins": scenario(15_000, "claimed", "claim: revision", ticks=2, begins="nothing"),
    "stalls": scenario(45_000, *BROKEN_OFF, "claim: mark", "commit, refused", ticks=4),
    "settings differ": scenario(7_000, "taken again", ticks=4, ttls=(5, 3)),
    "late answers": scenario(80_000, *BROKEN_OFF, ticks=3, slow=1),
    "answers that do not come": scenario(
        100_000, *BROKEN_OFF, "commit, late", "claim, late", "heartbeat, late", ticks=3, given_up=1
    ),
    "handoffs": scenario(10_000, "handed over", "pass, late", "pass: revision", ticks=2, handoff=True, given_up=1),
    "retiring and starting again": scenario(20_000, "released", "handed over", ticks=2, retires=1, starts=1),
    "crashes and restarts": scenario(1_000, "commit, late", ticks=2, crashes=1, starts=1),
    "two processes under one id": scenario(4_000, "heartbeat, refused", ticks=2, twins=True, begins="nothing"),
    "the group is deleted": scenario(30_000, "seal, refused", "commit, refused", ticks=2, deletes=1),
    "the store is emptied": scenario(15_000, RECLAIMED.partition(":")[0], "remember", ticks=2, empties=1),
    "the store is emptied and the group began at the end of the log": scenario(
        900, "seal, refused", ticks=1, handoff=True, start="latest", appends=1, empties=1
    ),
    "the last write is lost": scenario(45_000, "taken again", "remember", ticks=2, losses=1),
    "the last write is lost and the group began at the end of the log": scenario(
        50_000, "taken again", "remember", ticks=2, start="latest", appends=1, losses=1
    ),
}
DEEPER = {
    "the last writes are lost": scenario(1, "taken again", ticks=1, losses=1, copies=1, begins="handled", events=2),
    "many late answers": scenario(1, *BROKEN_OFF, ticks=3, slow=2),
    "everything goes wrong": scenario(
        1, "taken over", ticks=2, given_up=2, crashes=1, starts=1, deletes=1, losses=1, retires=1
    ),
}


def searched(bounds: Bounds, most: int | None = None) -> tuple[Found, set[str]]:
    """All of it, or up to the first violation, or the first `most` states; and what was reached."""
    protocol = Protocol(bounds)
    gc.disable()  # millions of small tuples, and no cycles
    try:
        with still_loop():
            found = explore(protocol, ticks=bounds.ticks, most=most)
    finally:
        gc.enable()
    return found, protocol.reached()
