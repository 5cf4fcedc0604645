from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from evenflow.cli.output import brief, columns, cut, printable, show

if TYPE_CHECKING:
    import pytest


def test_columns_are_aligned_and_not_cut() -> None:
    lines = columns(("NAME", "LAG", "WHY"), [("家", 7, "x" * 200), ("bo", None, "")], right=("LAG",))
    assert lines == ["NAME  LAG  WHY", f"家      7  {'x' * 200}", "bo      -  -"]


def test_an_ellipsis_marks_a_cut_and_cells_are_counted() -> None:
    assert [cut("abcdef", width) for width in (6, 5, 1)] == ["abcdef", "abcd…", "…"]
    assert [cut("家家家", width) for width in (6, 5, 4)] == ["家家家", "家家…", "家…"]


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    assert [show(None), show(""), show(0), show(False)] == ["-", "-", "0", "False"]


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31mb\nc 家") == "a\\x1b[31mb\\nc 家"


def test_text_is_cut_on_a_terminal_and_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, shown in ((True, "abcd…"), (False, "abcdef")):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        assert brief("abcdef", 5) == shown
