from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.home_security.addresses import DISTRICT, address_of, search


@given(st.integers(0, 3 * DISTRICT))
def test_a_home_is_found_by_its_address_and_its_number(home: int) -> None:
    homes = 3 * DISTRICT + 1
    assert search(address_of(home), homes, 8) == [home]
    assert search(str(home), homes, 8) == [home]
    assert search(f"home-{home}", homes, 8) == [home]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("acac", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("4 aca", [3]),
        ("Street Acacia 43", [42]),
        ("ash", [3_000, 3_001, 3_002, 3_003, 3_004, 3_005, 3_006, 3_007]),
        ("ch", [9_000, 10_000, 9_001, 10_001, 9_002, 10_002, 9_003, 10_003]),
        ("43 acacia, district 2", [40_042]),
        ("acacia district", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("-", []),
        ("1001 acacia", []),
        ("0 acacia", []),
        ("acacia district 0", []),
        ("100000", []),
        ("9" * 400, []),
        ("²", []),
        ("home acacia", []),
        ("<script>", []),
    ],
)
def test_what_is_found(text: str, found: list[int]) -> None:
    assert search(text, 100_000, 8) == found


def test_no_more_than_wanted() -> None:
    assert len(search("a", 100_000, 3)) == 3


@given(st.text(max_size=30))
def test_nothing_that_one_can_type_breaks_it(text: str) -> None:
    assert all(0 <= home < 1_000 for home in search(text, 1_000, 8))
