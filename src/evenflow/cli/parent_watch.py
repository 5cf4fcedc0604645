"""A child process that never outlives its parent: its stdin is a pipe that the parent holds open and never writes to.

When the parent ends, for whatever reason, the pipe closes and the child sends itself SIGTERM. A child that is suspended
(SIGSTOP) does not notice; on Linux the kernel resumes it when the parent ends.
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


def stop_with_parent() -> None:
    """Called in the child. Its stdin must be the pipe of its parent."""
    if sys.platform == "linux":
        # SIGCONT, not SIGKILL: a child that is running shuts down in order.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    descriptor = sys.stdin.fileno()
    Thread(target=_wait_for_parent, args=(descriptor,), name="evenflow-parent-watch", daemon=True).start()


def send(process: Process, number: signal.Signals) -> bool:
    """Called in the parent: send a signal to the child; False if the child has ended already.

    `Process.send_signal` would poll the child first. If the child is just ending, that poll takes its exit code, and
    asyncio then reports 255.
    """
    if process.returncode is not None:
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait_for_parent(descriptor: int) -> None:
    while os.read(descriptor, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
