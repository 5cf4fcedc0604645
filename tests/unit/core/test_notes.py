"""What is told of an event that failed."""

from __future__ import annotations

import pytest

from evenflow.core.notes import NAME_CHARS, whose


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        ("", None, ""),
        ("", "", ""),
        ("", "home-3", "key 'home-3'"),
        ("o-7", "c-0", "document 'o-7', key 'c-0'"),
        ("o-7", "o-7", "document 'o-7'"),
        ("a\x1b[2Jb\udc80", None, "document 'a\\x1b[2Jb\\udc80'"),
    ],
)
def test_an_event_is_told_by_its_document_and_its_key(name: str, key: str | None, told: str) -> None:
    assert whose(name, key) == told


def test_long_names_are_cut() -> None:
    assert len(whose("x" * 5_000, None)) < NAME_CHARS + 20
