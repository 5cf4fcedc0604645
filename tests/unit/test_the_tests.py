"""What watches over the tests is itself tested: runs of pytest inside, with this project's conftest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.steady import one_run, read_report
from tests import summary

ROOT = Path(__file__).parents[2]
ORDERED = "import pytest\n\n@pytest.mark.parametrize('number', range(20))\ndef test_one(number): pass\n"


def pytest_inside(folder: Path, text: str, *options: str, **environment: str) -> str:
    """What pytest prints about tests in a file of its own."""
    (folder / "test_inside.py").write_text(text)
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "EVENFLOW_NO_SKIPS": "", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout + run.stderr


@pytest.mark.parametrize(
    ("leaves", "what"),
    [
        ("kept.append(socket.socket())", "open socket:"),
        ("kept.extend(os.pipe())", "open pipe:"),
        ("kept.append(open(__file__))", "open file"),
        ("threading.Thread(target=time.sleep, args=(60,), name='sleepy', daemon=True).start()", "thread sleepy"),
        ("kept.append(subprocess.Popen(['sleep', '60']))", "process 1 of (sleep 60)"),
        ("kept.append(subprocess.Popen(['true']))", "(true, ended but not waited for)"),
    ],
)
def test_a_test_that_leaves_something_behind_fails_itself(tmp_path: Path, leaves: str, what: str) -> None:
    text = (
        "import os, socket, subprocess, threading, time\nkept = []\n"
        f"def test_leaves_it():\n    {leaves}\n\ndef test_is_innocent(): pass\n\n"
        "def teardown_module():\n"
        "    for one in kept:\n"
        "        if isinstance(one, subprocess.Popen): one.kill(), one.wait()\n"
        "        elif not isinstance(one, int): one.close()\n"
    )
    said = pytest_inside(tmp_path, text, EVENFLOW_LEAK_PATIENCE_S="0.2")
    assert "2 passed, 1 error" in said, said
    assert "ERROR at teardown of test_leaves_it" in said
    assert what in said


def test_what_goes_a_little_later_is_no_leak_and_what_a_module_shares_is_none(tmp_path: Path) -> None:
    text = (
        "import socket, threading, time\nimport pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def shared():\n    with socket.socket() as one: yield one\n\n"
        "def test_shares(shared): pass\n\n"
        "def test_ends_soon():\n    threading.Thread(target=time.sleep, args=(0.3,)).start()\n"
    )
    assert "2 passed" in pytest_inside(tmp_path, text)


def test_a_shared_server_that_is_started_again_is_no_leak_and_a_second_one_is(tmp_path: Path) -> None:
    text = (
        "import subprocess\nimport pytest\n"
        "def start(): return subprocess.Popen(['sleep', '60'])\n\n"
        "@pytest.fixture(scope='module')\n"
        "def shared():\n    servers = [start()]\n    yield servers\n    for one in servers: one.kill(), one.wait()\n\n"
        "def test_starts_it_again(shared):\n    one = shared.pop()\n    one.kill()\n    one.wait()\n"
        "    shared.append(start())\n\n"
        "def test_starts_a_second_one(shared): shared.append(start())\n\n"
        "def test_is_innocent(shared): pass\n"
    )
    said = pytest_inside(tmp_path, text, EVENFLOW_LEAK_PATIENCE_S="0.2")
    assert "3 passed, 1 error" in said, said
    assert "ERROR at teardown of test_starts_a_second_one" in said
    assert "process 2 of (sleep 60)" in said


@pytest.mark.parametrize(("no_skips", "outcome"), [("1", "1 failed, 1 xfailed"), ("", "1 skipped, 1 xfailed")])
def test_a_skip_is_a_failure_where_all_servers_must_be(tmp_path: Path, no_skips: str, outcome: str) -> None:
    text = (
        "import pytest\n\n"
        "def test_asks_for_a_server(): pytest.skip('no server')\n\n"
        "@pytest.mark.xfail(strict=True)\n"
        "def test_known_gap(): raise ValueError\n"
    )
    assert outcome in pytest_inside(tmp_path, text, EVENFLOW_NO_SKIPS=no_skips)


def test_an_order_is_another_one_with_each_seed_and_the_same_with_one(tmp_path: Path) -> None:
    by_seed = [pytest_inside(tmp_path, ORDERED, "--collect-only", "-q", EVENFLOW_ORDER=seed) for seed in "112"]
    first, again, other = ([line for line in said.splitlines() if "::" in line] for said in by_seed)
    assert first == again != other
    assert sorted(first) == sorted(other)


def test_a_run_names_what_failed_and_counts_the_rest(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_fine(): pass\n\ndef test_bad(): assert False\n")
    found = one_run(str(tmp_path), 1, tmp_path)
    assert found.tests == 2
    assert [name.rpartition("::")[2] for name in found.failed] == ["test_bad"]
    assert "assert False" in found.output.read_text()


def test_a_run_that_does_not_come_to_testing_is_a_failure(tmp_path: Path) -> None:
    (failed,) = one_run(str(tmp_path / "not_there"), 1, tmp_path).failed
    assert failed.startswith("the run itself (pytest ended with")
    assert read_report(tmp_path / "none.xml") == (0, [])


def test_a_summary_adds_runs_up_and_says_what_is_missing(tmp_path: Path) -> None:
    text = (
        "import pytest\n"
        "def test_fine(): pass\n\n"
        "@pytest.fixture\ndef bad():\n    yield\n    assert False\n\n"
        "def test_fails_at_its_end(bad): pass\n\n"
        "@pytest.mark.parametrize('number', range(2))\n"
        "def test_wants_a_server(number): pytest.skip('there is no server here')\n"
    )
    pytest_inside(tmp_path, text, EVENFLOW_SUMMARY=str(tmp_path / "found"))
    (file,) = (tmp_path / "found").glob("*.json")
    run = summary.read(file)
    said = summary.text([run, run])
    assert said.splitlines()[-2].split()[:4] == ["all", "2", "2", "4"]
    assert said.splitlines()[-1] == "skipped: 4 because there is no server here"
