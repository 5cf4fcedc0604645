"""The commands that people are told to run, complete: pasted elsewhere, a hint must mean the same group."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import PartitionId


class Hints(Struct, frozen=True, kw_only=True):
    """How the group was asked for, so that what is told to be done is done to the same one."""

    flags: str = ""
    """What says which group is meant, behind every command."""
    hub: str = ""
    """The folder of the embedded hub that it reads, where it does."""
    dead_letters: str = ""
    """Where its dead letters are, as a flag."""
    source: str = ""
    """Where its events come from, as a flag, where that was not said and some commands need it."""

    def group(self, verb: str, partitions: Sequence[PartitionId] = ()) -> str:
        """`evenflow group VERB` for these partitions; none are all."""
        named = [f"--partition {quote(name)}" for name in partitions]
        return self._line("evenflow group", verb, *named, self.flags, self.source if verb.startswith("seek") else "")

    def redrive_or_drop(self, verb: str) -> str:
        return self._line("evenflow dead-letters", verb, self.dead_letters, self.flags)

    def event(self, partition: PartitionId, offset: str | None) -> str:
        """How to see one event; nothing where that cannot be told."""
        if not self.hub or offset is None or not offset.isdecimal():
            return ""
        return f"evenflow hub tail {quote(self.hub)} --from {offset} --partition {quote(partition)} --count 1"

    def _line(self, *parts: str) -> str:
        return " ".join(part for part in parts if part)
