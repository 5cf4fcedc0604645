"""The served folder: one folder for each database, with one folder for each of its containers.

Folders are named by id; characters that a file system does not allow are percent-encoded.
"""

from __future__ import annotations

import os
import shutil
from secrets import token_bytes, token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from evenflow.embedded.container import Container
from evenflow.embedded.container.metadata import metadata_path, rid_text
from evenflow.emulators.cosmos.http import OWNER_NAME, OWNER_RID, CosmosError, unsupported
from evenflow.errors import ContainerExists, Misconfigured, SourceUnavailable
from evenflow.model import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DATABASE_FILE = "database.json"
NAME_BYTES_MAX = 200
DEFAULT_RANGES = 1
_KEPT = ("indexingPolicy", "conflictResolutionPolicy", "geospatialConfig")
"""Container properties that are returned as given and have no effect."""
_KNOWN = frozenset(("id", "partitionKey", "defaultTtl", *_KEPT))
_INDEXING = {
    "indexingMode": "consistent",
    "automatic": True,
    "includedPaths": [{"path": "/*"}],
    "excludedPaths": [{"path": '/"_etag"/?'}],
}


class CosmosDatabase(Struct, frozen=True):
    id: str
    rid: bytes
    made_us: int

    def resource(self) -> dict[str, Any]:
        rid = rid_text(self.rid)
        return {
            "id": self.id,
            "_rid": rid,
            "_self": f"dbs/{rid}/",
            "_etag": f'"{self.made_us:016x}"',
            "_colls": "colls/",
            "_users": "users/",
            "_ts": self.made_us // MICROSECONDS,
        }


class ContainerDeclaration(Struct, frozen=True):
    """A container that the server creates at startup if it does not exist."""

    database: str
    container: str
    paths: list[str]


def parse_declaration(text: str) -> ContainerDeclaration:
    """Parse DATABASE/CONTAINER:/KEY. A hierarchical key has several paths, separated by commas."""
    names, _, paths = text.partition(":")
    database, slash, container = names.partition("/")
    if not slash or not database or not container or not paths.startswith("/"):
        raise Misconfigured(
            f"{text!r} does not declare a container. Write DATABASE/CONTAINER:/KEY, for instance shop/orders:/customer."
        )
    return ContainerDeclaration(database, container, paths.split(","))


class CosmosAccount:
    """All databases and containers in a folder. Thread-safe; containers are opened at their first use."""

    def __init__(self, folder: Path, wall_us: Callable[[], int], ranges: int = DEFAULT_RANGES) -> None:
        if folder.exists() and not folder.is_dir():
            raise Misconfigured(f"{folder} is a file. Give the folder that holds the databases.")
        if metadata_path(folder).exists():
            raise Misconfigured(f"{folder} is itself a container. Give the folder that holds the databases.")
        self.folder = folder
        self._wall_us = wall_us
        self._ranges = ranges
        self._lock = Lock()
        self._open: dict[Path, Container] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Misconfigured(
                f"Cannot create {folder}: {error.strerror}. Give a folder that this user may write."
            ) from error

    # Databases

    def databases(self) -> list[CosmosDatabase]:
        return [self._database_in(path.parent) for path in sorted(self.folder.glob(f"*/{DATABASE_FILE}"))]

    def database(self, id: str, substatus: int = 0) -> CosmosDatabase:
        folder = self._folder(id)
        if (folder / DATABASE_FILE).is_file():
            return self._database_in(folder)
        found = next((one for one in self.databases() if rid_text(one.rid) == id), None)
        if found is None:
            raise CosmosError(404, f"There is no database {id!r}.", substatus)
        return found

    def create_database(self, wanted: object) -> CosmosDatabase:
        id = _checked_id(wanted)
        folder = self._folder(id)
        made = CosmosDatabase(id, token_bytes(4), self._wall_us())
        with self._lock:
            if (folder / DATABASE_FILE).exists():
                raise CosmosError(409, f"The database {id!r} already exists.")
            folder.mkdir(exist_ok=True)
            _write_durably(folder / DATABASE_FILE, msgspec.json.encode(made))
        return made

    def delete_database(self, id: str) -> None:
        found = self.database(id)
        for container in self.containers(found.id):
            self.delete_container(found.id, container.opened().metadata.name)
        self._discard(self._folder(found.id))

    # Containers

    def containers(self, database_id: str) -> list[Container]:
        folder = self._folder(self.database(database_id).id)
        return [self._opened(path.parent) for path in sorted(folder.glob("*/container.sqlite"))]

    def container(self, database_id: str, id: str, substatus: int = 0) -> Container:
        folder = self._folder(database_id) / _file_name(id)
        if metadata_path(folder).is_file():
            return self._opened(folder)
        # The container may be addressed by its `_rid`, and so may the database.
        database = self.database(database_id, substatus)
        for one in self.containers(database.id):
            if one.opened().metadata.rid_text == id:
                return one
        raise CosmosError(404, f"There is no container {id!r} in the database {database.id!r}.", substatus)

    def create_container(self, database_id: str, wanted: Mapping[str, Any]) -> Container:
        database = self.database(database_id)
        id = _checked_id(wanted.get("id"))
        folder = self._folder(database.id) / _file_name(id)
        try:
            with self._lock:  # no other thread may open a container that is only half created
                self._open[folder] = container = Container.create(
                    folder,
                    _key_paths(wanted.get("partitionKey")),
                    self._ranges,
                    name=id,
                    default_ttl_s=_default_ttl_s(wanted),
                    properties={name: wanted[name] for name in _KEPT if name in wanted},
                    database_rid=database.rid,
                    wall_us=self._wall_us,
                )
        except ContainerExists:
            raise CosmosError(409, f"The container {id!r} already exists.") from None
        return container

    def declare(self, wanted: ContainerDeclaration) -> None:
        """Create a container and its database if they do not exist."""
        try:
            self.create_database(wanted.database)
        except CosmosError as refusal:
            _unless(refusal, 409)
        try:
            self.create_container(wanted.database, {"id": wanted.container, "partitionKey": {"paths": wanted.paths}})
        except CosmosError as refusal:
            _unless(refusal, 409)
            there = list(self.container(wanted.database, wanted.container).opened().metadata.keys.paths)
            if there != wanted.paths:
                raise Misconfigured(
                    f"The container {wanted.database}/{wanted.container} has the partition key {','.join(there)}, not "
                    f"{','.join(wanted.paths)}. Declare it with that key, or delete it."
                ) from None

    def delete_container(self, database_id: str, id: str) -> None:
        container = self.container(database_id, id)
        with self._lock:
            self._open.pop(container.path, None)
        container.close()
        self._discard(container.path)

    def close(self) -> None:
        with self._lock:
            opened, self._open = list(self._open.values()), {}
        for container in opened:
            container.close()

    def _opened(self, folder: Path) -> Container:
        with self._lock:
            if folder not in self._open:
                self._open[folder] = Container(folder, wall_us=self._wall_us)
            return self._open[folder]

    def _folder(self, database_id: str) -> Path:
        return self.folder / _file_name(database_id)

    def _database_in(self, folder: Path) -> CosmosDatabase:
        path = folder / DATABASE_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=CosmosDatabase)
        except OSError as error:
            raise SourceUnavailable(f"Cannot read {path}: {error.strerror}.") from error
        except msgspec.MsgspecError as error:
            raise Misconfigured(f"{path} is damaged: {error}. Restore it, or delete its folder.") from error

    def _discard(self, folder: Path) -> None:
        """Rename the folder first, so that it disappears at once, however long the removal of its files takes."""
        trash = self.folder / f".deleted-{token_hex(8)}"
        folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def _write_durably(path: Path, contents: bytes) -> None:
    """Write a file atomically and durably."""
    draft = path.with_name(f".{path.name}-{token_hex(4)}")
    with draft.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def container_resource(container: Container) -> dict[str, Any]:
    """A container as a resource of the REST API."""
    metadata = container.opened().metadata
    database, rid = rid_text(metadata.rid[:4]), metadata.rid_text
    found: dict[str, Any] = {
        "id": metadata.name,
        "indexingPolicy": _INDEXING,
        "partitionKey": {"paths": list(metadata.keys.paths), "kind": metadata.keys.kind, "version": 2},
        **metadata.properties,
        "_rid": rid,
        "_ts": metadata.created_us // MICROSECONDS,
        "_self": f"dbs/{database}/colls/{rid}/",
        "_etag": f'"{metadata.created_us:016x}"',
    }
    if metadata.default_ttl_s is not None:
        found["defaultTtl"] = metadata.default_ttl_s
    for name in ("docs", "sprocs", "triggers", "udfs", "conflicts"):
        found[f"_{name}"] = f"{name}/"
    return found


def owner_of(container: Container) -> dict[str, str]:
    """Headers that name the container's database: by path and by resource id."""
    rid = rid_text(container.opened().metadata.rid[:4])
    return {OWNER_NAME: f"dbs/{quote(unquote(container.path.parent.name))}", OWNER_RID: rid}


def _unless(refusal: CosmosError, status: int) -> None:
    if refusal.status != status:
        raise Misconfigured(str(refusal)) from refusal


def _checked_id(id: object) -> str:
    if not isinstance(id, str) or not id.strip() or any(sign in id for sign in "/\\#?"):
        raise CosmosError(400, f"{id!r:.100} is not a valid id. An id is text without / \\ # and ?.")
    if len(quote(id)) > NAME_BYTES_MAX:
        raise CosmosError(400, f"The id is too long. The maximum is {NAME_BYTES_MAX} characters, percent-encoded.")
    return id


def _file_name(id: str) -> str:
    """The percent-encoded id. A leading dot is encoded too, so that it is neither `..` nor a hidden file."""
    name = quote(id, safe=" ()'!,;@&=+$~")
    if not name or len(name) > NAME_BYTES_MAX + 2:
        # No such folder can exist, and file systems raise errors for such names.
        return "%00"
    return f"%2E{name[1:]}" if name.startswith(".") else name


def _key_paths(given: object) -> list[str]:
    if given is None:
        raise CosmosError(400, "A container needs a partitionKey with paths.")
    if not isinstance(given, dict) or not isinstance(given.get("paths"), list):
        raise CosmosError(400, "A partitionKey must have a list of paths.")
    if given.get("version", 2) != 2:
        raise unsupported("partition keys of version 1; use version 2")
    if given.get("kind", "Hash") not in ("Hash", "MultiHash"):
        raise unsupported(f"partition keys of kind {given.get('kind')!r:.40}")
    paths: list[str] = given["paths"]
    return paths


def _default_ttl_s(wanted: Mapping[str, Any]) -> int | None:
    more = [name for name, value in wanted.items() if name not in _KNOWN and not name.startswith("_") and value]
    if more:
        raise unsupported(f"containers with {', '.join(sorted(more))}")
    ttl_s = wanted.get("defaultTtl")
    if ttl_s is not None and (not isinstance(ttl_s, int) or isinstance(ttl_s, bool)):
        raise CosmosError(400, "defaultTtl must be a whole number of seconds.")
    return ttl_s
