"""The command line as its users meet it: real programs, their output and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from evenflow.hub import Hub
from tests.integration.programs import PATIENCE_S, answer, end, evenflow, facts, next_line, started

pytestmark = pytest.mark.process


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    Hub.create(tmp_path / "homes", 4).close()
    return tmp_path


def test_a_hub_is_made_sent_to_looked_at_and_read(tmp_path: Path) -> None:
    hub = tmp_path
    answer("hub", "create", "homes", "--partitions", "4", "--retention", "7d", folder=hub)
    answer("hub", "send", "homes", "one", "two words", "--partition", "2", folder=hub)
    assert facts("hub", "send", "homes", "-", "--key", "home-7", folder=hub, text="a\nb\r\n\nc") == {"sent": 4}
    info = facts("hub", "info", "homes", folder=hub)
    assert (info["name"], info["retention_s"], len(info["partitions"])) == ("homes", 604_800, 4)
    assert sum(partition["events"] for partition in info["partitions"]) == 6
    lines = answer("hub", "tail", "homes", "--from", "earliest", "--count", "6", "--json", folder=hub).splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["body"] for event in events if event["key"] == "home-7"] == ["a", "b", "", "c"]
    assert [event["body"] for event in events if event["partition"] == "2" and not event["key"]] == ["one", "two words"]


def test_a_tail_begins_at_a_sequence_or_a_time(hub: Path) -> None:
    answer("hub", "send", "homes", "a", "b", "c", "--partition", "1", folder=hub)
    tail = ("hub", "tail", "homes", "--partition", "1", "--count", "1", "--json")
    assert facts(*tail[:-1], "--from", "1", folder=hub)["body"] == "b"
    assert facts(*tail[:-1], "--from", "2020-01-01T00:00Z", folder=hub)["body"] == "a"


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


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["hub", "info", "nope"], 1, "error: There is no hub at nope"),
        (["hub", "create", "homes"], 1, "error: There is a hub at homes already"),
        (["hub", "send", "homes", "x", "--partition", "9"], 1, "error: The hub homes has no partition '9'"),
        (["hub", "tail", "homes", "--from", "9", "--partition", "0"], 1, "error: "),
        (["hub", "send", "homes", "x", "--key", "a", "--partition", "1"], 2, "give --key or --partition, not both"),
        (["hub", "tail", "homes", "--from", "9"], 2, "add --partition"),
        (["hub", "tail", "homes", "--from", "noon"], 2, "is not earliest, latest"),
        (["hub", "create", "other", "--retention", "soon"], 2, "is no duration"),
        (["hub", "create", "other", "--partitions", "0"], 2, "--partitions"),
        (["status"], 2, "--store"),
        (["status", "--store", "oracle://scott:tiger@host/db"], 1, "error: store 'oracle://host/db': no such kind"),
        (["status", "--store", "sqlite:nothing"], 1, "error: "),
        (["status", "--store", "leases"], 1, "did you mean sqlite:leases?"),
        (["lag", "--store", "sqlite:x", "--source", "homes", "--group", "g"], 1, "did you mean hub:homes?"),
        (["hub", "info", "hub:homes"], 2, "did you mean homes?"),
        (["lag", "--store", "sqlite:x", "--group", "g"], 2, "--source"),
        (["group", "describe", "--store", "sqlite:x"], 2, "evenflow group list"),
        (["top", "--profile", "nope"], 1, "error: There is no evenflow.toml that could have a profile 'nope'"),
        (["run", "app"], 2, "module:name"),
        (["run", "app.py:processor"], 2, "did you mean app:processor?"),
        (["run", "nope_app:processor"], 1, "error: There is no module 'nope_app' here"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_an_error_is_told_in_a_line_and_by_the_exit_code(
    hub: Path, arguments: list[str], code: int, message: str
) -> None:
    done = evenflow(*arguments, folder=hub)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, done.stdout) == (code, "")
    assert message in said
    assert "Traceback" not in said
    assert "tiger" not in said
    assert not (hub / "nothing").exists()


def test_a_traceback_is_shown_to_those_who_ask(hub: Path) -> None:
    done = evenflow("--debug", "hub", "info", "nope", folder=hub)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "NotAHub" in done.stderr


def test_without_its_extra_it_says_what_to_install(tmp_path: Path) -> None:
    without = "import sys; sys.modules['typer'] = None; from evenflow.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: the command line needs two more packages: pip install 'evenflow[cli]'\n"


def test_shells_can_complete_it(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("evenflow")
    typed = {"_EVENFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "evenflow group re", "COMP_CWORD": "2"}
    done = subprocess.run([program], capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | typed)
    assert done.stdout.split() == ["resume"]


def test_the_program_is_installed_under_its_name(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("evenflow")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"{version('evenflow')}\n"
