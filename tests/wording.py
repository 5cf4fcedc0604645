"""Words and phrases that this project does not use, and what to write instead.

`python -m tests.wording [PATH ...]` lists them; `tests/unit/test_wording.py` keeps the list empty. Names count too: an
identifier is read word by word, so `told_before` and `TellTrouble` are found.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
READ = [
    ROOT / name
    for name in ("src", "docs", "examples", "deploy", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
]
KINDS = {".py", ".md", ".js", ".html", ".css", ".lua", ".yaml", ".yml", ".toml"}

INSTEAD = {
    r"nobody|no one": "no instance, no owner, none",
    r"somebody|someone|whoever|whomever": "the caller, an operator, another instance, any instance that",
    r"tolds?|tell|tells|telling": "report, say, show, log",
    r"of another make|of (?:our|their|the same) make": "third-party; of the same kind",
    r"(?:is|are|was|were|be) away": "is unreachable",
    r"strangers?": "third-party members",
    r"happenings?": "signal",
    r"wish|wishes|wished": "operator request; want",
    r"mends?|mended|mending": "fix, repair",
    r"anew": "again, from scratch",
    r"for ever": "permanently, forever",
    r"unborn": "waiting for its parents",
    r"fruitless": "without progress",
    r"wards?": "adopted partition",
    r"attendants?": "keeper",
    r"charters?": "group record",
    r"papers?": "records",
    r"halls?": "registry",
    r"leash": "parent watch",
    r"tides?": "horizon",
    r"rooms?": "group cache; package",
    r"for people|people's": "for display; operators'",
    r"in vain": "without success",
    r"thereof|whereof|wherefore|hitherto|henceforth": "plain words",
}
"""Patterns in lower case, and what to write instead."""

EXCUSED = {
    "room": re.compile(
        r"no room|more room|head[- ]?room|room for|room to|is room|living room|has room|enough room", re.I
    ),
    "wards": re.compile(r"(?:after|back|for|to|up)wards", re.I),
}
"""Where such a word has its usual meaning."""

_WORDS = re.compile(rf"(?<![a-z])(?:{'|'.join(f'(?:{one})' for one in INSTEAD)})(?![a-z])")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Found(NamedTuple):
    path: Path
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}, write {instead_of(self.word)}: {self.text.strip()[:100]}"


def instead_of(word: str) -> str:
    return next(better for pattern, better in INSTEAD.items() if re.fullmatch(pattern, word))


def words_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, word and line of each."""
    for number, line in enumerate(text.splitlines(), 1):
        plain = _HUMPS.sub("_", line).lower()
        for word in _WORDS.findall(plain):
            excuse = EXCUSED.get(word.rstrip("s") if word.rstrip("s") in EXCUSED else word)
            if excuse is None or not excuse.search(line):
                yield number, word, line


def files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
        else:
            yield from sorted(one for one in path.rglob("*") if one.suffix in KINDS and one.is_file())


def find(paths: Iterable[Path] = READ) -> list[Found]:
    every = files(paths)
    return [Found(path.relative_to(ROOT), *one) for path in every for one in words_in(path.read_text("utf-8"))]


def main() -> int:
    found = find([Path(one).resolve() for one in sys.argv[1:]] or READ)
    for one in found:
        print(one)
    print(f"{len(found)} found", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
