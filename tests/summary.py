"""The last lines of `make test`: how many tests ran, how many were skipped for want of which program, and how long each
folder took.

Every run of pytest writes what it found into the folder that EVENFLOW_SUMMARY names; `python -m tests.summary` adds the
runs up.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import pytest

FOLDER = os.environ.get("EVENFLOW_SUMMARY")
SUITES = "src/evenflow/testing"
"""Where the contract suites are: what they skip is a capability that a store or a source does not claim."""

Outcome = Literal["passed", "failed", "skipped"]


class Tally(msgspec.Struct):
    """The tests of one folder."""

    outcomes: dict[Outcome, int] = msgspec.field(default_factory=lambda: {"passed": 0, "failed": 0, "skipped": 0})
    work_s: float = 0.0


class Found(msgspec.Struct):
    """What one run of pytest found."""

    wall_s: float
    folders: dict[str, Tally]
    missing: dict[str, int]


class Collector:
    """Listens to the reports of all workers."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._folders: dict[str, Tally] = defaultdict(Tally)
        self._outcomes: dict[str, Outcome] = {}
        self._missing: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._folders[folder_of(report.nodeid)].work_s += report.duration
        if report.failed or (report.when == "call" and self._outcomes.get(report.nodeid) is None):
            self._outcomes[report.nodeid] = "passed" if hasattr(report, "wasxfail") else report.outcome
        elif report.skipped:
            self._outcomes[report.nodeid] = "skipped"
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            path, _, reason = report.longrepr
            if SUITES not in Path(path).as_posix():
                self._missing[reason.removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self) -> None:
        for name, outcome in self._outcomes.items():
            self._folders[folder_of(name)].outcomes[outcome] += 1
        assert FOLDER is not None
        found = Found(time.monotonic() - self._began_s, self._folders, self._missing)
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        Path(FOLDER, f"{time.time_ns()}.json").write_bytes(msgspec.json.encode(found))


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector())


def folder_of(name: str) -> str:
    return "/".join(name.split("::")[0].split("/")[:2])


def read(file: Path) -> Found:
    return msgspec.json.decode(file.read_bytes(), type=Found)


def text(runs: list[Found]) -> str:
    missing: Counter[str] = Counter()
    folders: dict[str, Tally] = defaultdict(Tally)
    for run in runs:
        missing.update(run.missing)
        for name, tally in run.folders.items():
            _add(folders[name], tally)
            _add(folders["all"], tally)
    wall_s = sum(run.wall_s for run in runs)
    lines = [f"{'folder':<20} {'passed':>7} {'failed':>7} {'skipped':>8} {'test time':>10}"]
    lines += [_line(name, tally) for name, tally in sorted(folders.items(), key=lambda item: (item[0] == "all", item))]
    lines[-1] += f", side by side in {wall_s:.0f} s"
    unclaimed = folders["all"].outcomes["skipped"] - missing.total()
    if unclaimed:
        lines.append(f"skipped: {unclaimed:,} of capabilities that a store or a source does not claim")
    lines += [f"skipped: {number:,} because {why}" for why, number in missing.most_common()]
    return "\n".join(lines)


def _add(to: Tally, tally: Tally) -> None:
    to.work_s += tally.work_s
    for outcome, number in tally.outcomes.items():
        to.outcomes[outcome] += number


def _line(name: str, tally: Tally) -> str:
    counts = tally.outcomes
    numbers = f"{counts['passed']:>7,} {counts['failed']:>7,} {counts['skipped']:>8,}"
    return f"{name:<20} {numbers} {tally.work_s:>8.0f} s"


def main() -> int:
    if FOLDER is None:
        print("set EVENFLOW_SUMMARY to the folder into which the runs of pytest have written", file=sys.stderr)
        return 2
    files = sorted(Path(FOLDER).glob("*.json"))
    print(text([read(file) for file in files]))
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
