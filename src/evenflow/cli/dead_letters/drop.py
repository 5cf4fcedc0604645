"""`evenflow dead-letters drop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.cli.asking import Why, Yes, carry_out, who
from evenflow.cli.dead_letters.asking import ask, check_said, count, open_ones
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
from evenflow.cli.which import AsJson, DeadLettersUrl, GroupName, ProfileName, StoreUrl
from evenflow.operate.dead_letters import redrive as dead_letters_redrive
from evenflow.operate.dead_letters.redrive import Requester, read_filed
from evenflow.runtime.clock import system_clock

if TYPE_CHECKING:
    from evenflow.cli.profiles import Profile
    from evenflow.core.filed import Filed
    from evenflow.model import Group
    from evenflow.operate.dead_letters.redrive import DeadLetterFilter


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
    """Give dead letters up: they will not be handled, and no longer hold back events of their keys."""
    wanted = choice(ids, partition, key, error, state)
    check_said(wanted, everything=everything)
    chosen = whose(dead_letters, store, source, group, profile, steers=True)
    owner, dropped = carry_out(_drop(chosen, wanted, Requester(who(why).by, why), yes=yes))
    if as_json:
        print_json({**group_facts(owner), "dropped": [one.dead_letter.id for one in dropped]})
    else:
        say(f"dropped {count(len(dropped))}" if dropped else "no dead letters to drop")


async def _drop(
    chosen: Profile, wanted: DeadLetterFilter, person: Requester, *, yes: bool
) -> tuple[Group, list[Filed]]:
    async with opened(chosen) as desk:
        operated = desk.operated
        meant = open_ones(await read_filed(desk.dead_letters, desk.group), wanted)
        if meant:
            ask(f"Drop {count(len(meant))} of group {desk.group} for good?", meant, yes=yes)
            await dead_letters_redrive.drop(desk.dead_letters, operated, desk.group, meant, system_clock(), person)
        return desk.group, meant
