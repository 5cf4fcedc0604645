"""`evenflow retire INSTANCE`: ask an instance to hand over what it has, and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.asking import Why, Yes, be_sure, carry_out, who
from evenflow.cli.group.subjects import look_at
from evenflow.cli.output import print_json
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, opened, which, with_group
from evenflow.errors import Misconfigured
from evenflow.operate.steer import retire as retire_instance
from evenflow.text import count_of, listed

if TYPE_CHECKING:
    from evenflow.cli.profiles import Profile
    from evenflow.model import Group, Owner
    from evenflow.operate.inspect.watcher import GroupSnapshot
    from evenflow.operate.steer import Operator


def retire(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", show_default=False)],
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Ask an instance to drain, hand over all it has, and end."""
    chosen = with_group(which(store, source, group, profile))
    of, owner = carry_out(_retire(chosen, instance, who(why), yes=yes))
    if as_json:
        named = {"namespace": of.namespace, "hub": of.hub, "group": of.name}
        print_json({"action": "retire", **named, "instance": owner.id, "incarnation": owner.incarnation})
    else:
        typer.echo(f"asked {owner.id} of {of} to retire; it leaves once it has handed over what it has")


async def _retire(chosen: Profile, instance: str, by: Operator, *, yes: bool) -> tuple[Group, Owner]:
    async with opened(chosen) as at:
        be_sure([_what(await look_at(at), instance)], yes=yes)
        return at.group, await retire_instance(at.store, at.group, instance, by)


def _what(look: GroupSnapshot, instance: str) -> str:
    row = next((row for row in look.members if row.id == instance), None)
    if row is None:
        names = listed([row.id for row in look.members])
        raise Misconfigured(f"{look.group} has no instance {instance!r}. It has: {names or 'none'}.")
    others = sum(member.share is not None and member.id != instance for member in look.members)
    them = "it" if row.partitions == 1 else "them"
    heirs = f"{count_of(others, 'other instance')} will have {them}" if others else "there is nobody else to have them"
    if not row.partitions:
        return f"{instance} leaves {look.group}; it has no partitions."
    return f"{instance} leaves {look.group} with {count_of(row.partitions, 'partition')}: {heirs}."
