"""Commands on a hub, and what every command says about wrong input: the message, and the exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from evenflow.embedded.hub import Hub
from tests.unit.cli.command import answer, evenflow, facts, message_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """The folder with a hub named homes."""
    Hub.create(tmp_path / "homes", 4).close()
    return tmp_path


def test_a_hub_is_created_sent_to_described_and_read(tmp_path: Path) -> None:
    answer("hub", "create", "homes", "--partitions", "4", "--retention", "7d", folder=tmp_path)
    answer("hub", "send", "homes", "one", "two words", "--partition", "2", folder=tmp_path)
    assert facts("hub", "send", "homes", "-", "--key", "home-7", folder=tmp_path, text="a\nb\r\n\nc") == {"sent": 4}
    info = facts("hub", "info", "homes", folder=tmp_path)
    assert (info["name"], info["retention_s"], len(info["partitions"])) == ("homes", 604_800, 4)
    assert sum(partition["events"] for partition in info["partitions"]) == 6
    lines = answer("hub", "tail", "homes", "--from", "earliest", "--count", "6", "--json", folder=tmp_path).splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["body"] for event in events if event["key"] == "home-7"] == ["a", "b", "", "c"]
    assert [event["body"] for event in events if event["partition"] == "2" and not event["key"]] == ["one", "two words"]


def test_a_tail_begins_at_a_sequence_or_a_time(hub: Path) -> None:
    answer("hub", "send", "homes", "a", "b", "c", "--partition", "1", folder=hub)
    tail = ("hub", "tail", "homes", "--partition", "1", "--count", "1")
    assert facts(*tail, "--from", "1", folder=hub)["body"] == "b"
    assert facts(*tail, "--from", "2020-01-01T00:00Z", folder=hub)["body"] == "a"


def test_a_missing_hub_is_reported_with_the_command_that_creates_one(tmp_path: Path) -> None:
    done = evenflow("hub", "info", "homes", folder=tmp_path)
    assert "`evenflow hub create`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["hub", "info", "nope"], 1, "error: There is no hub at nope"),
        (["hub", "create", "homes"], 1, "error: A hub already exists at homes"),
        (["hub", "send", "homes", "x", "--partition", "9"], 1, "error: The hub homes has no partition '9'"),
        (["hub", "tail", "homes", "--from", "9", "--partition", "0"], 1, "error: "),
        (
            ["hub", "send", "homes", "x", "--key", "a", "--partition", "1"],
            2,
            "pass either --key or --partition, not both",
        ),
        (["hub", "tail", "homes", "--from", "9"], 2, "add --partition"),
        (["hub", "tail", "homes", "--from", "noon"], 2, "is not earliest, latest"),
        (["hub", "create", "other", "--retention", "soon"], 2, "is not a duration"),
        (["hub", "create", "other", "--partitions", "0"], 2, "--partitions"),
        (["status"], 2, "--store"),
        (["status", "--store", "oracle://scott:tiger@host/db"], 1, "error: store 'oracle://host/db': unknown scheme"),
        (["status", "--store", "sqlite:nothing"], 1, "error: "),
        (["status", "--store", "leases"], 1, "did you mean sqlite:leases?"),
        (["lag", "--store", "sqlite:x", "--source", "homes", "--group", "g"], 1, "did you mean hub:homes?"),
        (["hub", "info", "hub:homes"], 2, "is a URL; pass the folder: homes."),
        (["lag", "--store", "sqlite:x", "--group", "g"], 2, "--source"),
        (["group", "describe", "--store", "sqlite:x"], 2, "evenflow group list"),
        (["top", "--profile", "nope"], 1, "error: Cannot find profile 'nope': there is no evenflow.toml in"),
        (["run", "app"], 2, "'app' is not MODULE:PROCESSOR"),
        (["run", "app.py:processor"], 2, "name the module as in an import: app:processor."),
        (["run", "nope_app:processor"], 1, "error: Cannot import 'nope_app': no such module"),
        (["run", "app:processor", "--health", "web"], 1, "is not [HOST:]PORT; write for instance 8080"),
        (["run", "app:processor", "--health", "0.0.0.0:"], 1, "is not [HOST:]PORT; write for instance 8080"),
        (["run", "app:processor", "--health", "70000"], 1, "is not [HOST:]PORT; write for instance 8080"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(hub: Path, arguments: list[str], code: int, message: str) -> None:
    done = evenflow(*arguments, folder=hub)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in message_of(done)
    assert "Traceback" not in done.stderr
    assert "tiger" not in done.stderr
    assert not (hub / "nothing").exists()


def test_debug_shows_the_traceback(hub: Path) -> None:
    done = evenflow("--debug", "hub", "info", "nope", folder=hub)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "NotAHub" in done.stderr
