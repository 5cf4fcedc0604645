from __future__ import annotations

from evenflow.cli.output import columns, printable, show


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    lines = columns(("NAME", "LAG", "WHY"), [("家", 7, "x" * 200), ("bo", None, "")], right=("LAG",))
    assert lines == ["NAME  LAG  WHY", f"家      7  {'x' * 200}", "bo      -  -"]


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    assert [show(None), show(""), show(0), show(False)] == ["-", "-", "0", "False"]


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    assert printable("a\x1b[31mb\nc 家") == "a\\x1b[31mb\\nc 家"
