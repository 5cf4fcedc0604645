"""A mutant: one module's source with one small change. The tree's files are read and never written."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "evenflow"


class Mutant(NamedTuple):
    name: str
    """Stays the same while the code around it changes."""
    module: str
    """Below evenflow, with dots: core.decide"""
    what: str
    """The change, for a reader."""
    source: str
    """The whole module as the change makes it."""

    @property
    def rank(self) -> float:
        """From 0 to 1 and evenly spread, by the name alone."""
        return int.from_bytes(sha256(self.name.encode()).digest()[:8], "big") / 2**64


def path_of(module: str) -> Path:
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py")


def source_of(module: str) -> str:
    return path_of(module).read_text()
