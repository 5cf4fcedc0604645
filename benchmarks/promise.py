"""What the README promises, measured in the corners: lost stores, stopped owners, slow stores, handlers that hang.

Each row is a module `_promise_NAME.py` whose `measure()` returns a `Result`; `--only NAME` runs that row alone.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Result, at_most, figure, say

PREFIX = "_promise_"


def run(only: str | None = None) -> Result:
    known = rows()
    if only is not None and only not in known:
        raise SystemExit(f"promise has no row {only!r}; there are {', '.join(known)}.")
    found = [run_row(row) for row in ([only] if only is not None else known)]
    return Result(
        [one for result in found for one in result.figures],
        [bar for result in found for bar in result.bars],
        [note for result in found for note in result.notes],
    )


def rows() -> list[str]:
    return sorted(file.stem.removeprefix(PREFIX) for file in Path(__file__).parent.glob(f"{PREFIX}*.py"))


def run_row(row: str) -> Result:
    """A row that breaks does not take the others with it: it is a bar that does not hold."""
    say(f"{row} ...")
    began_s = perf_counter()
    try:
        result: Result = import_module(f"benchmarks.{PREFIX}{row}").measure()
    except Exception as error:
        text = f"{row} broke: {type(error).__name__}: {error}"
        say(text)
        result = Result([], [at_most(f"{row}: broken runs", 1, 0)], [text])
    seconds = figure(f"{row}: seconds", [perf_counter() - began_s], "s")
    return Result([*result.figures, seconds], result.bars, result.notes)
