"""Which commands are loaded for a command line, and that no command pays for another."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from evenflow.cli.app import COMMANDS, asked_for, assembled

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
def test_the_one_that_is_called_for_sure_else_all(arguments: list[str], names: list[str]) -> None:
    assert list(asked_for(arguments)) == names


@pytest.mark.parametrize("name", COMMANDS)
def test_each_works_without_the_others(name: str) -> None:
    group = typer.main.get_command(assembled([name]))
    assert list(group.commands) == [name]  # type: ignore[attr-defined]


def test_a_look_at_a_group_loads_nothing_heavy() -> None:
    program = f"""
import sys
from evenflow.cli.app import asked_for, assembled
assembled(asked_for(["status"]))
print([name for name in sys.modules if name.startswith({HEAVY!r})])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_python_knows_the_program_by_the_name_of_the_package() -> None:
    done = subprocess.run([sys.executable, "-m", "evenflow", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('evenflow')}\n", "")


def test_one_is_told_as_one(tmp_path: Path) -> None:
    made = CliRunner().invoke(assembled(["hub"]), ["hub", "create", str(tmp_path / "homes"), "--partitions", "1"])
    assert "made hub homes with 1 partition in" in made.output


def test_no_command_needs_an_extra_to_be_helped_with() -> None:
    """Whoever has installed the core and the extra `cli` sees the help and the version."""
    program = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement

needed = [Requirement(line) for line in requires("evenflow")]
core = {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": "cli"})}
extras = {one.name for one in needed} - core
for name, distributions in packages_distributions().items():
    if extras.issuperset(distributions):
        sys.modules[name] = None  # an import of it fails as that of a package that is not there
from evenflow.cli.app import assembled
assembled()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
