"""What is asked of a consumer client, in our own words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from evenflow.compat.eventhub.options import ReceiveOptions, timing
from evenflow.model import Position
from evenflow.runtime.settings import Settings

NOON = datetime(2026, 2, 3, 12, 0, 0, 123_456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("place", "inclusive", "start"),
    [
        (None, False, "latest"),
        ("@latest", True, "latest"),
        ("@Latest", False, "latest"),
        ("-1", False, "earliest"),
        (7, False, Position("#7", 7)),
        (7, True, Position("#6", 6)),
        (0, True, Position("#-1", -1)),
        ("4294967296", False, Position("4294967296")),
        ("4294967296", True, Position(">=4294967296")),
        (NOON, True, NOON.replace(microsecond=123_000)),
        (NOON, False, NOON.replace(microsecond=124_000)),
        (NOON.replace(tzinfo=None), True, NOON.replace(microsecond=123_000)),
        ({"0": 7}, {"0": True}, Position("#6", 6)),
        ({"1": 7}, False, "earliest"),
        ({"0": "@latest"}, {"1": True}, "latest"),
    ],
)
def test_a_starting_position_is_a_start(place: Any, inclusive: Any, start: Any) -> None:
    options = ReceiveOptions(handler=print, batch=False, starting_position=place, starting_position_inclusive=inclusive)
    assert options.start_of("0") == start


@pytest.mark.parametrize("place", [1.5, True, "", b"4", {"0": 7, "1": 1.5}])
def test_what_is_no_position_is_refused(place: Any) -> None:
    with pytest.raises(ValueError, match="starting_position"):
        ReceiveOptions(handler=print, batch=False, starting_position=place)


@pytest.mark.parametrize(("prefetch", "credit"), [(1, 1), (5_000, 5_000), (0, 300), (None, 300)])
def test_no_prefetch_is_the_default(prefetch: int | None, credit: int) -> None:
    assert ReceiveOptions(handler=print, batch=False, prefetch=prefetch).credit == credit


@pytest.mark.parametrize("interval_s", [-1, 0, 0.05, 1.0, 10.0, 30.0, 600.0])
@pytest.mark.parametrize("expires_s", [None, 0, 0.3, 2.0, 60.0, 3_600.0])
def test_times_are_ones_that_a_processor_takes(interval_s: float, expires_s: float | None) -> None:
    found = timing(interval_s, expires_s)
    Settings(group="alerts", **found)  # type: ignore[arg-type]
    assert found["heartbeat_s"] <= min(2.0, max(0.05, interval_s))
    assert found["ttl_s"] == (8.0 if expires_s is None else max(0.2, expires_s))
