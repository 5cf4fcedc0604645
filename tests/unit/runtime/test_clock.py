"""The real clock, which alone asks for the time of day, sleep and chance."""

from __future__ import annotations

import time

import pytest

from evenflow.runtime.clock import system_clock


def test_it_runs_on_while_the_machine_is_suspended() -> None:
    """A machine that wakes up must know how long it was away, or it would take its leases for fresh."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None:
        pytest.skip("this system has no such clock")
    before_s, now_s, after_s = time.clock_gettime(boot), system_clock().now(), time.clock_gettime(boot)
    assert before_s <= now_s <= after_s


@pytest.mark.parametrize("missing", [["CLOCK_BOOTTIME"], ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC"]])
def test_where_there_is_no_such_clock_a_monotonic_one_is_used(
    missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.delattr(time, name, raising=False)
    before_s, now_s, after_s = time.monotonic(), system_clock().now(), time.monotonic()
    assert before_s <= now_s <= after_s


async def test_the_rest_of_it() -> None:
    clock = system_clock()
    assert time.time() - 5.0 < clock.wall() < time.time() + 5.0
    assert len({clock.nonce() for _ in range(100)}) == 100
    assert len({clock.chance() for _ in range(100)}) > 90
    assert all(0.0 <= clock.chance() < 1.0 for _ in range(100))
    before_s = clock.now()
    await clock.sleep(0.01)
    assert clock.now() - before_s >= 0.009
