"""For all tests: what they leave behind is found (`leaks`), and what they took is added up (`summary`).

EVENFLOW_ORDER=SEED runs them in another order: files in any, and the tests of each file in any.

Where EVENFLOW_NO_SKIPS is set, as in CI, a test that would be skipped fails instead. A skip says "there is no such
server here". On a machine that is meant to have them all, that is a failure. What the contract suites skip is none: a
store that does not claim to be watchable need not be.
"""

from __future__ import annotations

import os
import random
import signal
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from evenflow import testing

if TYPE_CHECKING:
    from collections.abc import Generator

# A machine that is busy with something else is no counterexample.
settings.register_profile("evenflow", deadline=None, print_blob=True)
settings.load_profile("evenflow")

# A background job of a script starts with Ctrl-C ignored (nohup: with SIGHUP), and would pass that on to every program
# that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ("tests.leaks", "tests.summary")

ORDER = os.environ.get("EVENFLOW_ORDER")
NO_SKIPS = bool(os.environ.get("EVENFLOW_NO_SKIPS"))
SUITES = Path(testing.__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ORDER is None:
        return
    chance = random.Random(ORDER)
    files = [list(file) for _, file in groupby(sorted(items, key=_file_of), _file_of)]
    chance.shuffle(files)
    for file in files:
        chance.shuffle(file)
    items[:] = [item for file in files for item in file]


def _file_of(item: pytest.Item) -> str:
    return str(item.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    # A test that is expected to fail, and does, is reported as skipped too, with `wasxfail`.
    if not NO_SKIPS or not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    path, line, reason = report.longrepr
    if SUITES not in Path(path).parents:
        report.longrepr = f"{path}:{line}: {reason} (and EVENFLOW_NO_SKIPS is set)"
        report.outcome = "failed"
