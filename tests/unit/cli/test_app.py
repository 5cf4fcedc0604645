"""Which commands are loaded for a command line, and that no command pays for the imports of another."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from evenflow.cli.app import COMMANDS, assembled, requested_commands

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = "evenflow.testing", "rich.progress", "rich.live", "pygments", "markdown_it"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["status", "--store", "sqlite:leases"], ["status"]),
        (["--debug", "hub", "info"], ["hub"]),
        (["--help"], list(COMMANDS)),
        (["--version", "status"], list(COMMANDS)),
        (["stauts"], list(COMMANDS)),
        ([], list(COMMANDS)),
    ],
)
def test_the_named_command_is_loaded_else_all(arguments: list[str], names: list[str]) -> None:
    assert list(requested_commands(arguments)) == names


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_works_without_the_others(name: str) -> None:
    group = typer.main.get_command(assembled([name]))
    assert list(group.commands) == [name]  # type: ignore[attr-defined]


def test_status_loads_nothing_heavy() -> None:
    program = f"""
import sys
from evenflow.cli.app import requested_commands, assembled
assembled(requested_commands(["status"]))
print([name for name in sys.modules if name.startswith({HEAVY!r})])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_python_m_evenflow_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "evenflow", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('evenflow')}\n", "")


def test_one_partition_is_singular(tmp_path: Path) -> None:
    made = CliRunner().invoke(assembled(["hub"]), ["hub", "create", str(tmp_path / "homes"), "--partitions", "1"])
    assert "created hub homes with 1 partition in" in made.output


def test_help_needs_no_other_extra() -> None:
    """The core and the extra `cli` are enough for the help and the version."""
    program = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement

needed = [Requirement(line) for line in requires("evenflow")]
core = {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": "cli"})}
extras = {one.name for one in needed} - core
for name, distributions in packages_distributions().items():
    if extras.issuperset(distributions):
        sys.modules[name] = None  # makes its import fail as if it were not installed
from evenflow.cli.app import assembled
assembled()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
