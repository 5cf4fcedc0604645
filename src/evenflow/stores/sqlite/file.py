"""One of the two files of a SQLite store, as one thread uses it. It is opened anew when another stands in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import apsw

from evenflow.stores.sqlite.files import guarded
from evenflow.stores.sqlite.leases import HistoryLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.stores.sqlite.files import Look, StoreFolder

Result = TypeVar("Result")


class StoreFile:
    """Everything here blocks, and is called by one thread at a time."""

    def __init__(self, folder: StoreFolder, name: str) -> None:
        self.path = folder.path / name
        self._folder = folder
        self._name = name
        self._connection: apsw.Connection | None = None
        self._full_sync = True
        self._seen: Look | None = None
        self._is_sound = False

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
        except HistoryLost as lost:
            self._folder.raise_history(lost.history)
            return work(self._ready(full_sync))
        except (apsw.BusyError, apsw.FullError):
            raise
        except apsw.Error:
            self._give_up()
            raise

    def _ready(self, full_sync: bool) -> apsw.Connection:
        if not self._is_sound or self._folder.look(self._name) != self._seen:
            self._open()
        assert self._connection is not None
        if full_sync != self._full_sync:
            self._connection.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
            self._full_sync = full_sync
        return self._connection

    def _open(self) -> None:
        self._is_sound = False
        before = self._seen if self._connection is not None else None
        self._connection, self._seen = self._folder.open(self._name, before, self.close)
        self._full_sync = self._is_sound = True

    def _give_up(self) -> None:
        """Whatever went wrong, the next operation opens the file anew, perhaps when it was mended.

        A connection to a file that was replaced stays open until then, so that its log can be told from a new one.
        """
        self._is_sound = False
        if self._seen is not None and self._folder.look(self._name).file == self._seen.file:
            self.close()
