"""`evenflow dead-letters drop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.cli.confirm import Why, Yes, carry_out, operator
from evenflow.cli.dead_letters.confirm import confirm_change, count, require_filter, select_open
from evenflow.cli.dead_letters.listing import group_facts
from evenflow.cli.dead_letters.options import (
    ErrorText,
    Everything,
    Ids,
    Keys,
    Partitions,
    SourceUrl,
    States,
    choice,
    opened,
    whose,
)
from evenflow.cli.output import print_json, say
from evenflow.cli.selection import AsJson, DeadLettersUrl, GroupName, ProfileName, StoreUrl
from evenflow.operate.dead_letters import redrive as dead_letters_redrive
from evenflow.operate.dead_letters.redrive import DeadLetterFilter, Requester, read_filed
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.cli.profiles import Profile
    from evenflow.core.filed import Filed
    from evenflow.model import Group


def drop(
    ids: Ids = None,
    dead_letters: DeadLettersUrl = None,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    partition: Partitions = None,
    key: Keys = None,
    error: ErrorText = "",
    state: States = None,
    everything: Everything = False,
    why: Why = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters permanently: they are not handled, and no longer hold back later events of their keys."""
    wanted = choice(ids, partition, key, error, state)
    require_filter(wanted, everything=everything)
    chosen = whose(dead_letters, store, source, group, profile, needs_store=True)
    owner, dropped = carry_out(_drop(chosen, wanted, Requester(operator(why).by, why), yes=yes))
    if as_json:
        print_json({**group_facts(owner), "dropped": [one.dead_letter.id for one in dropped]})
    else:
        say(f"dropped {count(len(dropped))}" if dropped else "no dead letters to drop")


async def _drop(
    chosen: Profile, wanted: DeadLetterFilter, person: Requester, *, yes: bool
) -> tuple[Group, list[Filed]]:
    async with opened(chosen) as at:
        operated = at.operated
        selected = select_open(await read_filed(at.dead_letters, at.group), wanted)
        if selected:
            confirm_change(f"Permanently drop {count(len(selected))} of group {at.group}?", selected, yes=yes)
            await dead_letters_redrive.drop(at.dead_letters, operated, at.group, selected, system_clock(), person)
        return at.group, selected
