"""The program as it runs on a terminal: with a size, with keys, and with a cursor that it hides and shows again."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from fcntl import ioctl
from typing import TYPE_CHECKING

from tests.integration.programs import EVENFLOW, PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


class Terminal:
    """The program on a terminal of its own, of 80 x 24."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._mine, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            [*EVENFLOW, *arguments],
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._shown = ""

    def press(self, key: str) -> None:
        os.write(self._mine, key.encode())

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._shown):
            assert time.monotonic() < deadline_s, f"{text!r} was never shown, but {self._shown[-3_000:]!r}"
            self._read()

    def end(self) -> int:
        """Its exit code. Its output is read meanwhile: a program that cannot write cannot end."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline_s, f"it has not ended, but shown {self._shown[-3_000:]!r}"
            self._read()
        while self._read():
            pass
        return self._process.wait()

    @property
    def shows_cursor_again(self) -> bool:
        return self._shown.rfind("\x1b[?25h") > self._shown.rfind("\x1b[?25l")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._mine)

    def _read(self) -> bool:
        """False if there was nothing to read."""
        if not select.select([self._mine], [], [], 1.0)[0]:
            return False
        try:
            read = os.read(self._mine, 1 << 16)
        except OSError:  # its end was closed, and everything is read
            return False
        self._shown += read.decode(errors="replace")
        return True
