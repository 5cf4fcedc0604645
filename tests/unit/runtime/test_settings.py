"""Every bad value is one clear error that names the option and says what to give."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from evenflow import Every, Manual, Misconfigured, Position
from evenflow.runtime.settings import Settings, check_start

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
NAN, INF = float("nan"), float("inf")
COUNTS = ("concurrency", "max_partitions", "min_partitions", "batch_events", "prefetch_events", "prefetch_bytes")
NUMBERS = ("weight", "heartbeat_s", "ttl_s", "margin_s", "longest_ttl_s", "refresh_s", "stop_s")


def made(**options: Any) -> Settings:
    return Settings(**{"group": "alerts", **options})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_counts_are_whole_and_at_least_one(name: str, value: object) -> None:
    with pytest.raises(Misconfigured, match=f"^{name}={value!r}: give a whole number of at least 1"):
        made(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1.0, NAN, INF, "2", None, True])
def test_times_and_weights_are_above_zero(name: str, value: object) -> None:
    with pytest.raises(Misconfigured, match=f"^{name}={value!r}: give a number above 0"):
        made(**{name: value})


@pytest.mark.parametrize("option", ["group", "instance_id"])
@pytest.mark.parametrize("value", ["", "  ", "a\nb", "a\x00b", "x" * 257, 7])
def test_names_are_text_that_a_person_can_read(option: str, value: object) -> None:
    with pytest.raises(Misconfigured, match=f"^{option}=.*: give a text of 1 to 256 printable characters"):
        made(**{option: value})


@pytest.mark.parametrize("name", ["alerts", "a/b c", "größe-日本", "x" * 256, "'; drop table leases; --"])
def test_odd_names_are_names(name: str) -> None:
    assert made(group=name, instance_id=name).group == name


def test_a_lost_position_is_no_reason_to_pass_over_events() -> None:
    with pytest.raises(Misconfigured, match="on_lost='latest': give 'earliest' or 'stop'"):
        made(on_lost="latest")
    assert [made(on_lost=value).on_lost for value in ("earliest", "stop")] == ["earliest", "stop"]


@pytest.mark.parametrize("value", ["1s", 5, None])
def test_a_checkpoint_is_a_policy(value: object) -> None:
    with pytest.raises(Misconfigured, match=r"give Every\(events=, seconds=\) or Manual\(\)"):
        made(checkpoint=value)
    assert made(checkpoint=Manual()).checkpoint == Manual()
    assert made(checkpoint=Every(events=1)).checkpoint == Every(events=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl_s": 4.9}, "Make ttl_s at least 2 \\* heartbeat_s \\+ margin_s"),
        ({"heartbeat_s": 4.0}, "ttl_s=8.0 is too short for heartbeat_s=4.0 and margin_s=1.0"),
        ({"margin_s": 4.5}, "ttl_s=8.0 is too short for heartbeat_s=2.0 and margin_s=4.5"),
        ({"ttl_s": 61.0}, "ttl_s=61.0 is above longest_ttl_s=60.0"),
        ({"longest_ttl_s": 7.0}, "ttl_s=8.0 is above longest_ttl_s=7.0"),
    ],
)
def test_times_must_fit_each_other(options: dict[str, float], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        made(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_partitions": 3, "max_partitions": 2}, "min_partitions=3 is above max_partitions=2"),
        ({"min_partitions": 3, "balance": "load"}, "balance='load' does not go by numbers"),
    ],
)
def test_shares_that_nobody_can_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        made(**options)
    assert made(min_partitions=3, max_partitions=3).min_partitions == 3


def test_times_that_just_fit() -> None:
    assert made(ttl_s=5.0).patience_s == 4.0
    assert made(ttl_s=60.0).patience_s == 59.0


@pytest.mark.parametrize(
    "start",
    ["first", "", 7, None, b"latest", ["earliest"], {"0": "first"}, {"0": None}, {0: "latest"}, {"0": {"1": "latest"}}],
)
def test_a_start_is_one_of_four_kinds(start: object) -> None:
    with pytest.raises(Misconfigured, match=r"^start="):
        check_start(start)
    with pytest.raises(Misconfigured, match=r"^start="):
        made(start=start)


def test_a_time_without_a_zone_could_be_any() -> None:
    with pytest.raises(Misconfigured, match="has no time zone"):
        made(start=NOON.replace(tzinfo=None))
    with pytest.raises(Misconfigured, match="has no time zone"):
        made(start={"0": NOON.replace(tzinfo=None)})


@pytest.mark.parametrize("start", ["earliest", "latest", NOON, Position("7", 7), {"0": "latest", "1": NOON}, {}])
def test_good_starts(start: Any) -> None:
    assert made(start=start).start == start


@pytest.mark.parametrize(
    ("start", "partition", "late", "chosen"),
    [
        ("earliest", "0", False, "earliest"),
        ("latest", "0", False, "latest"),
        ("latest", "0", True, "earliest"),
        (NOON, "0", False, NOON),
        (NOON, "0", True, "earliest"),
        ({"0": "latest"}, "0", False, "latest"),
        ({"0": "latest"}, "0", True, "latest"),
        ({"0": "latest"}, "1", False, "earliest"),
    ],
)
def test_a_partition_that_appears_later_starts_at_its_beginning_unless_it_was_named(
    start: Any, partition: str, late: bool, chosen: object
) -> None:
    assert made(start=start).start_of(partition, late=late) == chosen


def test_the_defaults_notice_a_failure_within_ten_seconds() -> None:
    settings = made()
    assert (settings.heartbeat_s, settings.ttl_s, settings.margin_s) == (2.0, 8.0, 1.0)
    assert settings.patience_s == 7.0
    assert settings.start == "earliest"
