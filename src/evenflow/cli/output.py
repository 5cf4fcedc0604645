"""How commands print: data on stdout, messages on stderr; an unknown value is `-` in text and null in JSON."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN = "-"
GAP = "  "


def say(message: str) -> None:
    """Print a message to stderr. If stderr is closed, drop this and all later messages: the program goes on."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _discard_stderr()


def _discard_stderr() -> None:
    """Redirect stderr to /dev/null. Otherwise the text left in its buffer fails again at the next print or at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stderr.fileno())
    os.close(devnull)


def print_json(value: Any) -> None:
    """Print one object on one line."""
    print(msgspec.json.encode(value).decode(), flush=True)


def columns(headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> list[str]:
    """Aligned lines; the columns named in `right` are right-aligned. Lines are cut to the width of a terminal only."""
    texts = [list(headers), *([show(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(line[at]) for line in texts) for at in range(len(headers))]
    lines = [
        GAP.join(
            pad(text, width, right=header in right) for text, width, header in zip(line, widths, headers, strict=True)
        ).rstrip()
        for line in texts
    ]
    return [cut(line, get_terminal_size().columns) for line in lines] if sys.stdout.isatty() else lines


def cut(text: str, cells: int) -> str:
    """The text, cut to at most this many cells; an ellipsis marks the cut."""
    if cell_len(text) <= cells:
        return text
    return f"{set_cell_size(text, max(0, cells - 1)).rstrip()}…"


def brief(text: str, cells: int) -> str:
    """The text, cut to leave room for the next columns on a terminal; the whole text in a pipe."""
    return cut(text, cells) if sys.stdout.isatty() else text


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text, padded to this many cells (some characters are two cells wide)."""
    blank = " " * max(0, width - cell_len(text))
    return blank + text if right else text + blank


def printable(text: str) -> str:
    """The text on one line, with control characters escaped so that they cannot control the terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def show(value: object) -> str:
    if value is None or value == "":
        return UNKNOWN
    return str(value)


def show_time(at: float | datetime | None) -> str:
    if at is None:
        return UNKNOWN
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(at, UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def json_time(at: float | datetime | None) -> str | None:
    return None if at is None else show_time(at)
