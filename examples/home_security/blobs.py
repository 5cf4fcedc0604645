"""Blobs in a folder, or in a container of Azure, S3 or Google: read, written only if unchanged, listed, removed.

A put is conditional, always: on the version that was read, or on there being none. Servers do that themselves. A
folder is given the same here: the new blob is written beside the old one under a name of its own, and while a lock is
held for as long as one look and one rename take, it is put in the old one's place if that is still the one. So a blob
is never half written, also when its writer is killed, and of two writers that read the same one only one succeeds. When
a put returns, the blob outlives the loss of power.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import time
import zlib
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import obstore
from obstore import exceptions as errors
from obstore.store import LocalStore

from evenflow.errors import Misconfigured, StoreUnavailable
from evenflow.stores.objects.client import BucketClient
from evenflow.stores.objects.client import ObjectVersion as Version
from evenflow.stores.objects.client import PutConflict as Conflict
from evenflow.stores.objects.client import StoredObject as Found
from evenflow.stores.objects.options import KINDS, options_from_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Blobs", "Conflict", "Folder", "Found", "Version", "open_blobs"]

STAGED = "staged"
"""Where a folder's new blobs are until they are in place."""
LOCKS = ".locks"
LOCK_S, LOCK_RETRY_S = 5.0, 0.002
LOCK_FILES = 64
"""A blob belongs to one of these: a writer that the system has stopped while it held one hinders few others."""


class Blobs(Protocol):
    async def get(self, path: str) -> Found | None:
        """Data and version; None when there is none."""
        ...

    async def put(self, path: str, data: bytes, known: Version | None) -> Version:
        """Conflict unless the blob is the known version, or (None) there is none."""
        ...

    async def paths(self, folder: str) -> list[str]: ...

    async def delete(self, paths: Sequence[str]) -> None: ...

    def close(self) -> None: ...


def open_blobs(where: str) -> Blobs:
    """A folder, made when it is not there; or a URL as for evenflow's store of objects: s3://, az://, gs://."""
    scheme = where.partition("://")[0] if "://" in where else ""
    if scheme in KINDS:
        return BucketClient(options_from_url(where))
    if scheme:
        raise Misconfigured(
            f"Blobs are in a folder, or at {', '.join(f'{kind}://' for kind in KINDS)}; not {scheme}://."
        )
    return Folder(Path(where))


class Folder:
    def __init__(self, path: Path) -> None:
        try:
            (path / LOCKS).mkdir(parents=True, exist_ok=True)
            self._store = LocalStore(path)
        except (OSError, errors.BaseError) as error:
            said = getattr(error, "strerror", None) or str(error).split("\n", 1)[0]
            raise Misconfigured(
                f"Blobs cannot be kept in {path}: {said}. Name a folder that can be written to."
            ) from error
        self.path = path
        self._nonce = secrets.token_hex(8)
        self._staged = count()

    async def get(self, path: str) -> Found | None:
        return await asyncio.to_thread(self._get, path)

    async def put(self, path: str, data: bytes, known: Version | None) -> Version:
        staged = f"{STAGED}/{self._nonce}-{next(self._staged)}"
        return await asyncio.to_thread(self._put, path, data, known, staged)

    async def paths(self, folder: str) -> list[str]:
        with self._translated(folder):
            found = await obstore.list(self._store, prefix=folder).collect_async()
        return [meta["path"] for meta in found]

    async def delete(self, paths: Sequence[str]) -> None:
        with self._translated(", ".join(paths)):
            await obstore.delete_async(self._store, list(paths))

    def close(self) -> None:
        """Nothing is open between two calls."""

    def tidy(self) -> None:
        """Remove what processes that were killed in the middle of a put have left. Call it when nothing writes."""
        shutil.rmtree(self.path / STAGED, ignore_errors=True)

    def _get(self, path: str) -> Found | None:
        with self._translated(path):
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            return Found(bytes(found.bytes()), Version(found.meta["e_tag"], None))

    def _put(self, path: str, data: bytes, known: Version | None, staged: str) -> Version:
        with self._translated(path):
            obstore.put(self._store, staged, data, use_multipart=False)
            # A checkpoint follows that survives a power failure: so must this.
            _sync(self.path / staged)
            with self._held(path):
                is_unchanged = self._tag(path) == (known.tag if known is not None else None)
                if is_unchanged:
                    obstore.rename(self._store, staged, path)
                version = Version(self._tag(path), None)
            if not is_unchanged:
                obstore.delete(self._store, staged)
                raise Conflict(Exception(f"the blob {path} has changed"))
            _sync((self.path / path).parent)
            return version

    def _tag(self, path: str) -> str | None:
        try:
            return obstore.head(self._store, path)["e_tag"]
        except FileNotFoundError:
            return None

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, errors.BaseError) as error:
            said = str(error).split("\n", 1)[0]
            raise StoreUnavailable(f"The blob {path} in {self.path} cannot be used now: {said}") from error

    @contextmanager
    def _held(self, path: str) -> Iterator[None]:
        """The operating system releases the lock when its holder dies."""
        lock = self.path / LOCKS / str(zlib.crc32(path.encode()) % LOCK_FILES)
        # The whole folder may have been removed.
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(descriptor, path)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int, path: str) -> None:
        deadline_s = time.monotonic() + LOCK_S
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise StoreUnavailable(
                        f"The blob {path} in {self.path} is locked for {LOCK_S:g} s already, by a process that stands"
                        " still: end it, or let it go on."
                    ) from None
                time.sleep(LOCK_RETRY_S)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
