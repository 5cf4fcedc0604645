"""`evenflow group pause` and `resume`: nobody handles what is paused, and nothing of it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from evenflow.cli.asking import Partitions, Why, Yes, be_sure, carry_out, tell, who
from evenflow.cli.group.subjects import called, checked, look_at
from evenflow.cli.output import print_json
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, opened, which, with_group
from evenflow.observe.words import count_of, listed
from evenflow.runtime.clock import system_clock
from evenflow.steer import pause as pause_group
from evenflow.steer import resume as resume_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.profiles import Profile
    from evenflow.observe.watcher import Look
    from evenflow.steer import Who


def pause(
    partition: Partitions = None,
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Pause a group, or some of its partitions: drained, committed, and owned by nobody until they are resumed."""
    chosen = with_group(which(store, source, group, profile))
    carry_out(_pause(chosen, partition, who(why), yes=yes))
    if as_json:
        print_json({"action": "pause", "partitions": partition})
    else:
        typer.echo(f"paused {called(partition)}")


def resume(
    partition: Partitions = None,
    yes: Yes = False,
    why: Why = "",
    store: StoreUrl = None,
    source: SourceUrl = None,
    group: GroupName = None,
    profile: ProfileName = None,
    as_json: AsJson = False,
) -> None:
    """Let a group, or some of its partitions, go on: after a pause, or after a poison event stopped them.

    It asks only where a poison event will be tried again.
    """
    chosen = with_group(which(store, source, group, profile))
    cleared = carry_out(_resume(chosen, partition, who(why), yes=yes))
    if as_json:
        print_json({"action": "resume", "partitions": partition, "stops_cleared": list(cleared)})
        return
    again = f"; {count_of(len(cleared), 'stopped partition')} will try again: {', '.join(cleared)}" if cleared else ""
    typer.echo(f"resumed {called(partition)}{again}")


async def _pause(chosen: Profile, partitions: Sequence[str] | None, by: Who, *, yes: bool) -> None:
    async with opened(chosen) as at:
        look = await look_at(at)
        names = checked(look, partitions)
        owners = sorted({row.owner for row in look.partitions if row.owner and (not names or row.partition in names)})
        told = f" What {listed(owners)} has in hand is finished first." if owners else ""
        be_sure([f"pauses {called(partitions)} of {at.group}.{told}"], yes=yes)
        await pause_group(at.store, at.group, names, by)


async def _resume(chosen: Profile, partitions: Sequence[str] | None, by: Who, *, yes: bool) -> Sequence[str]:
    async with opened(chosen) as at:
        look = await look_at(at)
        names = checked(look, partitions)
        stops = _stops(look, names)
        if stops:
            be_sure([*stops, "tries these events again"], yes=yes)
        return await resume_group(at.store, at.group, names, by, system_clock(), told=tell)


def _stops(look: Look, names: Sequence[str] | None) -> list[str]:
    return [
        f"partition {row.partition} stands before the event at {row.failure.offset}: {row.failure.error}"
        for row in look.partitions
        if row.failure is not None and row.failure.kind == "stopped" and (names is None or row.partition in names)
    ]
