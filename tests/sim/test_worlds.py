"""The real runtime in many simulated worlds, each made from one seed: no invariant is ever broken."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from evenflow import Every, Manual
from evenflow.cli.app import assembled
from evenflow.testing.simulated import World, draw
from evenflow.testing.simulated.burdens import is_crowded
from evenflow.testing.simulated.clocks import CLOCKS
from evenflow.testing.simulated.losses import LOSSES
from evenflow.testing.simulated.moves import is_moving
from evenflow.testing.simulated.options import ENDINGS, FAULTS, PLANNED, RATES, STEPS, TROUBLES, Failing
from evenflow.testing.simulated.run import Found, run_seed
from tests.sim.sabotage import never_stops_itself

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = range(20_000, 20_300)
"""Others than those that `make sim` runs."""
CHUNK = 20
CALM = {
    "incidents": ("join", "retire", "grow"),
    "rates": {},
    "mean_gap_s": 6.0,
    "checkpoint": Every(seconds=1.0),
    "long_call_chance": 0.0,
    "failing": None,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What goes wrong in a simulated world is meant to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def trace(seed: int) -> list[str]:
    lines: list[str] = []
    assert run_seed(seed, lines.append) is None
    return lines


def first_found(seeds: range) -> Found:
    found = next(filter(None, map(run_seed, seeds)), None)
    assert found is not None
    return found


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_no_world_breaks_an_invariant(first: int) -> None:
    for seed in range(first, first + CHUNK):
        found = run_seed(seed)
        assert found is None, f"seed {found.seed}: {found.violation}\n  replay it: {found.command}"


def test_the_worlds_know_every_kind_of_fault() -> None:
    kinds: Counter[str] = Counter()
    for seed in SEEDS:
        options = draw(seed)
        kinds.update([*options.incidents, *options.rates])
    assert set(kinds) == {*FAULTS, *PLANNED, *ENDINGS, *RATES, *STEPS, *TROUBLES, *LOSSES, *CLOCKS, "cut"}
    assert min(kinds.values()) >= 10


def test_in_a_part_of_the_worlds_events_are_bad_in_every_way() -> None:
    drawn = [options.failing for options in map(draw, SEEDS) if options.failing is not None]
    assert 0.2 < len(drawn) / len(SEEDS) < 0.5
    for name in Failing.__struct_fields__:
        assert len({repr(getattr(failing, name)) for failing in drawn}) >= 2, name


def test_in_a_part_of_the_worlds_the_store_is_slow_or_partitions_are_many() -> None:
    drawn = [draw(seed) for seed in SEEDS]
    slow = [options for options in drawn if options.each_s]
    assert 0.1 < len(slow) / len(drawn) < 0.2
    assert any(options.each_s * options.partitions > options.ttls_s[0] / 2 for options in slow), (
        "too much for one request"
    )
    crowded = [options for options in drawn if options.partitions >= 50]
    assert 0.02 < len(crowded) / len(drawn) < 0.08
    assert {options.partitions for options in crowded} == {50, 100, 200}
    assert {options.is_calm for options in crowded} == {True, False}


def test_in_a_part_of_the_worlds_partitions_split_and_merge_in_every_way() -> None:
    drawn = [options for options in map(draw, SEEDS) if options.has_splits]
    assert 0.15 < len(drawn) / len(SEEDS) < 0.4
    ways = {(options.ending, isinstance(options.checkpoint, Manual)) for options in drawn}
    assert len(ways) == 4
    assert sum(options.is_calm for options in drawn) >= 5


def test_in_a_part_of_the_worlds_the_store_loses_what_it_had_whatever_the_start_is() -> None:
    drawn = [options for options in map(draw, SEEDS) if {*LOSSES} & set(options.incidents)]
    assert 0.1 < len(drawn) / len(SEEDS) < 0.3
    starts = Counter((kind, options.start) for options in drawn for kind in options.incidents if kind in LOSSES)
    assert min(starts[kind, start] for kind in LOSSES for start in ("earliest", "latest")) >= 3
    assert sum("join" in options.incidents and "empty" in options.incidents for options in drawn) >= 5


def test_in_a_part_of_the_worlds_clocks_run_apart() -> None:
    drawn = [options for options in map(draw, SEEDS) if {*CLOCKS} & set(options.incidents)]
    assert 0.1 < len(drawn) / len(SEEDS) < 0.3
    assert {options.loop_drift for options in drawn} == {0.0, 0.02, 0.1}
    both = sum({"suspend", "lag"} & {*one.incidents} != set() and bool({*FAULTS} & {*one.incidents}) for one in drawn)
    assert both >= 10


def test_cuts_come_together_with_losses_and_with_changes_of_membership() -> None:
    drawn = [(options, {*options.incidents}) for options in map(draw, range(1000))]
    for kinds in ({"cut", "join", "retire"}, {"cut", "lose_writes", "join"}, {"cut", "lose_quietly"}, {"cut", "empty"}):
        assert sum(kinds <= incidents for _, incidents in drawn) >= 10, kinds
    lost = [options for options, incidents in drawn if {"cut", "lose_writes"} <= incidents]
    assert sum(options.start == "latest" for options in lost) >= 10
    assert sum("cut" in incidents and "blocked" in options.rates for options, incidents in drawn) >= 10
    assert sum("cut" in incidents and options.store == "by_lease" for options, incidents in drawn) >= 10
    crowded = [incidents for options, incidents in drawn if options.partitions >= 50]
    assert sum({*LOSSES, "lose_writes"} & incidents != set() for incidents in crowded) >= 10


@pytest.mark.parametrize("seed", [seed for seed in range(20_000, 20_200) if is_moving(seed)])
def test_where_instances_come_and_go_no_more_moves_than_it_takes(seed: int) -> None:
    options = draw(seed)
    assert options.is_calm
    world = World(options)
    world.run()
    assert world.moves.stretches >= 2
    assert world.moves.moves > 0 or options.partitions < 8


def test_in_a_part_of_the_worlds_some_want_so_many_partitions_at_least() -> None:
    drawn = [options for options in map(draw, SEEDS) if any(options.least)]
    assert 0.1 < len(drawn) / len(SEEDS) < 0.2
    assert sum(options.has_splits for options in drawn) >= 5
    assert {options.balance for options in drawn} == {"count"}


def test_in_a_part_of_the_worlds_handlers_run_on_threads_have_a_limit_and_write_effects() -> None:
    drawn = [draw(seed) for seed in SEEDS]
    plain = [options for options in drawn if options.plain]
    limited = [options for options in drawn if options.limit_s is not None]
    effects = [options for options in drawn if options.effects]
    for some in (plain, limited, effects):
        assert 0.1 < len(some) / len(drawn) < 0.3
        assert {"stall", "crash", "lose_writes", "outage"} <= {kind for one in some for kind in one.incidents}
    assert {options.plain for options in limited} == {options.plain for options in effects} == {True, False}
    assert {options.store for options in plain} == {"one_step", "by_lease"}
    assert {options.is_calm for options in plain} == {options.is_calm for options in effects} == {True, False}
    assert {*LOSSES} <= {kind for one in effects for kind in one.incidents}


@pytest.mark.parametrize("kind", ["plain", "effects"])
def test_worlds_with_threads_and_transactions_happen_again_by_their_seed(kind: str) -> None:
    seeds = [seed for seed in SEEDS if getattr(draw(seed), kind)][:6]
    for seed in seeds:
        first = trace(seed)
        assert trace(seed) == first
        assert kind == "plain" or any("  transaction " in line for line in first)


@pytest.mark.parametrize("ending", ["kept", "gone"])
@pytest.mark.parametrize("seed", [seed for seed in SEEDS[:7] if not is_crowded(seed)])
def test_in_a_calm_world_no_event_comes_twice_when_partitions_split_and_merge(seed: int, ending: str) -> None:
    splits = {"incidents": ("split", "split", "merge", "join"), "ending": ending, "balance": "count", "zipf": None}
    options = draw(seed, **CALM | splits)
    assert options.is_calm
    lines: list[str] = []
    world = World(options, lines.append)
    world.run()
    assert set(world.planned_is_free._begun.values()) == {1}
    assert sum("ended: " in line for line in lines) >= 3


def test_among_random_crashes_hardly_an_innocent_event_is_taken_for_deadly() -> None:
    crashes = {"incidents": ("crash", "crash", "stall"), "mean_gap_s": 6.0, "failing": Failing(poison=0.0)}
    innocent = 0
    for seed in SEEDS[:60]:
        world = World(draw(seed, **crashes))
        world.run()
        innocent += world.trials.innocent
    assert innocent <= 1, "of about 25,000 events, and 800 crashes"


@pytest.mark.parametrize("seed", SEEDS[:120:10])
def test_one_seed_makes_the_whole_world(seed: int) -> None:
    assert draw(seed) == draw(seed)
    first = trace(seed)
    assert trace(seed) == first
    assert len(first) > 100


def test_another_seed_makes_another_world() -> None:
    assert draw(1) != draw(2)
    assert trace(1) != trace(2)


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_scale_out_and_in_moves_nothing_twice_and_handles_nothing_twice(seed: int) -> None:
    options = draw(seed, **CALM)
    assert options.is_calm
    lines: list[str] = []
    world = World(options, lines.append)
    world.run()
    begun = world.planned_is_free._begun
    assert begun
    assert set(begun.values()) == {1}
    joined = sum("  start " in line for line in lines)
    assert joined > options.instances, "somebody came"
    passed = [line for line in lines if "handed over" in line or "released" in line]
    assert passed, "and partitions moved"
    assert not any("taken over" in line for line in lines), "as planned"


def test_a_world_that_breaks_an_invariant_names_its_seed_and_the_command_that_replays_it() -> None:
    with never_stops_itself():
        found = first_found(range(400))
        assert found.command == f"evenflow sim --seed {found.seed}"
        assert run_seed(found.seed) == found, "it happens again"
        replayed = CliRunner().invoke(assembled(), found.command.split()[1:])
        assert replayed.exit_code == 1
        assert f"seed {found.seed}: {found.violation}" in replayed.output
    assert run_seed(found.seed) is None, "it was the sabotage"


def test_in_a_part_of_the_worlds_each_lease_changes_by_itself() -> None:
    drawn = [options for options in map(draw, range(400)) if options.store == "by_lease"]
    assert len(drawn) > 20
    assert {"crash", "stall", "twin", "outage", "slow", "join", "retire"} <= {
        kind for options in drawn for kind in options.incidents
    }
