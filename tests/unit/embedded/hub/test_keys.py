from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.embedded.hub.keys import key_hash, partition_of

# From `hashPartitionKey` and `mapPartitionKeyToId` of @azure/event-hubs, which .NET and Java agree with.
HASHES = {
    "": 0,
    "a": -16220,
    "home-1": 12340,
    "home-42": 25310,
    "home-100000": 18570,
    "0123456789a": -15580,
    "0123456789ab": -17054,
    "0123456789abc": -4167,
    "0123456789abcdef01234567": -26328,
    "0123456789abcdef0123456789": -7694,
    "alphabet": -23478,
    "Zürich": 1057,
    "日本語のキー": 18957,
    "🔔 doorbell": -3628,
    "ключ": -32174,
    "x" * 255: 24853,
    " ": -30366,
    "sensor/7?x=1": -1585,
}
COUNTS = (1, 2, 3, 5, 16, 17, 32, 1000)
PARTITIONS = {
    "a": (0, 0, 2, 0, 12, 2, 28, 220),
    "home-1": (0, 0, 1, 0, 4, 15, 20, 340),
    "0123456789abc": (0, 1, 0, 2, 7, 2, 7, 167),
    "alphabet": (0, 0, 0, 3, 6, 1, 22, 478),
    "日本語のキー": (0, 1, 0, 2, 13, 2, 13, 957),
    "ключ": (0, 0, 2, 4, 14, 10, 14, 174),
    "sensor/7?x=1": (0, 1, 1, 0, 1, 4, 17, 585),
}


@pytest.mark.parametrize(("key", "expected"), HASHES.items())
def test_a_key_has_the_hash_that_event_hubs_gives_it(key: str, expected: int) -> None:
    assert key_hash(key) == expected


@pytest.mark.parametrize(("key", "expected"), PARTITIONS.items())
def test_a_key_has_the_partition_that_event_hubs_gives_it(key: str, expected: tuple[int, ...]) -> None:
    assert tuple(partition_of(key, count) for count in COUNTS) == expected


@given(st.text(), st.integers(1, 4096))
def test_every_key_has_a_partition(key: str, count: int) -> None:
    assert 0 <= partition_of(key, count) < count


def test_homes_are_spread_evenly() -> None:
    counts = [0] * 16
    for home in range(16_000):
        counts[partition_of(f"home-{home}", 16)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150
