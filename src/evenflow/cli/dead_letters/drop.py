"""`evenflow dead-letters drop`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenflow.cli.dead_letters.asking import ask, check_said, count, open_ones, who
from evenflow.cli.dead_letters.listing import group_facts
from evenflow.cli.dead_letters.options import (
    AsJson,
    ErrorText,
    Everything,
    GroupName,
    Ids,
    Keys,
    LettersUrl,
    Partitions,
    SourceUrl,
    States,
    StoreUrl,
    Why,
    Yes,
    choice,
    opened,
)
from evenflow.cli.output import print_json, say
from evenflow.letters import redrive as letters_redrive
from evenflow.letters.redrive import Person, read_filed
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.core.filed import Filed
    from evenflow.letters.redrive import Choice
    from evenflow.model import Group


def drop(
    letters: LettersUrl,
    store: StoreUrl,
    group: GroupName,
    ids: Ids = None,
    source: SourceUrl = None,
    partition: Partitions = None,
    key: Keys = None,
    error: ErrorText = "",
    state: States = None,
    everything: Everything = False,
    why: Why = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give letters up: they will not be handled, and no longer hold back events of their keys."""
    wanted = choice(ids, partition, key, error, state)
    check_said(wanted, everything=everything)
    owner, dropped = asyncio.run(_drop(letters, store, source, group, wanted, Person(who(), why), yes=yes))
    if as_json:
        print_json({**group_facts(owner), "dropped": [one.letter.id for one in dropped]})
    else:
        say(f"dropped {count(len(dropped))}" if dropped else "no dead letters to drop")


async def _drop(
    letters: str, store: str, source: str | None, group: str, wanted: Choice, person: Person, *, yes: bool
) -> tuple[Group, list[Filed]]:
    async with opened(letters, store, source, group) as desk:
        operated = desk.operated
        meant = open_ones(await read_filed(desk.letters, desk.group), wanted)
        if meant:
            ask(f"Drop {count(len(meant))} of group {desk.group} for good?", meant, yes=yes)
            await letters_redrive.drop(desk.letters, operated, desk.group, meant, system_clock(), person)
        return desk.group, meant
