"""EVENFLOW_NO_SKIPS bites: a run of pytest inside, with this project's conftest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

def test_asks_for_a_server():
    pytest.skip("no server")

@pytest.mark.xfail(strict=True)
def test_known_gap():
    raise ValueError
"""


@pytest.mark.parametrize(("no_skips", "outcome"), [("1", "1 failed, 1 xfailed"), ("", "1 skipped, 1 xfailed")])
def test_a_skip_is_a_failure_where_all_servers_must_be(tmp_path: Path, no_skips: str, outcome: str) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_inside.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={"EVENFLOW_NO_SKIPS": no_skips},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout, run.stdout + run.stderr
