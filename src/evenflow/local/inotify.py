"""Linux's inotify through ctypes; three calls do not justify a dependency."""

from __future__ import annotations

import ctypes
import os
import sys

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)

MODIFY = 0x002
ATTRIB = 0x004
DELETE_SELF = 0x400
MOVE_SELF = 0x800


def watch_file(path: str) -> int:
    """A file descriptor that becomes readable when the file is written, deleted or moved.

    Raises OSError if the file does not exist, the system has no inotify, or its limits are reached.
    """
    if not sys.platform.startswith("linux"):
        raise OSError("this system has no inotify")
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = int(library.inotify_init1(_NONBLOCK_CLOEXEC))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    mask = MODIFY | ATTRIB | DELETE_SELF | MOVE_SELF
    if library.inotify_add_watch(descriptor, os.fsencode(path), ctypes.c_uint32(mask)) < 0:
        code = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(code, "inotify_add_watch")
    return descriptor


def drain(descriptor: int) -> None:
    """Discards reported events, so that the descriptor becomes readable again only after the next write."""
    try:
        while len(os.read(descriptor, 4096)) == 4096:
            pass
    except BlockingIOError:
        pass
