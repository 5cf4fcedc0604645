"""When a worker is restarted: delays grow, and start over after a stable run."""

from __future__ import annotations

from evenflow.cli.supervisor import STABLE_S, RestartBackoff


def test_delays_grow_to_a_limit() -> None:
    backoff, delays = RestartBackoff(), []
    for _ in range(8):
        backoff = backoff.after(ran_s=0.1)
        delays.append(backoff.delay_s)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]


def test_after_a_stable_run_delays_start_over() -> None:
    assert RestartBackoff(deaths=7).after(ran_s=STABLE_S).delay_s == 1
    assert RestartBackoff(deaths=7).after(ran_s=STABLE_S - 1).delay_s == 30
