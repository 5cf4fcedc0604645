"""The project's documents, taken apart: code blocks, links and headings.

How a block is run is told by its first line, and by a comment on the line above it:

    ```python              run as a program of its own, in a folder that all blocks of the document share
    ```python app.py       saved under that name instead, for blocks after it
    ```sh                  run by bash, in the same folder
    ```text                what a program prints, for people
    <!-- run for 5 s -->   it does not end by itself: it is sent SIGTERM then, and must end well
    <!-- run in the background -->
                           one command, as in another terminal: it runs beside the blocks after it; where it still
                           runs at the end of the document, it is sent SIGTERM then, and must end well
    <!-- wait until: COMMAND -->
                           run only once this has succeeded, where a reader would wait a little
    <!-- it prints -->     above a text: what the block before it must have printed. `...` stands for anything within a
                           line, and a line of it alone for any lines
    <!-- it prints, with other numbers -->
                           the same, where numbers and the width of columns differ from run to run. In documents the
                           machine is called laptop, and an instance without a name laptop-1234-ab12
    <!-- not run: why -->  the one way out, for `make test` itself and the like

Where a block says `--port 5673`, another port is taken, which is free, there and wherever the document names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh")
OTHER_NUMBERS = "it prints, with other numbers"

_BLOCK = re.compile(
    r"(?:^<!-- *(?P<note>[^\n]*?) *-->\n+)?^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d,:]*(?:\.\d+)?")
_HOST = re.compile(rf"\b{re.escape(gethostname())}\b")
_MADE_NAME = re.compile(r"\blaptop-\d+-[0-9a-f]{8}\b")
_PORT = re.compile(r"--port (\d{4,5})\b")
_ANY_LINES = r"(?:.*\n)*?"
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


class Block(Struct, frozen=True):
    language: str
    name: str
    """Under which it is saved; "" when it is run."""
    note: str
    text: str
    line: int

    @property
    def seconds(self) -> float | None:
        found = re.fullmatch(r"run for (\d+) s", self.note)
        return float(found[1]) if found else None

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.name and not self.note.startswith("not run: ")

    @property
    def is_background(self) -> bool:
        return self.is_run and self.note == "run in the background"

    @property
    def condition(self) -> str | None:
        """What must succeed before this is run."""
        return self.note.removeprefix("wait until: ") if self.note.startswith("wait until: ") else None

    @property
    def is_expected(self) -> bool:
        return self.language == "text" and self.note in ("it prints", OTHER_NUMBERS)

    def is_in(self, output: str) -> bool:
        """Whether this is what was printed."""
        expected, printed = self.text, output
        if self.note == OTHER_NUMBERS:
            expected, printed = _without_numbers(expected), _without_numbers(printed)
        lines = (_ANY_LINES if line == "..." else f"{_pattern_of(line)}\n" for line in _lines(expected))
        return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _pattern_of(line: str) -> str:
    return ".*?".join(map(re.escape, line.split("...")))


def _without_numbers(text: str) -> str:
    named = _MADE_NAME.sub("laptop", _HOST.sub("laptop", text))
    return re.sub(" +", " ", _NUMBER.sub("0", named))


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    return [_block(found, text) for found in _BLOCK.finditer(text)]


def with_other_ports(found: list[Block], free_port: Callable[[], int]) -> list[Block]:
    """The same blocks, with ports that nobody has on this machine in place of those that are good to read."""
    named = {port for block in found if block.is_run for port in _PORT.findall(block.text)}
    free = {port: str(free_port()) for port in sorted(named)}
    if not free:
        return found
    pattern = re.compile(rf"\b({'|'.join(free)})\b")

    def other(text: str) -> str:
        return pattern.sub(lambda port: free[port[1]], text)

    return [replace(block, text=other(block.text), note=other(block.note)) for block in found]


def links(text: str) -> list[str]:
    """Where links and pictures point to, but for code, which only looks like it."""
    prose = re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", text))
    return [first or second for first, second in _LINK.findall(prose)]


def anchors(text: str) -> set[str]:
    """What a link can point to after the #, as GitHub makes it of headings."""
    names = [
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(_BLOCK.sub("", text))
    ]
    return {
        name if names[:at].count(name) == 0 else f"{name}-{names[:at].count(name)}" for at, name in enumerate(names)
    }


def _block(found: re.Match[str], text: str) -> Block:
    language, _, name = found["info"].strip().partition(" ")
    line = text.count("\n", 0, found.start("info")) + 1
    return Block(language, name.strip(), found["note"] or "", found["text"], line)
