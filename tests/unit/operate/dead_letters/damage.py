"""Reading a damaged target as far as it goes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from evenflow.errors import Corrupt
from evenflow.model import Group

if TYPE_CHECKING:
    from evenflow.model import DeadLetterRecord
    from evenflow.ports import DeadLetters

GROUP = Group("local", "homes", "alerts")


async def until_damage(dead_letters: DeadLetters, message: str) -> list[DeadLetterRecord]:
    """All that it gave before it said so."""
    seen: list[DeadLetterRecord] = []
    try:
        async for record in dead_letters.read(GROUP):
            seen.append(record)  # noqa: PERF401 - what came before the error is wanted
    except Corrupt as error:
        shown = str(error)
    else:
        shown = ""
    assert re.search(message, shown)
    return seen
