from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from benchmarks import _promise_handler_timeout, promise
from benchmarks.harness import Result, at_least, at_most, figure, names, quantity, table
from benchmarks.scenario import Sample, verdict_of


@pytest.mark.parametrize(
    ("bar", "holds"),
    [
        (at_least("a", 2.0, 2.0), True),
        (at_least("a", 1.9, 2.0), False),
        (at_least("a", math.nan, 2.0), False),
        (at_most("a", 2.0, 2.0), True),
        (at_most("a", 2.1, 2.0), False),
        (at_most("a", math.nan, 2.0), False),
    ],
)
def test_a_bar_holds_on_its_own_side(bar: object, holds: bool) -> None:
    assert bar.holds is holds  # type: ignore[attr-defined]


def test_a_result_has_the_agreed_shape() -> None:
    result = Result([figure("speed", [3.0, 1.0, 2.0], "events/s")], [at_least("a", 1, 2), at_most("b", 1, 2)])
    found = json.loads(json.dumps(result.as_json("some")))
    assert list(found) == ["benchmark", "figures", "bars", "notes", "machine"]
    assert found["figures"]["speed"] == {"median": 2, "low": 1, "high": 3, "samples": 3, "unit": "events/s"}
    assert [(bar["name"], bar["value"], bar["limit"], bar["holds"]) for bar in found["bars"]] == [
        ("a", 1, 2, False),
        ("b", 1, 2, True),
    ]
    assert set(found["machine"]) >= {"cores", "memory_bytes", "python", "platform", "sqlite"}
    assert not result.holds
    text = table(found)
    assert "DOES NOT HOLD" in text
    assert "(1 to 3, 3 times)" in text


def test_benchmarks_are_the_modules_by_file_name() -> None:
    assert "hub" in names()
    assert not {"harness", "__init__", "__main__"} & set(names())


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.123456, "0.123"), (2, "2"), (999.9, "1,000"), (12345.6, "12,346"), (1e6, "1,000,000")],
)
def test_quantities_are_short(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("behind_s", "is_held"),
    [
        ([0.2] * 15, True),
        ([0.2, 1.9, 0.2] * 5, True),
        ([0.2] * 14 + [2.1], False),
        ([0.09 * number for number in range(15)], True),
        ([0.13 * number for number in range(15)], False),
    ],
    ids=["steady", "uneven", "too far behind once", "hardly falling behind", "falling behind"],
)
def test_a_speed_is_held_when_nobody_falls_behind(behind_s: list[float], is_held: bool) -> None:
    assert verdict_of([Sample(one / 2, one / 2) for one in behind_s]) is is_held


def test_rows_of_promise_are_modules_by_file_name() -> None:
    assert "handler_timeout" in promise.rows()
    with pytest.raises(SystemExit, match="no row 'nonsense'"):
        promise.run(only="nonsense")


def test_a_row_of_promise_that_breaks_is_a_bar_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure() -> Result:
        raise OSError("no room")

    monkeypatch.setattr(_promise_handler_timeout, "measure", measure)
    result = promise.run(only="handler_timeout")
    assert not result.holds
    assert result.notes == ["handler_timeout broke: OSError: no room"]


def test_an_unknown_name_is_refused() -> None:
    run = subprocess.run([sys.executable, "-m", "benchmarks", "nonsense"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "invalid choice: 'nonsense'" in run.stderr
