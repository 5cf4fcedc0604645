"""Wake-ups of a SQLite store across processes, through a bell file with slots that instances share."""

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
ALL_INSTANCES = 0


def slot_of(group: Group, instance: str) -> int:
    """Instances may share a slot; then one of them sometimes wakes up unnecessarily."""
    return 1 + zlib.crc32(f"{group}\n{instance}".encode()) % (SLOTS - 1)


@dataclass(eq=False, slots=True)
class _SlotWatch:
    slot: int
    wake: Callable[[], None]
    bell: Bell | None = None
    ends: tuple[Callable[[], None], ...] = ()

    def listen(self, bell: Bell) -> None:
        if self.bell is not bell:
            self.ends = tuple(bell.watch(self.wake, slot) for slot in (ALL_INSTANCES, self.slot))
            self.bell = bell

    def end(self) -> None:
        for end in self.ends:
            end()


class SQLiteWakeups:
    """The bell of one store. `ring` may be called from any thread, the rest from the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bell: Bell | None = None
        self._watches: list[_SlotWatch] = []
        self._lock = Lock()
        """Prevents a ring from writing into a descriptor that was closed and reused for another file."""

    def ring(self, *slots: int) -> None:
        """Never fails, because the change that it announces is already committed."""
        with self._lock, suppress(OSError):
            for slot in slots:
                self._open_bell().ring(slot)

    def watch(self, group: Group, instance: str, wake: Callable[[], None]) -> Callable[[], None]:
        watch = _SlotWatch(slot_of(group, instance), wake)
        with self._lock:
            watch.listen(self._open_bell())
        self._watches.append(watch)

        def end() -> None:
            if watch in self._watches:
                self._watches.remove(watch)
                watch.end()

        return end

    def renew(self) -> None:
        """Switches to the current file if the old one was deleted. Called with every heartbeat; cheap."""
        with self._lock, suppress(OSError):
            if self._bell is not None and self._bell.gone():
                self._shut()
            for watch in self._watches:
                watch.listen(self._open_bell())

    def close(self) -> None:
        with self._lock:
            self._watches.clear()
            self._shut()

    def _open_bell(self) -> Bell:
        if self._bell is None:
            self._bell = Bell(self._path, SLOTS)
            # At full size from the start, because growing the file would look like a ring of every slot.
            if os.stat(self._path).st_size < SLOTS * SLOT_BYTES:
                os.truncate(self._path, SLOTS * SLOT_BYTES)
        return self._bell

    def _shut(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
