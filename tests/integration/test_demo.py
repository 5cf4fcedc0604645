"""The demo as its users meet it: it ends with honest figures, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from contextlib import closing
from fcntl import ioctl
from typing import TYPE_CHECKING

import pytest

from tests.integration.programs import EVENFLOW, PATIENCE_S, end, next_line, processes_with, slowness, started, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

pytestmark = pytest.mark.process

RATE = 2_000


@pytest.mark.slow
def test_it_ends_by_itself_with_nothing_lost(tmp_path: Path) -> None:
    with started_demo(tmp_path, "--seconds", "10") as demo:
        out, err = demo.communicate(timeout=2 * PATIENCE_S)
    assert demo.returncode == 0, out + err
    figures = {name: figure(out, name) for name in ("events sent", "handled", "lost", "handled twice", "handled again")}
    assert figures["handled"] == figures["events sent"] > 5 * RATE
    assert (figures["lost"], figures["handled twice"]) == (0, 0)
    # A third of the stream since the last checkpoint, which was a second ago, and a little more on a busy machine.
    assert figures["handled again"] <= RATE * slowness()
    for action in ("consumer-4 added", "consumer-1 killed (SIGKILL)", "consumer-2 asked to stop (SIGTERM)"):
        assert action in out
    assert re.search(r"^moves +\d+ .*handed over.* taken over$", out, re.MULTILINE)
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_ended_at_any_time(tmp_path: Path, number: signal.Signals) -> None:
    with started_demo(tmp_path) as demo:
        wait_for(lambda: "handled" in next_line(demo), "the first line of figures")
        code, out, err = end(demo, number)
    assert code == 0, out + err
    assert (figure(out, "lost"), err) == (0, "")
    assert_nothing_is_left(tmp_path)


def test_its_processes_end_when_it_is_killed(tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        wait_for(lambda: len(processes_with(str(tmp_path))) == 4, "a generator and three consumers")
        demo.kill()
        wait_for(lambda: not processes_with(str(tmp_path)), "their end")


def test_on_a_terminal_it_is_a_table_that_keys_change_and_another_terminal_can_watch(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.wait_for("a add   s stop   k kill   q quit")
    terminal.wait_for("consumer-3")
    (folder,) = tmp_path.iterdir()
    with closing(Terminal(folder, "top", "--every", "0.5")) as other:
        other.wait_for("evenflow top   local/homes/demo")
        other.wait_for("owned 16/16")
        other.wait_for("→")
        other.press("\x03")
        assert other.end() == 0
        assert other.shows_cursor_again
    terminal.press("a")
    terminal.wait_for("consumer-4 added")
    terminal.press("s")
    terminal.wait_for("consumer-1 asked to stop")
    terminal.press("q")
    terminal.wait_for("handled twice                    0")
    assert terminal.end() == 0
    assert terminal.shows_cursor_again
    assert_nothing_is_left(tmp_path)


class Terminal:
    """A demo, or something else, on a terminal of 80 x 24."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._mine, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            [*EVENFLOW, *(arguments or ("demo", "--rate", str(RATE)))],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder), "TERM": "xterm-256color"},
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
        """It is read meanwhile: who cannot write cannot end."""
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
        """Whether there was something."""
        if not select.select([self._mine], [], [], 1.0)[0]:
            return False
        try:
            read = os.read(self._mine, 1 << 16)
        except OSError:  # its end was closed, and everything is read
            return False
        self._shown += read.decode(errors="replace")
        return True


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


def started_demo(folder: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started("demo", "--rate", str(RATE), *arguments, folder=folder, TMPDIR=str(folder))


def figure(text: str, name: str) -> int:
    found = re.search(rf"^{name} +([\d,]+)", text, re.MULTILINE)
    assert found, f"there is no {name!r} in:\n{text}"
    return int(found[1].replace(",", ""))


def assert_nothing_is_left(folder: Path) -> None:
    assert processes_with(str(folder)) == []
    assert list(folder.iterdir()) == []
