"""How steady the tests of real processes are: run again and again, in a different order each time.

Whatever failed is named, with how often it did and the seeds of the orders in which it did; the output of each run that
failed is kept. `--busy` runs one loop per core beside them, which never waits for anything.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from benchmarks.harness import Result, at_least, at_most, figure, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
TESTS = "tests/integration"
WORKERS = str((os.cpu_count() or 1) + 2)
"""As `make test` has for these tests: they wait more than they work."""
FAILED = ("failure", "error")


@dataclass(frozen=True)
class Run:
    """One run of the tests, in one order."""

    seed: int
    seconds: float
    tests: int
    failed: Sequence[str]
    output: Path


def run(runs: int = 2, busy: bool = False, only: str = TESTS) -> Result:
    folder = Path(tempfile.mkdtemp(prefix="evenflow-steady-"))
    done: list[Run] = []
    with busy_cores() if busy else ExitStack():
        for number in range(1, runs + 1):
            done.append(one_run(only, secrets.randbelow(1_000_000), folder))
            say(_line(number, runs, done[-1]))
    where = "busy" if busy else "quiet"
    return Result(
        figures=(
            figure(f"tests in a run, {where}", [one.tests for one in done]),
            figure(f"one run, {where}", [one.seconds for one in done], "s"),
        ),
        bars=(
            at_least(f"tests in {runs} runs, {where}", min(one.tests for one in done), 1),
            at_most(f"failures in {runs} runs, {where}", sum(len(one.failed) for one in done), 0),
        ),
        notes=failures(done),
    )


def one_run(only: str, seed: int, folder: Path) -> Run:
    report, output = folder / f"{seed}.xml", folder / f"{seed}.txt"
    command = [sys.executable, "-m", "pytest", "-n", WORKERS, "--dist", "worksteal", f"--junitxml={report}", only]
    began_s = perf_counter()
    with output.open("wb") as file:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "EVENFLOW_ORDER": str(seed)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    tests, failed = read_report(report)
    if done.returncode not in (0, 1) or bool(done.returncode) != bool(failed):
        failed = [*failed, f"the run itself (pytest ended with {done.returncode})"]
    return Run(seed, perf_counter() - began_s, tests, failed, output)


def read_report(report: Path) -> tuple[int, list[str]]:
    """How many tests a JUnit file has, and which of them failed."""
    if not report.exists():
        return 0, []
    cases = list(ElementTree.parse(report).iter("testcase"))
    # A test that fails, and then once more when it is torn down, has two entries.
    names = {f"{case.get('classname')}::{case.get('name')}" for case in cases}
    failed = {
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if any(case.find(kind) is not None for kind in FAILED)
    }
    return len(names), sorted(failed)


@contextmanager
def busy_cores() -> Iterator[None]:
    """One endless loop per core, each ended by its process id."""
    with ExitStack() as ends:
        for _ in range(os.cpu_count() or 1):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            ends.callback(process.wait)
            ends.callback(process.kill)
        yield


def failures(runs: Sequence[Run]) -> list[str]:
    """Each test that failed: how often, in which orders, and where its output is."""
    found: dict[str, list[Run]] = defaultdict(list)
    for one in runs:
        for name in one.failed:
            found[name].append(one)
    often = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        f"{len(where)} of {len(runs)}: {name} (EVENFLOW_ORDER={', '.join(str(one.seed) for one in where)}; "
        f"output in {where[0].output})"
        for name, where in often
    ]


def _line(number: int, runs: int, one: Run) -> str:
    verdict = f"{len(one.failed)} failed: {', '.join(one.failed)}" if one.failed else "none failed"
    return f"run {number} of {runs}, order {one.seed}: {one.tests:,} tests in {one.seconds:.0f} s, {verdict}"
