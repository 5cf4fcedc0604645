"""A small file that wakes processes: whoever has changed something rings, whoever waits for it is called.

The file has eight bytes a slot. A ring writes a value that was never there before, so that a reader which remembers
a slot's value from *before* it looked for work cannot miss a ring: after it found none, it waits only while the value
is still the same. A writer that is killed between its commit and its ring wakes nobody, so readers also look now and
then without being called.
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
"""How often the file is looked at where the system cannot tell that it was written."""

_VALUE = struct.Struct("<Q")


@dataclass(eq=False)
class _Watcher:
    callback: Callable[[], None]
    slot: int | None
    seen: bytes


class Bell:
    """One bell file. `ring` and `value` may be called from any thread, `watch` from a running event loop."""

    def __init__(self, path: str | Path, slots: int) -> None:
        self.path = os.fspath(path)
        self._slots = slots
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._ears: dict[asyncio.AbstractEventLoop, _Ear] = {}
        self._tuned_pid = 0
        self._tone = count()

    def grow(self, slots: int) -> None:
        """From now on there are at least so many slots."""
        self._slots = max(self._slots, slots)

    def ring(self, slot: int) -> None:
        """Wake whoever waits for this slot. Never fails: what it announces has been done already.

        A ring that could not be written (a full disk) only costs readers the time until their slow look.
        """
        if self._tuned_pid != os.getpid():
            self._tune()
        try:
            os.pwrite(self._descriptor, _VALUE.pack(next(self._tone)), self._place(slot))
        except OSError:
            pass

    def value(self, slot: int) -> int:
        """What the last ring of this slot wrote; 0 when it was never rung."""
        found = os.pread(self._descriptor, SLOT_BYTES, self._place(slot))
        return int.from_bytes(found, "little")

    def gone(self) -> bool:
        """Whether the file was deleted or replaced by another of the same name, or this bell was closed."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return True

    def watch(self, callback: Callable[[], None], slot: int | None = None) -> Callable[[], None]:
        """Call `callback` on the running loop after the file was written, or only after this slot was rung.

        Calls may be spurious and may be merged; the file's deletion calls everybody. Returns what ends it.
        """
        loop = asyncio.get_running_loop()
        ear = self._ears.get(loop)
        if ear is None:
            ear = self._ears[loop] = _Ear(self, loop)
        watcher = _Watcher(callback, slot, _of_slot(self.contents(), slot))
        ear.watchers.append(watcher)

        def end() -> None:
            if watcher in ear.watchers:
                ear.watchers.remove(watcher)
                if not ear.watchers and self._ears.pop(loop, None) is not None:
                    ear.close()

        return end

    def contents(self) -> bytes:
        return os.pread(self._descriptor, self._slots * SLOT_BYTES, 0)

    def close(self) -> None:
        """Idempotent. Watches end without a call."""
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _place(self, slot: int) -> int:
        assert 0 <= slot < self._slots, f"slot {slot} of {self._slots}"
        return slot * SLOT_BYTES

    def _tune(self) -> None:
        """Values of two writers never meet: the upper half is random for each process, forked ones too."""
        self._tone = count((int.from_bytes(os.urandom(4), "little") << 32) + 1)
        self._tuned_pid = os.getpid()


class _Ear:
    """What listens to a bell in one event loop, for all of its watchers there."""

    def __init__(self, bell: Bell, loop: asyncio.AbstractEventLoop) -> None:
        self.watchers: list[_Watcher] = []
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
