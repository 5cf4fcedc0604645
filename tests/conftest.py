"""For all tests: where EVENFLOW_NO_SKIPS is set, as in CI, a test that would be skipped fails instead.

A skip says "there is no such server here". On a machine that is meant to have them all, that is a failure. What the
contract suites skip is none: a store that does not claim to be watchable need not be.
"""

from __future__ import annotations

import os
import signal
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

NO_SKIPS = bool(os.environ.get("EVENFLOW_NO_SKIPS"))
SUITES = Path(testing.__file__).parent


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
