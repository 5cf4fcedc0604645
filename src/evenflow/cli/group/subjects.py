"""What a steering command is about: the partitions that were named, and the group as it is before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.errors import Misconfigured
from evenflow.operate.inspect.survey import survey
from evenflow.operate.inspect.watcher import GroupSnapshot, GroupWatcher
from evenflow.runtime.clock import system_clock
from evenflow.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.which import Opened


async def look_at(at: Opened) -> GroupSnapshot:
    clock = system_clock()
    found = await survey(at.store, at.group, at.source, moves=0)
    return GroupWatcher().observe(found, clock.now(), clock.wall())


def checked(look: GroupSnapshot, partitions: Sequence[str] | None) -> list[str] | None:
    """Those that were named, each once; None is all. A name that there is none of is an error."""
    if not partitions:
        return None
    there = [row.partition for row in look.partitions]
    for name in partitions:
        if name not in there:
            raise Misconfigured(f"{look.group} has no partition {name!r}. It has: {listed(there) or 'none yet'}.")
    return list(dict.fromkeys(partitions))


def called(partitions: Sequence[str] | None) -> str:
    if not partitions:
        return "the whole group"
    names = list(dict.fromkeys(partitions))
    return f"partition {names[0]}" if len(names) == 1 else f"partitions {listed(names)}"
