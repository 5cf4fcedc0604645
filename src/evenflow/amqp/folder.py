"""The folder that is served: a hub in each folder inside it, or itself one hub; and the groups that were declared.

What is declared and not there is made; groups stay declared.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evenflow.amqp.namespace import DEFAULT_GROUP, ServedHub
from evenflow.errors import Misconfigured
from evenflow.hub import Hub
from evenflow.hub.facts import facts_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

DEFAULT_PARTITIONS = 4
GROUPS_FILE = "groups.json"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_GROUP_NAME = re.compile(r"[$A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")


class Declared(Struct, frozen=True):
    """A hub as somebody wants it. `partitions` is None for whatever it has."""

    name: str
    partitions: int | None = None
    groups: tuple[str, ...] = ()


def declared(text: str) -> Declared:
    """NAME, NAME:PARTITIONS or NAME:PARTITIONS:GROUP,GROUP."""
    name, _, rest = text.partition(":")
    count, _, groups = rest.partition(":")
    if count and not (count.isascii() and count.isdecimal()):
        raise Misconfigured(
            f"{text!r} is no hub; write NAME:PARTITIONS:GROUP,GROUP, for instance homes:4:alerts,audit."
        )
    named = tuple(group.strip() for group in groups.split(",") if group.strip())
    return _checked(Declared(name, int(count) if count else None, named))


def _checked(hub: Declared) -> Declared:
    if not _NAME.fullmatch(hub.name):
        raise Misconfigured(
            f"{hub.name!r} is no name for a hub: it has letters, digits, dots, dashes and underscores, and begins and "
            "ends with a letter or a digit."
        )
    for group in hub.groups:
        if not _GROUP_NAME.fullmatch(group):
            raise Misconfigured(
                f"{group!r} is no name for a consumer group: it has letters, digits, dots, dashes and underscores, and "
                "50 of them at most."
            )
    return hub


class _Group(Struct, rename="pascal"):
    name: str


class _Entity(Struct, rename="pascal"):
    name: str
    partition_count: int
    consumer_groups: list[_Group] = []


class _Namespace(Struct, rename="pascal"):
    entities: list[_Entity]


class _UserConfig(Struct, rename="pascal"):
    namespace_config: list[_Namespace]


class _Config(Struct, rename="pascal"):
    user_config: _UserConfig


def declared_in(path: Path) -> list[Declared]:
    """What the Config.json of Microsoft's emulator declares."""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config, strict=False)
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise Misconfigured(f"{path} is no Config.json of the Event Hubs emulator: {error}.") from error
    return [
        _checked(Declared(entity.name, entity.partition_count, tuple(group.name for group in entity.consumer_groups)))
        for namespace in config.user_config.namespace_config
        for entity in namespace.entities
    ]


def open_folder(folder: Path, wanted: Sequence[Declared] = (), default: str = "hub") -> list[ServedHub]:
    """All hubs that are there, with what is declared: made, grown, and with these groups."""
    opened = [Hub(folder)] if facts_path(folder).exists() else [Hub(found) for found in _hubs_in(folder)]
    hubs = {hub.info().name.lower(): hub for hub in opened}
    try:
        alone = facts_path(folder).exists()
        for one in wanted or ([] if hubs else [Declared(default)]):
            if one.name.lower() in hubs:
                _grow(hubs[one.name.lower()], one)
            elif alone:
                raise Misconfigured(f"{folder} is itself a hub, so that {one.name} cannot be made in it.")
            else:
                partitions = one.partitions or DEFAULT_PARTITIONS
                hubs[one.name.lower()] = Hub.create(folder / one.name, partitions)
        groups = _all_groups(folder, wanted)
    except BaseException:
        for hub in hubs.values():
            hub.close()
        raise
    return [ServedHub(hub.info().name, hub, groups.get(name, ())) for name, hub in hubs.items()]


def _hubs_in(folder: Path) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        raise Misconfigured(f"{folder} is a file. Give the folder that hubs are kept in.")
    return sorted(path.parent for path in folder.glob("*/hub.sqlite"))


def _grow(hub: Hub, wanted: Declared) -> None:
    have = hub.opened().facts().partitions
    if wanted.partitions is None or wanted.partitions == have:
        return
    if wanted.partitions < have:
        raise Misconfigured(
            f"The hub {wanted.name} has {have} partitions, and cannot shrink to {wanted.partitions}. Declare it with "
            f"{have} or more, or delete its folder."
        )
    hub.add_partitions(wanted.partitions - have)


def _all_groups(folder: Path, wanted: Iterable[Declared]) -> dict[str, list[str]]:
    """Those of before and those of now, by the hub's name in small letters; kept for the next time."""
    path = folder / GROUPS_FILE
    before: dict[str, list[str]] = {}
    if path.exists():
        try:
            before = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
        except msgspec.MsgspecError as error:
            raise Misconfigured(f"{path} is damaged: {error}. Delete it, and declare the groups again.") from error
    groups = {name: list(found) for name, found in before.items()}
    for hub in wanted:
        known = groups.setdefault(hub.name.lower(), [])
        seen = {DEFAULT_GROUP.lower(), *(group.lower() for group in known)}
        known += [group for group in hub.groups if group.lower() not in seen]
    groups = {name: found for name, found in groups.items() if found}
    if groups != before:
        path.write_bytes(msgspec.json.encode(groups))
    return groups
