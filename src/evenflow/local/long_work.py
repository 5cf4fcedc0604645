"""Announces long work in a database, so that processes that wait for its lock keep waiting instead of giving up.

The announcement is a lock on a separate file, which the system releases when the process ends for any reason.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class LongWork:
    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Call while holding the database's own lock, so that there is never more than one announcement."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def is_announced(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False
