"""Runs the real command line in this process, which is faster than a process of its own.

It uses the entry point of the installed program, so errors and exit codes are the real ones. Afterwards the current
folder, the environment, the standard streams, the import path and the log handlers are restored.
"""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import subprocess
import sys
from contextlib import ExitStack, chdir, contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TextIO
from unittest.mock import patch

from evenflow.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def evenflow(
    *arguments: str, folder: Path, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `evenflow ARGUMENTS` in this folder, with this text as a file on standard input."""
    with TemporaryFile(
        "w+", encoding="utf-8", newline=""
    ) as stdin:  # a real file, because commands may read its descriptor
        stdin.write(text or "")
        stdin.seek(0)
        return _ended(arguments, folder, environment, stdin)


def asked(typed: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command on a terminal where this text was typed."""
    ours, theirs = pty.openpty()
    with open(ours, "wb", buffering=0) as keyboard, open(theirs, encoding="utf-8") as stdin:
        keyboard.write(typed.encode())
        return _ended(arguments, folder, {}, stdin)


def seen(*arguments: str, folder: Path) -> Any:
    """The JSON that a read-only command prints; None if it fails."""
    done = evenflow(*arguments, "--json", folder=folder)
    return json.loads(done.stdout) if done.returncode == 0 else None


def answer(*arguments: str, folder: Path, text: str | None = None) -> str:
    """The output of a command that must succeed."""
    done = evenflow(*arguments, folder=folder, text=text)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def facts(*arguments: str, folder: Path, text: str | None = None) -> Any:
    """The JSON of a command that must succeed."""
    return json.loads(answer(*arguments, "--json", folder=folder, text=text))


def message_of(done: subprocess.CompletedProcess[str]) -> str:
    """All of stderr as one line, without the frames that typer draws."""
    return " ".join(done.stderr.replace("│", " ").split())


def rows_of(text: str, header: str) -> list[list[str]]:
    """The cells of the table whose first column has this name."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(header))
    end = next((number for number, line in enumerate(lines) if number > start and not line), len(lines))
    return [line.split() for line in lines[start:end]]


def _ended(
    arguments: tuple[str, ...], folder: Path, environment: dict[str, str], stdin: TextIO
) -> subprocess.CompletedProcess[str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    streams = {"stdin": stdin, "stdout": out, "stderr": err}
    with _surroundings(folder, arguments, environment, streams):
        code = _exit_code()
    return subprocess.CompletedProcess(arguments, code, _written(out), _written(err))


def _exit_code() -> int:
    """The exit code of `main`, with SystemExit and exceptions handled as the interpreter does."""
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except Exception:
        sys.__excepthook__(*sys.exc_info())
        return 1
    return 0


@contextmanager
def _surroundings(
    folder: Path, arguments: tuple[str, ...], environment: dict[str, str], streams: dict[str, TextIO]
) -> Iterator[None]:
    with ExitStack() as ends:
        ends.enter_context(chdir(folder))
        ends.enter_context(_same_log_handlers("azure"))
        # The whole environment is restored, since --debug sets a variable. COLUMNS gives the pipe a width.
        ends.enter_context(patch.dict(os.environ, {"COLUMNS": "80", **environment}))
        ends.enter_context(patch.object(sys, "argv", ["evenflow", *arguments]))
        ends.enter_context(patch.object(sys, "path", list(sys.path)))
        for name, stream in streams.items():
            ends.enter_context(patch.object(sys, name, stream))
        yield


@contextmanager
def _same_log_handlers(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = list(logger.handlers)
    try:
        yield
    finally:
        logger.handlers[:] = before


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
