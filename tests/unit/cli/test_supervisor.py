"""When a worker is started again: pauses that grow, and begin anew after it has run well."""

from __future__ import annotations

from evenflow.cli.supervisor import WELL_S, Restarts


def test_pauses_grow_to_a_limit() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(8):
        restarts = restarts.after(ran_s=0.1)
        pauses.append(restarts.pause_s)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_after_running_well_it_begins_anew() -> None:
    assert Restarts(deaths=7).after(ran_s=WELL_S).pause_s == 1
    assert Restarts(deaths=7).after(ran_s=WELL_S - 1).pause_s == 30
