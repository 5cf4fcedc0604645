"""One of the two files of a SQLite store, for one thread. Reopens the file if it was replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import apsw

from evenflow.stores.sqlite.folder import guarded
from evenflow.stores.sqlite.leases import LostWritesDetected

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.stores.sqlite.folder import FileIdentities, StoreFolder

Result = TypeVar("Result")


class StoreFile:
    """All methods block and are called by one thread at a time."""

    def __init__(self, folder: StoreFolder, name: str) -> None:
        self.path = folder.path / name
        self._folder = folder
        self._name = name
        self._connection: apsw.Connection | None = None
        self._full_sync = True
        self._seen: FileIdentities | None = None
        self._is_usable = False

    def do(self, work: Callable[[apsw.Connection], Result], *, full_sync: bool = True) -> Result:
        with guarded(self.path):
            return self._attempt(work, full_sync)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _attempt(self, work: Callable[[apsw.Connection], Result], full_sync: bool) -> Result:
        try:
            return work(self._ready(full_sync))
        except LostWritesDetected as lost:
            self._folder.raise_history(lost.history)
            return work(self._ready(full_sync))
        except (apsw.BusyError, apsw.FullError):
            raise
        except apsw.Error:
            self._reopen_next_time()
            raise

    def _ready(self, full_sync: bool) -> apsw.Connection:
        if not self._is_usable or self._folder.identities(self._name) != self._seen:
            self._open()
        assert self._connection is not None
        if full_sync != self._full_sync:
            self._connection.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
            self._full_sync = full_sync
        return self._connection

    def _open(self) -> None:
        self._is_usable = False
        before = self._seen if self._connection is not None else None
        self._connection, self._seen = self._folder.open(self._name, before, self.close)
        self._full_sync = self._is_usable = True

    def _reopen_next_time(self) -> None:
        """Makes the next operation reopen the file, which may have been repaired by then.

        A connection to a replaced file stays open until then, so that its log can be distinguished from a new one.
        """
        self._is_usable = False
        if self._seen is not None and self._folder.identities(self._name).file == self._seen.file:
            self.close()
