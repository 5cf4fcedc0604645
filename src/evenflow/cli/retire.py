"""`evenflow retire INSTANCE`: asks an instance to hand over its partitions and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from evenflow.errors import Misconfigured
from evenflow.operate.steer import retire as retire_instance
from evenflow.text import count_of, listed

if TYPE_CHECKING:
    from evenflow.cli.profiles import Profile
    from evenflow.model import Group, Owner
    from evenflow.operate.inspect.watcher import GroupSnapshot
    from evenflow.operate.steer import Operator


def retire(
    instance: Annotated[
        str,
        typer.Argument(metavar="INSTANCE", help="Instance id, as `evenflow status` shows it.", show_default=False),
    ],
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Ask an instance to drain, hand over all its partitions, and leave the group."""
    chosen = require_group(select_group(store, source, group, profile))
    of, owner = carry_out(_retire(chosen, instance, operator(why), yes=yes))
    if as_json:
        named = {"namespace": of.namespace, "hub": of.hub, "group": of.name}
        print_json({"action": "retire", **named, "instance": owner.id, "incarnation": owner.incarnation})
    else:
        typer.echo(f"asked {owner.id} of {of} to retire; it leaves once it has handed over its partitions")


async def _retire(chosen: Profile, instance: str, by: Operator, *, yes: bool) -> tuple[Group, Owner]:
    async with opened(chosen) as at:
        confirm([_what(await take_snapshot(at), instance)], yes=yes)
        return at.group, await retire_instance(at.store, at.group, instance, by)


def _what(look: GroupSnapshot, instance: str) -> str:
    row = next((row for row in look.members if row.id == instance), None)
    if row is None:
        names = listed([row.id for row in look.members])
        raise Misconfigured(f"{look.group} has no instance {instance!r}. It has: {names or 'none'}.")
    others = sum(member.share is not None and member.id != instance for member in look.members)
    if not row.partitions:
        return f"{instance} leaves {look.group}; it has no partitions."
    them = "it" if row.partitions == 1 else "them"
    others_take = f"{count_of(others, 'other instance')} will take {them} over"
    successors = others_take if others else f"no other instance can take {them} over"
    return f"{instance} leaves {look.group} with {count_of(row.partitions, 'partition')}: {successors}."
