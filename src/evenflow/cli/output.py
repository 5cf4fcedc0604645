"""What commands print: data on stdout, messages on stderr; `-` for unknown in text, null in JSON."""

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
    """For people, beside the data. Where nobody listens any more, a program has other things to do than to talk."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _talk_to_nobody()


def _talk_to_nobody() -> None:
    """From now on. What is left in the buffer would else fail again, at the next word or at the end."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, sys.stderr.fileno())
    os.close(nobody)


def print_json(value: Any) -> None:
    """One object, one line."""
    print(msgspec.json.encode(value).decode(), flush=True)


def columns(headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> list[str]:
    """Aligned lines; the columns named in `right` are numbers. They are cut to fit a terminal; a pipe has no width."""
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
    """So many cells of it at most; what is missing is told by an ellipsis."""
    if cell_len(text) <= cells:
        return text
    return f"{set_cell_size(text, max(0, cells - 1)).rstrip()}…"


def brief(text: str, cells: int) -> str:
    """So many cells of it on a terminal, for what comes after it; in a pipe all of it."""
    return cut(text, cells) if sys.stdout.isatty() else text


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Padded to so many cells: some characters are two wide."""
    blank = " " * max(0, width - cell_len(text))
    return blank + text if right else text + blank


def printable(text: str) -> str:
    """On one line, and without anything that would steer a terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


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
