"""The served folder: either one hub, or a folder of hubs; and the declared consumer groups.

Declared hubs that do not exist are created, and declared groups are kept. Only one server may serve a folder: two
servers would not see each other's receivers, so that one partition could be read under two epochs at once.
"""

from __future__ import annotations

import fcntl
import os
import re
import tomllib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evenflow.embedded.hub import Hub
from evenflow.embedded.hub.metadata import check_partitions, metadata_path
from evenflow.emulators.eventhubs.namespace import DEFAULT_GROUP, ServedHub
from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

DEFAULT_PARTITIONS = 4
GROUPS_FILE = "groups.json"
LOCK_FILE = "serve.lock"
_RESERVED_NAMES = frozenset((GROUPS_FILE, LOCK_FILE, "hub.sqlite"))
"""Names of other files in the served folder."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
"""At most 255 characters, the limit for a folder's name."""
_COUNT_DIGITS_MAX = 9
_GROUP_NAME = re.compile(r"[$A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")


class HubDeclaration(Struct, frozen=True):
    """A hub that the server creates if it does not exist. `partitions` None means its current or the default number."""

    name: str
    partitions: int | None = None
    groups: tuple[str, ...] = ()


def parse_declaration(text: str) -> HubDeclaration:
    """Parse NAME, NAME:PARTITIONS or NAME:PARTITIONS:GROUP,GROUP."""
    name, _, rest = text.partition(":")
    count, _, groups = rest.partition(":")
    if count and not (count.isascii() and count.isdecimal() and len(count) <= _COUNT_DIGITS_MAX):
        raise Misconfigured(
            f"{text!r} does not declare a hub. Write NAME:PARTITIONS:GROUP,GROUP, for instance homes:4:alerts,audit."
        )
    named = tuple(group.strip() for group in groups.split(",") if group.strip())
    return _checked(HubDeclaration(name, int(count) if count else None, named))


def _checked(hub: HubDeclaration) -> HubDeclaration:
    if not _NAME.fullmatch(hub.name):
        raise Misconfigured(
            f"{hub.name!r} is not a valid hub name. Use letters, digits, dots, dashes and underscores, and begin and "
            "end with a letter or a digit."
        )
    if hub.name.lower() in _RESERVED_NAMES:
        raise Misconfigured(f"{hub.name!r} is reserved for a file of the server. Choose another hub name.")
    if hub.partitions is not None:
        check_partitions(hub.partitions)
    for group in hub.groups:
        if not _GROUP_NAME.fullmatch(group):
            raise Misconfigured(
                f"{group!r} is not a valid consumer group name. Use at most 50 letters, digits, dots, dashes and "
                "underscores."
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


class _Hub(Struct, forbid_unknown_fields=True):
    partitions: int | None = None
    groups: tuple[str, ...] = ()


class _Hubs(Struct, forbid_unknown_fields=True):
    hubs: dict[str, _Hub]


def read_declarations(path: Path) -> list[HubDeclaration]:
    """Read the declarations in a file: TOML if its name ends in .toml, else a Config.json of Microsoft's emulator."""
    read = _parse_toml if path.suffix.lower() == ".toml" else _parse_emulator_config
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"Cannot read {path}: {error.strerror}.") from error
    try:
        return [_checked(hub) for hub in read(data)]
    except Misconfigured as error:
        raise Misconfigured(f"{path}: {error}") from error


def _parse_toml(data: bytes) -> list[HubDeclaration]:
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), _Hubs)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise Misconfigured(
            f"it declares no hubs: {error}. For each hub, write a section [hubs.NAME], optionally with partitions = 4 "
            'and groups = ["alerts"].'
        ) from error
    return [HubDeclaration(name, hub.partitions, hub.groups) for name, hub in found.hubs.items()]


def _parse_emulator_config(data: bytes) -> list[HubDeclaration]:
    try:
        config = msgspec.json.decode(data, type=_Config, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Misconfigured(
            f"it is not a Config.json of the Event Hubs emulator: {error}. The name of a file in evenflow's own format "
            "must end in .toml."
        ) from error
    return [
        HubDeclaration(entity.name, entity.partition_count, tuple(group.name for group in entity.consumer_groups))
        for namespace in config.user_config.namespace_config
        for entity in namespace.entities
    ]


@contextmanager
def open_exclusively(folder: Path, wanted: Sequence[HubDeclaration] = ()) -> Iterator[list[ServedHub]]:
    """Like `open_folder`, with an exclusive lock on the folder and its hubs until the block ends.

    The caller closes the hubs.
    """
    if not folder.exists():
        with _write_errors(folder):
            folder.mkdir(parents=True)
    with ExitStack() as locks:
        if folder.is_dir():
            locks.enter_context(_locked(folder))
        hubs = open_folder(folder, wanted)
        try:
            for one in hubs:
                if one.hub.path != folder:
                    locks.enter_context(_locked(one.hub.path))
        except BaseException:
            for one in hubs:
                one.hub.close()
            raise
        yield hubs


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Misconfigured(f"Cannot write {path}: {error.strerror}. Give a folder that you may write.") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder. The operating system releases the lock when the process ends."""
    path = folder / LOCK_FILE
    with _write_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            raise Misconfigured(
                f"{folder} is already served{f' by process {holder}' if holder.isdecimal() else ''}. Connect to that"
                " server, or give this one another folder."
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def open_folder(folder: Path, wanted: Sequence[HubDeclaration] = (), default: str = "hub") -> list[ServedHub]:
    """Open all hubs of a folder. Declared hubs are created or grown, and get their groups."""
    opened = [Hub(folder)] if metadata_path(folder).exists() else [Hub(found) for found in _hubs_in(folder)]
    hubs = {hub.info().name.lower(): hub for hub in opened}
    try:
        alone = metadata_path(folder).exists()
        for one in wanted or ([] if hubs else [HubDeclaration(default)]):
            if one.name.lower() in hubs:
                _grow(hubs[one.name.lower()], one)
            elif alone:
                raise Misconfigured(f"{folder} is itself a hub. Give another folder to create {one.name} in.")
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
        raise Misconfigured(f"{folder} is a file. Give the folder that holds the hubs.")
    return sorted(path.parent for path in folder.glob("*/hub.sqlite"))


def _grow(hub: Hub, wanted: HubDeclaration) -> None:
    have = hub.opened().metadata().partitions
    if wanted.partitions is None or wanted.partitions == have:
        return
    if wanted.partitions < have:
        raise Misconfigured(
            f"The hub {wanted.name} has {have} partitions and cannot shrink to {wanted.partitions}. Declare it with "
            f"{have} or more, or delete its folder."
        )
    hub.add_partitions(wanted.partitions - have)


def _all_groups(folder: Path, wanted: Iterable[HubDeclaration]) -> dict[str, list[str]]:
    """Earlier and newly declared groups by the hub's name in lower case; also saves them for the next start."""
    path = folder / GROUPS_FILE
    before: dict[str, list[str]] = {}
    if path.exists():
        try:
            before = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
        except (msgspec.MsgspecError, RecursionError, OSError) as error:
            raise Misconfigured(f"{path} is damaged: {error}. Delete it, and declare the groups again.") from error
    groups = {name: list(found) for name, found in before.items()}
    for hub in wanted:
        known = groups.setdefault(hub.name.lower(), [])
        seen = {DEFAULT_GROUP.lower(), *(group.lower() for group in known)}
        known += [group for group in hub.groups if group.lower() not in seen]
    groups = {name: found for name, found in groups.items() if found}
    if groups != before:
        with _write_errors(path):
            path.write_bytes(msgspec.json.encode(groups))
    return groups
