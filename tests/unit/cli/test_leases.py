"""`evenflow leases`: list, export and import, reset, rewind, pause and resume, with the leases in files."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from evenflow.embedded.hub import Hub
from tests.unit.cli.command import answer, evenflow, facts
from tests.unit.cli.group_scene import leave_records, make_hub

if TYPE_CHECKING:
    from pathlib import Path


def offsets(*flags: str, folder: Path) -> dict[str, str | None]:
    found = facts("leases", "list", *flags, folder=folder)
    return {one["partition"]: one["offset"] for one in found["leases"]}


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    """A group that has handled everything, and whose instance has left."""
    make_hub(tmp_path)
    asyncio.run(leave_records(tmp_path, handled=9, owned=False))
    return tmp_path


def flags(store: str = "sqlite:leases", group: str = "alerts") -> list[str]:
    return ["--store", store, "--source", "hub:homes", "--group", group]


def test_leases_are_listed(homes: Path) -> None:
    lines = answer("leases", "list", *flags(), folder=homes).splitlines()
    assert lines[0].split() == ["LEASE", "OWNER", "EPOCH", "OFFSET", "SEQUENCE", "HANDLED", "ENDED"]
    assert [line.split()[0] for line in lines[1:]] == list("0123")
    assert [line.split()[3:6] for line in lines[1:]] == [["9", "9", "10"]] * 4


def test_leases_move_to_another_store_through_a_file(homes: Path) -> None:
    exported = evenflow("leases", "export", "leases.json", *flags(), folder=homes)
    assert "wrote 4 leases of alerts to leases.json" in exported.stderr
    other = flags("sqlite:other", "moved")
    shown = evenflow("leases", "import", "leases.json", *other, "--dry-run", folder=homes)
    assert "would write 4 checkpoints" in shown.stderr
    assert not (homes / "other").exists()
    assert evenflow("leases", "import", "leases.json", *other, folder=homes).returncode == 2, (
        "it cannot ask for confirmation without a terminal"
    )
    facts("leases", "import", "leases.json", *other, "--yes", "--why", "moving", folder=homes)
    assert offsets(*other, folder=homes) == dict.fromkeys("0123", "9")
    assert "moving" in answer("group", "actions", *other, folder=homes)


def test_leases_are_exported_to_a_pipe(homes: Path) -> None:
    text = answer("leases", "export", *flags(), folder=homes)
    assert datetime.fromisoformat(json.loads(text)["exported_at"]).utcoffset() == timedelta()
    assert [lease["offset"] for lease in json.loads(text)["leases"]] == ["9"] * 4


def test_rewind_pause_resume_and_reset_are_those_of_the_group(homes: Path) -> None:
    answer("leases", "rewind", "--to-earliest", "--partition", "0", *flags(), "--yes", folder=homes)
    assert offsets(*flags(), folder=homes) == {**dict.fromkeys("123", "9"), "0": "-1"}
    answer("leases", "pause", *flags(), "--yes", folder=homes)
    answer("leases", "resume", *flags(), "--yes", folder=homes)
    kinds = [one["kind"] for one in facts("group", "actions", *flags(), folder=homes)["actions"]]
    assert kinds[:3] == ["resume", "pause", "seek"]
    answer("leases", "reset", *flags(), "--yes", folder=homes)
    assert "has no group" in evenflow("leases", "list", *flags(), folder=homes).stderr


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", "leases written by `evenflow leases export`"),
        ("no json", "leases written by `evenflow leases export`"),
        ('{"evenflow": 9}', "leases written by"),
    ],
)
def test_a_file_that_is_not_an_export_is_rejected(homes: Path, text: str, error: str) -> None:
    (homes / "leases.json").write_text(text)
    done = evenflow("leases", "import", "leases.json", *flags(), "--yes", folder=homes)
    assert done.returncode == 1
    assert error in done.stderr


def test_leases_of_another_hub_are_rejected(homes: Path) -> None:
    answer("leases", "export", "leases.json", *flags(), folder=homes)
    with Hub.create(homes / "sheds", 4):
        pass
    elsewhere = ["--store", "sqlite:leases", "--source", "hub:sheds", "--group", "alerts", "--yes"]
    assert "are of hub local/homes" in evenflow("leases", "import", "leases.json", *elsewhere, folder=homes).stderr
