"""The months in the references of stores follow from what a heartbeat and a commit cost.

That they cost so many requests is counted on real servers, in `tests/integration/test_store_costs.py`.
"""

from __future__ import annotations

import pytest

from tests.docs.documents import ROOT

PARTITIONS, INSTANCES = 32, 4
SHARE = PARTITIONS // INSTANCES
MONTH_S = 30 * 24 * 3600


def a_month(every_s: float, each: int = 1) -> str:
    return f"{INSTANCES * each * MONTH_S / every_s / 1e6:.1f} million"


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("azblob", [("| renewals |", 10, SHARE), ("| rows |", 10, 1), ("| listings |", 10, 1)]),
        ("azblob", [("| renewals |", 2, SHARE), ("| rows |", 2, 1), ("| listings |", 2, 1)]),
        ("azblob", [("| all of it |", 10, SHARE + 2), ("| all of it |", 2, SHARE + 2)]),
        ("azblob", [("`Every(seconds=30)` at most", 30, SHARE)]),
        (
            "objects",
            [("| heartbeats, every 5 s |", 5, 1), ("| looks, every 2 s", 2, 1), ("| commits, every 30 s", 30, SHARE)],
        ),
        ("redis", [("| heartbeats |", 2, 1), ("| commits, at most |", 1, 1)]),
        ("postgresql", [("| heartbeats |", 2, 1), ("| commits, at most |", 1, 1)]),
    ],
)
def test_the_months_in_the_reference_follow_from_what_is_counted(
    page: str, figures: list[tuple[str, float, int]]
) -> None:
    lines = (ROOT / "docs" / "reference" / f"stores-{page}.md").read_text().splitlines()
    for begins, every_s, each in figures:
        (line,) = [line for line in lines if begins in line]
        assert a_month(every_s, each) in line
