"""A small file that wakes processes: a writer rings after a change, and watchers are called.

The file has eight bytes per slot. A ring writes a value that was never there before. A reader remembers a slot's value
*before* it looks for work and, if it finds none, waits only while the value is unchanged; so it cannot miss a ring. A
writer that is killed between its commit and its ring wakes no reader, so readers also poll occasionally.
"""

from __future__ import annotations

import asyncio
import os
import struct
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from evenflow.local import inotify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLOT_BYTES = 8
POLL_S = 0.010
"""The poll interval where the system cannot report writes to the file."""

_VALUE = struct.Struct("<Q")


@dataclass(eq=False)
class _BellWatcher:
    callback: Callable[[], None]
    slot: int | None
    seen: bytes


class Bell:
    """One bell file. `ring` and `value` may be called from any thread, `watch` from a running event loop."""

    def __init__(self, path: str | Path, slots: int) -> None:
        self.path = os.fspath(path)
        self._slots = slots
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._loop_watchers: dict[asyncio.AbstractEventLoop, _LoopWatcher] = {}
        self._seeded_pid = 0
        self._values = count()

    def grow(self, slots: int) -> None:
        """Makes sure that there are at least this many slots."""
        self._slots = max(self._slots, slots)

    def ring(self, slot: int) -> None:
        """Wakes all watchers of this slot. Never fails, because the change that it announces is already committed.

        If a ring cannot be written (the disk is full), readers only wait until their next poll.
        """
        if self._seeded_pid != os.getpid():
            self._seed()
        try:
            os.pwrite(self._descriptor, _VALUE.pack(next(self._values)), self._place(slot))
        except OSError:
            pass

    def value(self, slot: int) -> int:
        """The value of the last ring of this slot; 0 if it was never rung."""
        found = os.pread(self._descriptor, SLOT_BYTES, self._place(slot))
        return int.from_bytes(found, "little")

    def gone(self) -> bool:
        """Whether the file was deleted or replaced, or this bell was closed."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return True

    def watch(self, callback: Callable[[], None], slot: int | None = None) -> Callable[[], None]:
        """Calls `callback` on the running loop after any write to the file, or only after this slot was rung.

        Calls may be spurious and may be merged. Deleting the file calls all watchers. Returns a function that ends the
        watch.
        """
        loop = asyncio.get_running_loop()
        loop_watcher = self._loop_watchers.get(loop)
        if loop_watcher is None:
            loop_watcher = self._loop_watchers[loop] = _LoopWatcher(self, loop)
        watcher = _BellWatcher(callback, slot, _of_slot(self.contents(), slot))
        loop_watcher.watchers.append(watcher)

        def end() -> None:
            if watcher in loop_watcher.watchers:
                loop_watcher.watchers.remove(watcher)
                if not loop_watcher.watchers and self._loop_watchers.pop(loop, None) is not None:
                    loop_watcher.close()

        return end

    def contents(self) -> bytes:
        return os.pread(self._descriptor, self._slots * SLOT_BYTES, 0)

    def close(self) -> None:
        """Idempotent. Watches end without a call."""
        for loop_watcher in self._loop_watchers.values():
            loop_watcher.close()
        self._loop_watchers.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _place(self, slot: int) -> int:
        assert 0 <= slot < self._slots, f"slot {slot} of {self._slots}"
        return slot * SLOT_BYTES

    def _seed(self) -> None:
        """Values of two writers never collide: the upper half is random for each process, including forks."""
        self._values = count((int.from_bytes(os.urandom(4), "little") << 32) + 1)
        self._seeded_pid = os.getpid()


class _LoopWatcher:
    """Receives changes of a bell file for all watchers in one event loop."""

    def __init__(self, bell: Bell, loop: asyncio.AbstractEventLoop) -> None:
        self.watchers: list[_BellWatcher] = []
        self._bell = bell
        self._loop = loop
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._last = (bell.contents(), bell.gone())
        self._descriptor = -1
        try:
            self._descriptor = inotify.watch_file(bell.path)
            loop.add_reader(self._descriptor, self._written)
        except (OSError, NotImplementedError):
            self._forget_descriptor()
            self._poll()

    def _written(self) -> None:
        inotify.drain(self._descriptor)
        self._call()

    def _poll(self) -> None:
        now = (self._bell.contents(), self._bell.gone())
        if now != self._last:
            self._last = now
            self._call()
        if not self._closed:
            self._timer = self._loop.call_later(POLL_S, self._poll)

    def _call(self) -> None:
        contents, gone = self._bell.contents(), self._bell.gone()
        for watcher in list(self.watchers):
            now = _of_slot(contents, watcher.slot)
            if gone or watcher.slot is None or now != watcher.seen:
                watcher.seen = now
                watcher.callback()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._forget_descriptor()

    def _forget_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _of_slot(contents: bytes, slot: int | None) -> bytes:
    return contents if slot is None else contents[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
