"""The project's documents, taken apart: code blocks, links and headings.

How a block is run is told by its first line, and by a comment on the line above it:

    ```python              run as a program of its own, in a folder that all blocks of the document share
    ```python app.py       saved under that name instead, for blocks after it
    ```sh                  run by bash, in the same folder
    <!-- run for 5 s -->   it does not end by itself: it is sent SIGTERM then, and must end well
    <!-- not run: why -->  the one way out, for `make test` itself and the like
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh")

_BLOCK = re.compile(
    r"(?:^<!-- *(?P<note>[^\n]*?) *-->\n+)?^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
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


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    return [_block(found, text) for found in _BLOCK.finditer(text)]


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
