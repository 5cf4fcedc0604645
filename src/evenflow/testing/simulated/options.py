"""What a simulated world is like, all of it drawn from one seed.

Each world knows only some kinds of faults, with rates of its own: many small worlds find more than one that has
everything.
"""

from __future__ import annotations

import random
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal
from zlib import crc32

from msgspec import Struct

from evenflow.core.checkpointing import Every, Manual
from evenflow.core.failure import Breaker, Retry
from evenflow.testing.simulated.burdens import draw_blocked, draw_crowd, draw_slow_store
from evenflow.testing.simulated.calls import draw_calls
from evenflow.testing.simulated.clocks import draw_clocks
from evenflow.testing.simulated.cuts import draw_cuts
from evenflow.testing.simulated.losses import LOSSES, draw_losses
from evenflow.testing.simulated.moves import draw_moves, is_moving
from evenflow.testing.simulated.together import draw_by_lease, draw_together
from evenflow.testing.simulated.transactions import draw_effects

FAULTS = ("crash", "stall", "twin", "outage", "lose_writes", "slow")
"""Faults that happen at some moment."""
RATES = ("lost_request", "lost_reply", "held_up", "lost_wake", "repeat", "handler_fails", "source_fails", "freeze")
"""Faults that each request, delivery or call may meet."""
STEPS = ("blocked",)
"""Those that each step of the runtime may meet."""
PLANNED = ("join", "retire", "grow", "seek", "pause")
ENDINGS = ("split", "merge")
"""Planned as well, and only in a part of the worlds."""
SPLITS_EVERY = 6
TROUBLES = ("dead_letters_away", "handler_away", "redrive")
"""What happens only where events fail: their target is away, so is what the handler needs; somebody redrives."""

FAILING_EVERY = 3

CALM_EVERY = 6
LEAST_EVERY = 7
CALM: dict[str, Any] = {
    "checkpoint": Every(seconds=1.0),
    "call_s": 0.01,
    "long_call_chance": 0.0,
    "mean_gap_s": 6.0,
    "concurrency": None,
}

LOAD_CHANCE = 0.2

BY_LEASE_EVERY = 8
BY_LEASE = ("crash", "stall", "twin", "outage", "slow", "join", "retire", "grow")

HEARTBEAT_S = 2.0
MARGIN_S = 1.0
TTLS_S = (6.0, 8.0, 10.0)
LONGEST_TTL_S = 12.0


class Failing(Struct, frozen=True, kw_only=True):
    """Which events fail, and what is done about them."""

    poison: float = 0.01
    """The share of events that fail whenever they are tried, until somebody mends the handler."""
    once: float = 0.05
    """The share that fails the first time."""
    deadly: float = 0.0
    """The share that ends the process which tries it."""
    keys: int = 4
    """How many keys events have; some have none."""
    order: str | None = None
    retry: Retry = Retry(attempts=3, first_s=0.1, most_s=2.0)
    breaker: Breaker | None = None
    dead_letters_s: float = 0.01
    """How long the target of dead letters takes, one way."""
    redrive_all: bool = False
    """In the end somebody mends the handler for good, and redrives whatever is left."""


class Options(Struct, frozen=True, kw_only=True):
    seed: int
    instances: int = 2
    partitions: int = 4
    faulty_s: float = 60.0
    """How long faults go on; then all is healed."""
    mean_gap_s: float = 15.0
    """Between two faults of one kind."""
    incidents: tuple[str, ...] = ()
    rates: dict[str, float] = {}
    ttls_s: tuple[float, ...] = (8.0,)
    latency_s: float = 0.01
    event_gap_s: float = 0.3
    call_s: float = 0.01
    long_call_chance: float = 0.0
    batch: bool = False
    checkpoint: Every | Manual = Every(seconds=1.0)
    start: str = "earliest"
    drift: float = 0.0
    """How much an instance's clock may run fast or slow, as a share."""
    loop_drift: float = 0.0
    """How much its loop's clock runs apart from its own, as a share, where something happens to clocks."""
    manual_chance: float = 0.3
    concurrency: int | None = None
    least: tuple[int | None, ...] = ()
    """How many partitions some instances want at least; which one it is, its name decides."""
    weights: tuple[float, ...] = ()
    """By which shares of instances differ; which one an instance has, its name decides."""
    same_ids: bool = True
    """A crashed instance comes back under its old id."""
    balance: Literal["count", "load"] = "count"
    load_s: float = 15.0
    zipf: float | None = None
    """The power of the partitions' loads; None: they are all alike, and as light as they come."""
    busiest: float = 0.05
    """The busy share of the heaviest partition, where loads differ."""
    noise: float = 0.0
    """How much longer or shorter a call may take than its load says, as a share."""
    ending: Literal["kept", "gone"] = "kept"
    """What becomes of partitions that split or merge: they can be read to their end, or vanish at once."""
    store: Literal["one_step", "by_lease"] = "one_step"
    """Whether the store changes what belongs together in one step, or each lease by itself."""
    each_s: float = 0.0
    """How long the store takes for each checkpoint, one after the other."""
    failing: Failing | None = None
    """None: no event is bad, though handlers may fail for other reasons."""
    plain: bool = False
    """Handlers are no async functions: they run on threads."""
    limit_s: float | None = None
    """The time limit of calls (`handler_timeout_s`)."""
    effects: bool = False
    """Handlers write their effects in transactions of the store."""

    @property
    def wait_most_s(self) -> float | None:
        """How long an event may wait while nothing goes wrong: a drain, a handful of trips, and a heartbeat, for who
        leaves before it has seen anybody else alive can only let go.
        """
        halts = {"grow", "pause", *ENDINGS} & set(self.incidents)
        quick = self.call_s <= 0.01 and not self.long_call_chance and not halts and self.zipf is None
        quick = quick and not (self.each_s or self.plain or self.effects)
        return 1.25 * HEARTBEAT_S + 30 * self.latency_s if quick else None

    @property
    def remembers_alone(self) -> bool:
        """What is handled is known to be, as soon as its call has returned."""
        forgets = self.effects and {"lose_writes", *LOSSES} & set(self.incidents)  # the record alone is the truth
        return not (isinstance(self.checkpoint, Manual) or self.failing or self.has_splits or forgets)

    def least_of(self, name: str) -> int | None:
        return self.least[crc32(name.encode()) % len(self.least)] if self.least else None

    def weight_of(self, name: str) -> float:
        return self.weights[crc32(name.encode()) % len(self.weights)] if self.weights else 1.0

    @property
    def has_splits(self) -> bool:
        return bool({*ENDINGS} & set(self.incidents))

    @property
    def is_calm(self) -> bool:
        """Nothing unplanned can happen, so nothing may be handled twice."""
        faults = self.loop_drift or set(self.incidents) & set(FAULTS)
        repeats = isinstance(self.checkpoint, Manual) or "seek" in self.incidents
        repeats = repeats or self.failing is not None or self.limit_s is not None
        return not faults and not any(self.rates.values()) and not repeats


def draw(seed: int, **fixed: Any) -> Options:
    """The world of this seed; `fixed` overrides what it draws."""
    rng, is_free = random.Random(seed), not fixed
    known = rng.sample(FAULTS, rng.choice((0, 1, 1, 2, 2, 3)))
    known += [kind for kind in PLANNED if rng.random() < 0.35]
    rates = {kind: rng.choice((0.01, 0.05, 0.15)) for kind in rng.sample(RATES, rng.choice((0, 0, 1, 2, 3)))}
    if seed % CALM_EVERY == 0:  # planned moves alone, which are most of a fleet's life
        pauses = seed % (2 * CALM_EVERY) == 0 and not is_moving(seed)
        known, rates, fixed = ["join", "retire", *["pause"] * pauses], {}, CALM | draw_moves(seed) | fixed
    drawn: dict[str, Any] = {
        "instances": rng.choice((1, 2, 2, 3, 4)),
        "partitions": rng.choice((1, 2, 3, 5, 8)),
        "faulty_s": rng.choice((40.0, 60.0, 90.0)),
        "mean_gap_s": rng.choice((6.0, 12.0, 25.0)),
        "incidents": tuple(known),
        "rates": rates,
        "ttls_s": TTLS_S if rng.random() < 0.4 else (rng.choice(TTLS_S),),
        "latency_s": rng.choice((0.001, 0.01, 0.05, 0.3)),
        "event_gap_s": rng.choice((0.1, 0.3, 1.0)),
        "call_s": rng.choice((0.0, 0.01, 0.2, 1.0)),
        "long_call_chance": rng.choice((0.0, 0.0, 0.01)),
        "batch": rng.random() < 0.4,
        "checkpoint": rng.choice(
            (Every(seconds=1.0), Every(seconds=1.0), Every(events=5), Every(events=3, seconds=5.0), Manual())
        ),
        "start": rng.choice(("earliest", "earliest", "latest")) if "lose_writes" not in known else _start(seed),
        "drift": rng.choice((0.0, 0.0, 0.01, 0.03)),
        "concurrency": rng.choice((None, None, None, 1)),
        "same_ids": rng.random() < 0.7,
    }
    if seed % FAILING_EVERY == 1 and "failing" not in fixed:
        drawn["failing"], more = draw_failing(seed, known)
        # Where partitions vanish, an event has a place in each generation, and is bad in none but the first.
        more += draw_splits(seed)[1] if seed % (4 * FAILING_EVERY) == 1 + 2 * FAILING_EVERY else []
        drawn["incidents"] = (*known, *more)
    elif is_moving(seed):
        pass
    elif seed % SPLITS_EVERY == 2 or seed % (2 * CALM_EVERY) == CALM_EVERY:
        drawn["ending"], more = draw_splits(seed)
        drawn["incidents"] = (*known, *more)
    elif rng.random() < LOAD_CHANCE:
        if isinstance(drawn["checkpoint"], Manual):
            drawn["checkpoint"] = Every(seconds=1.0)  # a handler that waits for the store has a load of its own
        drawn |= {"balance": "load", "zipf": rng.choice((0.0, 0.7, 1.0, 1.5)), "noise": rng.choice((0.0, 0.1))}
    elif seed % CALM_EVERY:
        _add_losses(seed, drawn)
    if seed % CALM_EVERY and "zipf" not in drawn and "incidents" not in fixed:
        drawn |= _clocks(seed, drawn["incidents"])
    drawn["rates"] = rates | draw_blocked(seed, calm=seed % CALM_EVERY == 0)
    if fixed.get("store") == "by_lease":
        drawn |= fixed
    else:
        drawn |= draw_crowd(seed) | fixed
        if drawn.get("balance") != "load":  # there, moves have a time by which they must be over
            drawn = draw_slow_store(seed, drawn["partitions"]) | drawn
    if fixed.get("store") == "by_lease" or (not {"store", "incidents"} & {*fixed} and _is_by_lease(seed, drawn)):
        drawn |= _by_lease(drawn)
        if not fixed and seed % CALM_EVERY:
            drawn["incidents"] += draw_by_lease(seed)
    elif not {"store", "incidents", "rates", "failing"} & {*fixed} and _is_plain(seed, drawn):
        drawn |= draw_together(seed, drawn)
    if drawn.get("balance", "count") == "count":
        drawn.setdefault("least", draw_least(seed))
    if is_free:
        drawn |= draw_calls(seed, drawn, calm=seed % CALM_EVERY == 0)
        drawn |= draw_effects(seed, drawn)
    return Options(seed=seed, **drawn)


def _is_plain(seed: int, drawn: dict[str, Any]) -> bool:
    """With faults, and nothing else is the matter with events and partitions."""
    is_even = drawn.get("zipf") is None and drawn.get("failing") is None
    return seed % CALM_EVERY > 0 and is_even and not {*ENDINGS} & {*drawn["incidents"]}


def _is_by_lease(seed: int, drawn: dict[str, Any]) -> bool:
    """A part of those worlds in which it makes a difference, where the store's driver is installed."""
    differs = {"crash", "stall", "twin", "join", "retire"} & {*drawn["incidents"]}
    return seed % BY_LEASE_EVERY == 4 and bool(differs) and not drawn.get("each_s") and _has_driver()


@cache
def _has_driver() -> bool:
    return all(find_spec(name) is not None for name in ("azure", "azure.storage", "azure.storage.blob", "aiohttp"))


def _by_lease(drawn: dict[str, Any]) -> dict[str, Any]:
    """Each heartbeat is several requests, and wishes of people are not simulated there."""
    return {
        "store": "by_lease",
        "incidents": tuple(kind for kind in drawn["incidents"] if kind in BY_LEASE),
        "latency_s": min(drawn["latency_s"], 0.02),
        "balance": "count",
        "zipf": None,
        "failing": None,
    }


def _add_losses(seed: int, drawn: dict[str, Any]) -> None:
    """Where nothing else is the matter with events and partitions. A seek would be lost, too."""
    losses, cuts = draw_losses(seed), draw_cuts(seed)
    if losses:
        drawn["start"] = _start(seed)
        drawn["incidents"] = tuple(kind for kind in drawn["incidents"] if kind != "seek")
    drawn["incidents"] += (*losses, *cuts)


def _clocks(seed: int, incidents: tuple[str, ...]) -> dict[str, Any]:
    """Where handlers have no loads, which are measured on these clocks."""
    drawn = draw_clocks(seed)
    kinds = drawn.pop("clocks", ())
    return {"incidents": (*incidents, *kinds), **drawn} if kinds else {}


def _start(seed: int) -> str:
    """By dice of its own: other worlds stay."""
    return random.Random(seed * 7919 + 7).choice(("earliest", "latest"))


def draw_least(seed: int) -> tuple[int | None, ...]:
    """Who wants some partitions at least, in the world of this seed. By dice of its own: other worlds stay."""
    rng = random.Random(seed * 7919 + 6)
    return tuple(rng.choice((None, 1, 2, 3)) for _ in range(3)) if seed % LEAST_EVERY == 3 else ()


def draw_splits(seed: int) -> tuple[str, list[str]]:
    """What becomes of partitions that end in the world of this seed, and how they do."""
    rng = random.Random(seed * 7919 + 4)
    return rng.choice(("kept", "gone")), rng.choice((["split"], ["split", "merge"], ["split", "split", "merge"]))


def draw_failing(seed: int, known: list[str]) -> tuple[Failing, list[str]]:
    """How events fail in the world of this seed, and what happens beside. By dice of its own: other worlds stay."""
    rng = random.Random(seed * 7919 + 2)
    attempts = rng.choice((1, 2, 3, 4))
    breaks = rng.random() < 0.3
    # A seek, and a store that loses its writes, make a partition begin to count anew.
    may_kill = not {"seek", "lose_writes"} & set(known)
    failing = Failing(
        poison=rng.choice((0.0, 0.01, 0.01, 0.1)),
        once=rng.choice((0.0, 0.05, 0.05)) if attempts > 1 else 0.0,
        deadly=rng.choice((0.0, 0.0, 0.01)) if may_kill else 0.0,
        keys=rng.choice((1, 3, 10)),
        order=rng.choice((None, "key", "key")),
        retry=Retry(attempts=attempts, first_s=0.1, most_s=2.0),
        breaker=Breaker(share=0.5, events=6, first_s=0.5, most_s=4.0) if breaks else None,
        dead_letters_s=rng.choice((0.0, 0.01, 0.3)),
        redrive_all=rng.random() < 0.5,
    )
    return failing, [kind for kind in TROUBLES if rng.random() < 0.4 and (kind != "handler_away" or breaks)]
