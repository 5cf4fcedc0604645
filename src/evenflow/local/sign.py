"""A sign that somebody works long in a database: whoever waits for its lock knows that it is no use to give up.

It is a lock on a file of its own, which ends with the process that holds it, whatever ends that.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Sign:
    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def shown(self) -> Iterator[None]:
        """For whoever has the database's own lock, so that there is never more than one."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def is_shown(self) -> bool:
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
