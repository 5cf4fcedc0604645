from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from evenflow.cli.quantities import parse_bytes, parse_duration_s, parse_moment, show_bytes, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("12 h", 43_200), ("7d", 604_800), ("2W", 1_209_600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("500b", 500), ("2kB", 2_000), ("1.5MB", 1_500_000), ("1GiB", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "s", "-1s", "7 parsecs", "1d2h"])
def test_text_that_is_not_a_quantity_is_rejected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration; write"):
        parse_duration_s(text)
    with pytest.raises(typer.BadParameter, match="is not a size; write"):
        parse_bytes(text)


def test_moments_without_a_zone_are_local() -> None:
    assert parse_moment("2026-02-03T04:05Z") == datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    assert parse_moment("2026-02-03T04:05") == datetime(2026, 2, 3, 4, 5).astimezone()
    assert parse_moment("yesterday") is None


@pytest.mark.parametrize("text", ["0001-01-01T00:00", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_a_moment_at_the_end_of_the_calendar_is_one_or_none(text: str) -> None:
    """Whether it is still in the calendar depends on the local time zone; either way, it raises nothing."""
    moment = parse_moment(text)
    assert moment is None or moment.tzinfo is UTC


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0.0s"), (0.04, "0.0s"), (9.94, "9.9s"), (119, "119s"), (120, "2m"), (172_800, "2d")]
)
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2e12, "2.0 TB")])
def test_sizes_are_shown_short(size: float, text: str) -> None:
    assert show_bytes(size) == text
