"""How a SQLite store wakes instances in other processes: by a bell file with one slot for many an instance."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from evenflow.local.bell import SLOT_BYTES, Bell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from evenflow.model import Group

SLOTS = 256
EVERYBODY = 0


def slot_of(group: Group, instance: str) -> int:
    """Two instances may share a slot: then one of them wakes up for nothing now and then."""
    return 1 + zlib.crc32(f"{group}\n{instance}".encode()) % (SLOTS - 1)


@dataclass(eq=False, slots=True)
class _Watch:
    slot: int
    wake: Callable[[], None]
    bell: Bell | None = None
    ends: tuple[Callable[[], None], ...] = ()

    def listen(self, bell: Bell) -> None:
        if self.bell is not bell:
            self.ends = tuple(bell.watch(self.wake, slot) for slot in (EVERYBODY, self.slot))
            self.bell = bell

    def end(self) -> None:
        for end in self.ends:
            end()


class Wakes:
    """The bell of one store. `ring` may be called from any thread, the rest from the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bell: Bell | None = None
        self._watches: list[_Watch] = []
        self._lock = Lock()
        """A ring must not write into a descriptor that has just been closed, and opened again as something else."""

    def ring(self, *slots: int) -> None:
        """Never fails: what it announces has been done already."""
        with self._lock, suppress(OSError):
            for slot in slots:
                self._hung().ring(slot)

    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        watch = _Watch(slot_of(group, instance), wake)
        with self._lock:
            watch.listen(self._hung())
        self._watches.append(watch)

        def end() -> None:
            if watch in self._watches:
                self._watches.remove(watch)
                watch.end()

        return end

    def renew(self) -> None:
        """Listen to the file that is there now, if the old one was deleted. Cheap, for every heartbeat."""
        with self._lock, suppress(OSError):
            if self._bell is not None and self._bell.gone():
                self._shut()
            for watch in self._watches:
                watch.listen(self._hung())

    def close(self) -> None:
        with self._lock:
            self._watches.clear()
            self._shut()

    def _hung(self) -> Bell:
        if self._bell is None:
            self._bell = Bell(self._path, SLOTS)
            # At its full size from the start: a file that grows looks as if every slot in it had been rung.
            if os.stat(self._path).st_size < SLOTS * SLOT_BYTES:
                os.truncate(self._path, SLOTS * SLOT_BYTES)
        return self._bell

    def _shut(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
