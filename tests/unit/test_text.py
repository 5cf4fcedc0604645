"""Quantities, lists and articles in sentences."""

from __future__ import annotations

import pytest

from evenflow.text import what_to_fix, with_article


@pytest.mark.parametrize(("word", "read"), [("seek", "a seek"), ("import", "an import"), ("resume", "a resume")])
def test_words_have_their_article(word: str, read: str) -> None:
    assert with_article(word) == read


def test_a_damaged_event_is_not_blamed_on_the_handler() -> None:
    assert what_to_fix("ValueError: no such home") == "the handler"
    assert what_to_fix("Corrupt: the document of the change at 7 cannot be decoded") == "the damaged data"
