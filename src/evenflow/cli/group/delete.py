"""`evenflow group delete`: deletes a group without running instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from evenflow.cli.confirm import Why, Yes, carry_out, confirm, operator
from evenflow.cli.group.partitions import take_snapshot
from evenflow.cli.output import print_json
from evenflow.cli.selection import (
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    opened,
    require_group,
    select_group,
)
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
    """Delete a group and all its checkpoints, permanently. Rejected while an instance of the group runs."""
    chosen = require_group(select_group(store, source, group, profile))
    name = carry_out(_delete(chosen, operator(why), yes=yes))
    if as_json:
        print_json({"action": "delete", "group": name})
    else:
        typer.echo(f"deleted {name}")


async def _delete(chosen: Profile, by: Operator, *, yes: bool) -> str:
    async with opened(chosen) as at:
        look = await take_snapshot(at)
        checkpoints = count_of(len(look.found.checkpoints), "checkpoint")
        running = f" {count_of(look.running, 'instance')} may still run in it." if look.running else ""
        restart = "A new group of this name begins at its start position."
        confirm([f"This permanently deletes {at.group} and its {checkpoints}. {restart}{running}"], yes=yes)
        await delete_group(at.store, at.group, by, system_clock())
        return str(at.group)
