"""Runs the real program, and waits for what it does: for a condition with a deadline, never for a time."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

T = TypeVar("T")

PATIENCE_S = 90.0
"""It matters only when something hangs: a process alone may need 20 s to start on a busy machine."""
EVENFLOW = [sys.executable, "-m", "evenflow.cli"]


def evenflow(*arguments: str, folder: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EVENFLOW, *arguments],
        cwd=folder,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def answer(*arguments: str, folder: Path, text: str | None = None) -> str:
    """What it printed, given that it went well."""
    done = evenflow(*arguments, folder=folder, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts(*arguments: str, folder: Path, text: str | None = None) -> Any:
    return json.loads(answer(*arguments, "--json", folder=folder, text=text))


@contextmanager
def started(
    *arguments: str, folder: Path, program: Sequence[str] = EVENFLOW, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A program that runs meanwhile; if the test has not ended it by then, it is killed."""
    process = subprocess.Popen(
        [*program, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def asked(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """A command that has asked on its terminal and waits for the answer: it, our end, and what it showed."""
    mine, theirs = pty.openpty()
    # The terminal is its own, so that a Ctrl-C typed there reaches it as from a keyboard.
    setup = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", setup, *EVENFLOW, *command],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            shown, deadline_s = "", time.monotonic() + PATIENCE_S
            while "[y/N] " not in shown and time.monotonic() < deadline_s:
                if select.select([mine], [], [], 1.0)[0]:
                    shown += os.read(mine, 1 << 16).decode()
            yield process, mine, shown
        finally:
            process.kill()
            os.close(mine)


def rest_of(terminal: int) -> str:
    """All that a program which has ended left to be read there; it may come in pieces."""
    pieces: list[bytes] = []
    while select.select([terminal], [], [], 1.0)[0]:
        try:
            pieces.append(os.read(terminal, 1 << 16))
        except OSError:
            break  # its end was closed, and everything is read
    return b"".join(pieces).decode()


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    """Its exit code, and what it had still to say on stdout and stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def wait_for(look: Callable[[], T | None], what: str, within_s: float = PATIENCE_S) -> T:
    """Look until there is something to see: the less often, the more a look costs those who work meanwhile."""
    deadline_s = time.monotonic() + within_s
    began_s = time.monotonic()
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"waited {within_s} s in vain for {what}"
        time.sleep(max(0.05, 3 * (time.monotonic() - began_s)))
        began_s = time.monotonic()
    return found


def slowness() -> float:
    """How many times longer a piece of work takes now than on a machine that does nothing else: 1, or more."""

    def once() -> float:
        began_s, worked_s = time.perf_counter(), time.process_time()
        while time.process_time() - worked_s < 0.02:
            pass
        return (time.perf_counter() - began_s) / (time.process_time() - worked_s)

    return max(1.0, *(once() for _ in range(3)))


def processes_with(text: str, program: str = "evenflow") -> list[int]:
    """The program's processes that have this in their command line, but for those that only look for it."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    rows = (line.strip().partition(" ") for line in listed.splitlines())
    return [int(pid) for pid, _, command in rows if text in command and program in command and int(pid) != os.getpid()]
