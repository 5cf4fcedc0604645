"""Words as people read them."""

from __future__ import annotations

import pytest

from evenflow.text import to_mend, with_article


@pytest.mark.parametrize(("word", "read"), [("seek", "a seek"), ("import", "an import"), ("resume", "a resume")])
def test_words_have_their_article(word: str, read: str) -> None:
    assert with_article(word) == read


def test_a_handler_is_not_to_be_mended_for_what_is_damaged() -> None:
    assert to_mend("ValueError: no such home") == "the handler"
    assert to_mend("Corrupt: the document of the change at 7 cannot be decoded") == "what is damaged"
