"""What is exported is read again, also what an earlier version has written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import json, to_builtins

from evenflow.operate.steer.exporting import Export, read_export

EXPORT = Export(
    evenflow=1,
    namespace="local",
    hub="homes",
    group="alerts",
    made="",
    exported_at=datetime(2026, 11, 16, 9, 6, 22, tzinfo=UTC),
    leases=(),
)


def test_it_says_in_utc_when_it_was_made() -> None:
    text = json.encode(EXPORT)
    assert b'"exported_at":"2026-11-16T09:06:22Z"' in text
    assert read_export("leases.json", text) == EXPORT


@pytest.mark.parametrize("before", [1_763_284_782.25, 1_763_284_782])
def test_seconds_of_an_earlier_version_are_read(before: float) -> None:
    assert read_export("leases.json", json.encode({**to_builtins(EXPORT), "exported_at": before})).exported_at == before
