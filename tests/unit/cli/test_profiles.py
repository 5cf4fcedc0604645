"""Which group is meant: the file, the environment, the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from evenflow.cli.profiles import Profile, choose, find_file, read_profiles
from evenflow.cli.which import which
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
dead letters = "jsonl:dead letters"
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


def test_paths_are_meant_from_the_folder_of_the_file(folder: Path) -> None:
    assert choose("alerts", folder)[0].store == "sqlite:data/leases"
    deep, _ = choose("alerts", folder / "deep")
    assert (deep.store, deep.source) == (f"sqlite:{folder}/data/leases", f"hub:{folder}/data/homes")
    assert choose("stats", folder / "deep")[0].store == "sqlite:/srv/leases"
    assert choose("stats", folder / "deep")[0].dead_letters == f"jsonl:{folder}/dead letters"


def meant(chosen: Profile) -> tuple[str | None, ...]:
    return chosen.source, chosen.store, chosen.group, chosen.dead_letters


def test_flags_win_key_by_key(folder: Path) -> None:
    assert which(None, None, "other").group == "other"
    assert which(None, None, "other").store == "sqlite:data/leases"
    assert meant(which("sqlite:mine", None, None, "stats")) == (None, "sqlite:mine", "stats", "jsonl:dead letters")


def test_a_default_profile_is_left_alone_by_those_who_name_a_store(folder: Path) -> None:
    assert meant(which("sqlite:mine")) == (None, "sqlite:mine", None, None)


def test_without_a_store_it_is_wrong_usage(folder: Path) -> None:
    (folder / "evenflow.toml").unlink()
    with pytest.raises(typer.BadParameter, match="--store URL, or --profile NAME"):
        which(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[profiles.a]\nstoer = 'x'",
            r"unknown key 'stoer' in \[profiles.a\]. Known are: source, store, group, dead letters",
        ),
        ("profile = 1", "unknown key 'profile'. Known are: default, profiles"),
        ("default = 'b'\n[profiles.a]\n", "has no profile 'b'. It has: a."),
        ("[profiles.a]\nstore = 3", "store in .* must be a text in quotes"),
        ("profiles = 3", r"write profiles as \[profiles.NAME\]"),
        ("[profiles]\na = 3", r"write profile 'a' as \[profiles.a\]"),
        ("nonsense", "cannot be read: "),
    ],
)
def test_a_mistake_in_the_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "evenflow.toml"
    path.write_text(text)
    with pytest.raises(Misconfigured, match=message):
        read_profiles(path, tmp_path)


def test_a_profile_that_is_not_there_is_told_with_those_that_are(folder: Path) -> None:
    with pytest.raises(Misconfigured, match=r"has no profile 'nope'. It has: alerts, stats."):
        choose("nope", folder)


def test_hints_say_again_how_the_group_was_asked_for(folder: Path) -> None:
    assert which(None).hints.flags == "--profile alerts"
    assert which(None).hints.hub == "data/homes"
    assert which(None, None, "other").hints.flags == "--profile alerts --group other"
    flagged = which("sqlite:my leases", None, "stats").hints
    assert flagged.flags == "--store 'sqlite:my leases' --group stats"
    assert (flagged.dead_letters, flagged.source) == ("--dead-letters URL", "--source URL")
    assert which(None, None, None, "stats").hints.dead_letters == ""
    assert which(None, dead_letters="jsonl:dead").hints.dead_letters == "--dead-letters jsonl:dead"
