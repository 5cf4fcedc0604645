"""How the file, the environment and the flags select a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from evenflow.cli.profiles import Profile, choose, find_file, read_profiles
from evenflow.cli.selection import select_group
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
default = "alerts"

[profiles.alerts]
source = "hub:data/homes"
store = "sqlite:data/leases"
group = "alerts"

[profiles.stats]
store = "sqlite:/srv/leases"
group = "stats"
dead_letters = "jsonl:dead"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EVENFLOW_PROFILE", raising=False)
    (tmp_path / "project" / "deep").mkdir(parents=True)
    (tmp_path / "project" / "evenflow.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_the_nearest_file_counts_and_then_the_users_own(folder: Path) -> None:
    own = folder.parent / "config" / "evenflow" / "evenflow.toml"
    assert find_file(folder / "deep") == folder / "evenflow.toml"
    assert find_file(folder.parent) is None
    own.parent.mkdir(parents=True)
    own.write_text(TEXT)
    assert find_file(folder.parent) == own
    assert find_file(folder) == folder / "evenflow.toml"


def test_a_default_a_name_and_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(None, folder)[0].group == "alerts"
    assert choose("stats", folder)[0].group == "stats"
    monkeypatch.setenv("EVENFLOW_PROFILE", "stats")
    assert choose(None, folder)[0].group == "stats"
    assert choose("alerts", folder)[0].group == "alerts"


def test_paths_are_relative_to_the_folder_of_the_file(folder: Path) -> None:
    assert choose("alerts", folder)[0].store == "sqlite:data/leases"
    deep, _ = choose("alerts", folder / "deep")
    assert (deep.store, deep.source) == (f"sqlite:{folder}/data/leases", f"hub:{folder}/data/homes")
    assert choose("stats", folder / "deep")[0].store == "sqlite:/srv/leases"
    assert choose("stats", folder / "deep")[0].dead_letters == f"jsonl:{folder}/dead"


def meant(chosen: Profile) -> tuple[str | None, ...]:
    return chosen.source, chosen.store, chosen.group, chosen.dead_letters


def test_flags_win_key_by_key(folder: Path) -> None:
    assert select_group(None, None, "other").group == "other"
    assert select_group(None, None, "other").store == "sqlite:data/leases"
    assert meant(select_group("sqlite:mine", None, None, "stats")) == (None, "sqlite:mine", "stats", "jsonl:dead")


def test_a_default_profile_is_ignored_if_a_store_is_named(folder: Path) -> None:
    assert meant(select_group("sqlite:mine")) == (None, "sqlite:mine", None, None)


def test_without_a_store_it_is_wrong_usage(folder: Path) -> None:
    (folder / "evenflow.toml").unlink()
    with pytest.raises(typer.BadParameter, match="--store URL, or --profile NAME"):
        select_group(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[profiles.a]\nstoer = 'x'",
            r"unknown key 'stoer' in \[profiles.a\]. Valid keys: source, store, group, dead_letters",
        ),
        ("profile = 1", "unknown key 'profile'. Valid keys: default, profiles"),
        ("default = 'b'\n[profiles.a]\n", "has no profile 'b'. It has: a."),
        ("[profiles.a]\nstore = 3", "store in .* must be a string in quotes"),
        ("profiles = 3", r"write profiles as \[profiles.NAME\]"),
        ("[profiles]\na = 3", r"write profile 'a' as \[profiles.a\]"),
        ("nonsense", "cannot be read: "),
    ],
)
def test_a_mistake_in_the_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "evenflow.toml"
    path.write_text(text)
    with pytest.raises(Misconfigured, match=message):
        read_profiles(path, tmp_path)


def test_an_unknown_profile_is_reported_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(Misconfigured, match=r"has no profile 'nope'. It has: alerts, stats."):
        choose("nope", folder)


def test_hints_select_the_group_with_the_same_flags(folder: Path) -> None:
    assert select_group(None).hints.flags == "--profile alerts"
    assert select_group(None).hints.hub == "data/homes"
    assert select_group(None, None, "other").hints.flags == "--profile alerts --group other"
    flagged = select_group("sqlite:my leases", None, "stats").hints
    assert flagged.flags == "--store 'sqlite:my leases' --group stats"
    assert (flagged.dead_letters, flagged.source) == ("--dead-letters URL", "--source URL")
    assert select_group(None, None, None, "stats").hints.dead_letters == ""
    assert select_group(None, dead_letters="jsonl:dead").hints.dead_letters == "--dead-letters jsonl:dead"
