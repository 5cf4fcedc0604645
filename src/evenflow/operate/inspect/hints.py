"""Complete commands for advice: pasted into another terminal, they must mean the same group."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.model import PartitionId


class Hints(Struct, frozen=True, kw_only=True):
    """How the operator named the group, so that suggested commands name the same one."""

    flags: str = ""
    """The flags that name the group, for the end of every command."""
    hub: str = ""
    """The folder of the embedded hub that it reads; "" when it reads another source."""
    dead_letters: str = ""
    """Where its dead letters are, as a flag; "" when unknown."""
    source: str = ""
    """Its source, as a flag, for commands that need one; "" when `flags` already name it."""

    def group(self, verb: str, partitions: Sequence[PartitionId] = ()) -> str:
        """`evenflow group VERB` for these partitions; without any, for all."""
        named = [f"--partition {quote(name)}" for name in partitions]
        return self._line("evenflow group", verb, *named, self.flags, self.source if verb.startswith("seek") else "")

    def redrive_or_drop(self, verb: str) -> str:
        return self._line("evenflow dead-letters", verb, self.dead_letters, self.flags)

    def event(self, partition: PartitionId, offset: str | None) -> str:
        """The command that shows one event; "" when there is none."""
        if not self.hub or offset is None or not offset.isdecimal():
            return ""
        return f"evenflow hub tail {quote(self.hub)} --from {offset} --partition {quote(partition)} --count 1"

    def _line(self, *parts: str) -> str:
        return " ".join(part for part in parts if part)
