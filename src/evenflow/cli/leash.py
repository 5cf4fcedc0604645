"""A child process that never outlives its parent: its stdin is a pipe that the parent holds and never writes to.

When the parent is gone, however it went, the pipe ends, and the child asks itself to stop as if by SIGTERM. A child
that is stopped (SIGSTOP) hears nothing of that; on Linux the system wakes it at the parent's end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process

_PR_SET_PDEATHSIG = 1


def obey() -> None:
    """In the child. A stdin that is no pipe (a terminal, a file, none) means that nobody holds the leash."""
    if sys.platform == "linux":
        # SIGCONT, and not SIGKILL: who is awake anyway ends in order.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    descriptor = sys.stdin.fileno()
    Thread(target=_end_with_parent, args=(descriptor,), name="evenflow-leash", daemon=True).start()


def send(process: Process, number: signal.Signals) -> bool:
    """In the parent: False when the child has ended already.

    Not by its `send_signal`, which looks whether it has ended: for one that just does so, that takes the exit code away
    from asyncio, which then tells 255.
    """
    if process.returncode is not None:
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _end_with_parent(descriptor: int) -> None:
    while os.read(descriptor, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
