"""Keeps a container open: switches to a new one when the folder was replaced, and removes expired data after writes."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from evenflow.embedded.container import documents
from evenflow.embedded.container.open_container import OpenContainer
from evenflow.errors import Misconfigured, NotAContainer, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from evenflow.embedded.container.write_queue import WriteTransaction

T = TypeVar("T")

TRIM_EVERY_US = 1_000_000
"""How often writers remove expired documents and apply retention."""


class ContainerHandle:
    """The container at a path, whichever it is at the moment. Thread-safe."""

    def __init__(self, path: Path, busy_timeout_s: float, wall_us: Callable[[], int]) -> None:
        self.path = path
        self.wall_us = wall_us
        self._busy_timeout_s = busy_timeout_s
        self._lock = Lock()
        self._closed = False
        self._trim_at_us = 0
        self._open = self._open_folder()

    def opened(self) -> OpenContainer:
        """The container that is at this path now. Costs one look at a file's metadata if nothing has changed."""
        if self._closed:
            raise Misconfigured(f"The container at {self.path} is closed. Open it again.")
        if self._open.is_deleted:
            with self._lock:
                if self._open.is_deleted:
                    self._reopen()
        return self._open

    def write(self, operation: Callable[[WriteTransaction], T]) -> T:
        """Run one operation durably, and from time to time remove what has expired."""
        opened = self.opened()
        result = opened.write_queue.write(operation)
        now_us = self.wall_us()
        if now_us >= self._trim_at_us:
            self._trim_at_us = now_us + TRIM_EVERY_US
            opened.write_queue.write(documents.expire)
            if opened.write_queue.write(documents.trim):
                # There may be more, so the next write trims again.
                self._trim_at_us = 0
        return result

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._open.close()

    def _reopen(self) -> None:
        try:
            new = self._open_folder()
        except NotAContainer as error:
            raise SourceUnavailable(
                f"The container at {self.path} was deleted while it was in use. Restore it, create it again, or stop."
            ) from error
        old, self._open = self._open, new
        old.close()

    def _open_folder(self) -> OpenContainer:
        return OpenContainer(self.path, busy_timeout_s=self._busy_timeout_s, wall_us=self.wall_us)
