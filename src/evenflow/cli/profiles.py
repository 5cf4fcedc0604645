"""Profiles: the store, source and group of a command, kept in `evenflow.toml` under a name.

The file is the one in the current folder or the nearest parent folder, else the one in the user's config folder. Paths
in it are relative to the folder of the file.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from evenflow.errors import Misconfigured

FILE = "evenflow.toml"
ENVIRONMENT = "EVENFLOW_PROFILE"
FOLDER_SCHEMES = ("hub", "sqlite", "jsonl")
"""Schemes whose URLs name a folder."""
TOP_KEYS = ("default", "profiles")


class Profile(Struct, frozen=True, kw_only=True):
    source: str | None = None
    store: str | None = None
    group: str | None = None
    dead_letters: str | None = None
    name: str | None = None
    """The profile's name in the file."""


KEYS = ("source", "store", "group", "dead_letters")


class Profiles(Struct, frozen=True, kw_only=True):
    """The content of one file."""

    path: Path
    default: str | None
    named: dict[str, Profile]

    def find(self, name: str) -> Profile:
        if name not in self.named:
            known = f"It has: {', '.join(sorted(self.named))}." if self.named else "It has no profiles."
            raise Misconfigured(f"{self.path} has no profile {name!r}. {known}")
        return self.named[name]


def find_file(folder: Path, environment: dict[str, str] | None = None) -> Path | None:
    """The nearest file from this folder upwards, else the one in the user's config folder."""
    places = [folder, *folder.parents, config_folder(os.environ if environment is None else environment)]
    return next((place / FILE for place in places if (place / FILE).is_file()), None)


def config_folder(environment: Any) -> Path:
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    return Path(home) / "evenflow"


def read_profiles(path: Path, here: Path) -> Profiles:
    """Read the file. An unknown key is an error: a misspelt one would silently have no effect."""
    try:
        found = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}") from error
    _check_keys(path, "", found, TOP_KEYS)
    tables = found.get("profiles", {})
    default = found.get("default")
    if not isinstance(tables, dict) or not isinstance(default, str | None):
        raise Misconfigured(f'{path}: write profiles as [profiles.NAME], and default = "NAME".')
    named = {name: _profile(path, name, table, here) for name, table in tables.items()}
    read = Profiles(path=path, default=default, named=named)
    if default is not None:
        read.find(default)
    return read


def choose(name: str | None, folder: Path) -> tuple[Profile, bool]:
    """The selected profile, and whether the user named it; without a name it is the file's default."""
    named = name or os.environ.get(ENVIRONMENT) or None
    path = find_file(folder)
    if path is None:
        if named is not None:
            raise Misconfigured(
                f"Cannot find profile {named!r}: there is no {FILE} in {folder}, in a folder above it or in"
                f" {config_folder(os.environ)}."
            )
        return Profile(), False
    read = read_profiles(path, folder)
    wanted = named or read.default
    return (read.find(wanted) if wanted is not None else Profile()), named is not None


def merged(profile: Profile, **given: str | None) -> Profile:
    """The profile, with each key that the command line gives replaced."""
    return Profile(**{**asdict(profile), **{key: value for key, value in given.items() if value is not None}})


def _profile(path: Path, name: str, table: Any, here: Path) -> Profile:
    if not isinstance(table, dict):
        raise Misconfigured(f"{path}: write profile {name!r} as [profiles.{name}].")
    _check_keys(path, f" in [profiles.{name}]", table, KEYS)
    wrong = [key for key, value in table.items() if not isinstance(value, str)]
    if wrong:
        raise Misconfigured(f"{path}: {wrong[0]} in [profiles.{name}] must be a string in quotes.")
    return Profile(
        name=name,
        **{key: value if key == "group" else _from_folder(value, path.parent, here) for key, value in table.items()},
    )


def _check_keys(path: Path, place: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise Misconfigured(f"{path}: unknown key {unknown[0]!r}{place}. Valid keys: {', '.join(known)}.")


def _from_folder(url: str, folder: Path, here: Path) -> str:
    """The URL with its folder relative to `here`, if its scheme names a folder."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in FOLDER_SCHEMES or not rest or rest.startswith(("/", "~")) or folder == here:
        return url
    return f"{scheme}:{folder / rest}"
