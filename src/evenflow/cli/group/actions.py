"""`evenflow group actions`: the actions of operators on a group, also on one that was deleted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.output import print_json
from evenflow.cli.selection import (
    AsJson,
    GroupName,
    ProfileName,
    SourceUrl,
    StoreUrl,
    opened_store,
    require_group,
    select_group,
)
from evenflow.cli.views import action_facts, action_lines
from evenflow.errors import Misconfigured
from evenflow.model import Group
from evenflow.operate.inspect.survey import conform, find_group, operable
from evenflow.operate.steer.operator import steerable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.profiles import Profile
    from evenflow.model import Action
    from evenflow.ports import Source, Store

LIMIT = 100


def actions(
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Number of recent actions to show.")
    ] = LIMIT,
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Show what operators did to a group, the latest first. To find a deleted group, pass its --source."""
    chosen = require_group(select_group(store, source, group, profile))
    found, is_there, done = asyncio.run(_read(chosen, limit))
    if as_json:
        names = {"namespace": found.namespace, "hub": found.hub, "group": found.name}
        print_json({**names, "exists": is_there, "actions": action_facts(done)})
    else:
        typer.echo("\n".join(action_lines(done)))


async def _read(chosen: Profile, limit: int) -> tuple[Group, bool, Sequence[Action]]:
    assert chosen.group is not None
    async with opened_store(chosen) as (store, source):
        group = await _named(store, chosen.group, source)
        is_there = group in await operable(store).groups()
        done = await steerable(store).actions(group, limit)
        if not is_there and not done:
            raise Misconfigured(f"The store has no group {group}, and no actions on a group of this name.")
        return group, is_there, done


async def _named(store: Store, name: str, source: Source | None) -> Group:
    """The group of this name on the source's hub, which may not exist. Without a source, it must exist."""
    if source is not None:
        identity = await source.identity()
        group = Group(identity.namespace, identity.hub, name)
        await conform(store, group, source)  # a deleted group is not among those that the store lists
        return group
    try:
        return await find_group(store, name, None)
    except Misconfigured as error:
        raise Misconfigured(f"{error} If it was deleted, pass --source URL to name its hub.") from error
