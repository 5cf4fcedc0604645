"""The command line as its users meet it: real programs, pipes, signals, and the installed entry point.

What needs no process of its own is in tests/unit/cli.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from evenflow.embedded.hub import Hub
from tests.integration.programs import PATIENCE_S, answer, end, evenflow, facts, next_line, started

pytestmark = pytest.mark.process

PROGRAM = Path(sys.executable).with_name("evenflow")


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    Hub.create(tmp_path / "homes", 4).close()
    return tmp_path


def test_events_go_in_and_out_through_pipes_and_an_error_is_an_exit_code(hub: Path) -> None:
    """Once with the real program; tests/unit/cli/test_commands.py has the rest."""
    assert facts("hub", "send", "homes", "-", "--key", "home-7", folder=hub, text="a\nb\r\n\nc") == {"sent": 4}
    lines = answer("hub", "tail", "homes", "--from", "earliest", "--count", "4", "--json", folder=hub).splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["a", "b", "", "c"]
    failed = evenflow("hub", "info", "nope", folder=hub)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert failed.stderr.startswith("error: There is no hub at nope")
    assert evenflow("nonsense", folder=hub).returncode == 2


def test_a_tail_follows_until_ctrl_c(hub: Path) -> None:
    answer("hub", "send", "homes", "first", folder=hub)
    with started("hub", "tail", "homes", "--from", "earliest", "--json", folder=hub) as tail:
        assert json.loads(next_line(tail))["body"] == "first"
        answer("hub", "send", "homes", "second", folder=hub)
        assert json.loads(next_line(tail))["body"] == "second"
        assert end(tail, signal.SIGINT) == (0, "", "")


def test_a_reader_that_has_seen_enough_is_no_error(hub: Path) -> None:
    answer("hub", "send", "homes", "-", "--partition", "0", folder=hub, text="x\n" * 20_000)
    with started("hub", "tail", "homes", "--from", "earliest", folder=hub) as tail:
        assert next_line(tail).endswith("x\n")
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.close()
        assert tail.stderr.read() == ""
        assert tail.wait(PATIENCE_S) == 0


def test_without_its_extra_it_says_what_to_install(tmp_path: Path) -> None:
    without = "import sys; sys.modules['typer'] = None; from evenflow.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: typer and rich are not installed; run: pip install 'evenflow[cli]'\n"


def test_shells_can_complete_it(tmp_path: Path) -> None:
    typed = {"_EVENFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "evenflow group re", "COMP_CWORD": "2"}
    done = subprocess.run([PROGRAM], capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | typed)
    assert done.stdout.split() == ["resume"]


def test_the_program_is_installed_under_its_name(tmp_path: Path) -> None:
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"{version('evenflow')}\n"
