"""`evenflow group delete`: forget a group that nobody runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from evenflow.cli.asking import Why, Yes, be_sure, carry_out, who
from evenflow.cli.group.subjects import look_at
from evenflow.cli.output import print_json
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, opened, which, with_group
from evenflow.operate.steer import delete as delete_group
from evenflow.runtime.clock import system_clock
from evenflow.text import count_of

if TYPE_CHECKING:
    from evenflow.cli.profiles import Profile
    from evenflow.operate.steer import Operator


def delete(
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Forget a group with all its checkpoints. Refused while an instance runs in it."""
    chosen = with_group(which(store, source, group, profile))
    name = carry_out(_delete(chosen, who(why), yes=yes))
    if as_json:
        print_json({"action": "delete", "group": name})
    else:
        typer.echo(f"deleted {name}")


async def _delete(chosen: Profile, by: Operator, *, yes: bool) -> str:
    async with opened(chosen) as at:
        look = await look_at(at)
        records = count_of(len(look.found.checkpoints), "checkpoint")
        there = f" {count_of(look.running, 'instance')} may still run in it." if look.running else ""
        again = "A group of this name begins anew, at its start position."
        be_sure([f"forgets {at.group} with {records} for ever. {again}{there}"], yes=yes)
        await delete_group(at.store, at.group, by, system_clock())
        return str(at.group)
