"""`evenflow group pause` and `resume`: nobody handles what is paused, and nothing of it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from evenflow.cli.asking import Partitions, Why, Yes, be_sure, carry_out, tell, who
from evenflow.cli.group.subjects import called, checked, look_at
from evenflow.cli.output import print_json
from evenflow.cli.which import AsJson, GroupName, ProfileName, SourceUrl, StoreUrl, opened, which, with_group
from evenflow.model import EVERYTHING, GroupState
from evenflow.operate.steer import pause as pause_group
from evenflow.operate.steer import resume as resume_group
from evenflow.runtime.clock import system_clock
from evenflow.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.which import Chosen
    from evenflow.model import Group, PartitionId, Wish
    from evenflow.operate.inspect.watcher import GroupSnapshot
    from evenflow.operate.steer import Operator


class Done(Struct, frozen=True, kw_only=True):
    """What became of a wish."""

    group: Group
    partitions: Sequence[PartitionId] | None
    """Those that were named; None is all of the group."""
    already: dict[PartitionId, Wish | None]
    """Those that were so before, with who made them so, where that is known."""
    changed: bool
    cleared: Sequence[PartitionId] = ()
    """Those that a failure held, and that try again."""

    def as_facts(self, action: str) -> dict[str, Any]:
        group = {"namespace": self.group.namespace, "hub": self.group.hub, "group": self.group.name}
        names = [name for name in self.already if name != EVERYTHING]
        return {"action": action, **group, "partitions": self.partitions, "changed": self.changed, "already": names}

    @property
    def fresh(self) -> Sequence[PartitionId] | None:
        return None if self.partitions is None else [name for name in self.partitions if name not in self.already]


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
    done = carry_out(_pause(chosen, partition, who(why), yes=yes))
    if as_json:
        print_json(done.as_facts("pause"))
        return
    for name, wish in done.already.items():
        typer.echo(f"{_named(name)} of {done.group} was paused already{_by(wish)}")
    if done.changed:
        typer.echo(f"paused {called(done.fresh)} of {done.group}")


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
    done = carry_out(_resume(chosen, partition, who(why), yes=yes))
    if as_json:
        print_json(done.as_facts("resume") | {"stops_cleared": list(done.cleared)})
        return
    for name in done.already:
        typer.echo(f"{_named(name)} of {done.group} was not paused")
    if done.changed:
        typer.echo(f"resumed {called(done.fresh)} of {done.group}{_again(done.cleared)}")


async def _pause(chosen: Chosen, partitions: Sequence[str] | None, by: Operator, *, yes: bool) -> Done:
    async with opened(chosen) as at:
        look = await look_at(at)
        names = checked(look, partitions)
        already = _paused(_state(look), names)
        if EVERYTHING in already or (names is not None and len(already) == len(names)):
            return Done(group=at.group, partitions=names, already=already, changed=False)
        fresh = None if names is None else [name for name in names if name not in already]
        rows = [row for row in look.partitions if fresh is None or row.partition in fresh]
        owners = sorted({row.owner for row in rows if row.owner is not None and row.status != "owner silent"})
        has = "has" if len(owners) == 1 else "have"
        told = f" What {listed(owners)} {has} in hand is finished first." if owners else ""
        be_sure([f"pauses {called(fresh)} of {at.group}.{told}"], yes=yes)
        await pause_group(at.store, at.group, fresh, by)
        return Done(group=at.group, partitions=names, already=already, changed=True)


async def _resume(chosen: Chosen, partitions: Sequence[str] | None, by: Operator, *, yes: bool) -> Done:
    async with opened(chosen) as at:
        look = await look_at(at)
        names = checked(look, partitions)
        already = _running(look, names)
        if EVERYTHING in already or (names is not None and len(already) == len(names)):
            return Done(group=at.group, partitions=names, already=already, changed=False)
        fresh = None if names is None else [name for name in names if name not in already]
        stops = _stops(look, fresh)
        if stops:
            these = "this event" if len(stops) == 1 else "these events"
            be_sure([*stops, f"tries {these} of {at.group} again"], yes=yes)
        cleared = await resume_group(at.store, at.group, fresh, by, system_clock(), report=tell)
        return Done(group=at.group, partitions=names, already=already, changed=True, cleared=cleared)


def _state(look: GroupSnapshot) -> GroupState:
    return look.found.ledger.state if look.found.ledger is not None else GroupState()


def _paused(state: GroupState, names: Sequence[PartitionId] | None) -> dict[PartitionId, Wish | None]:
    """What is paused already of that which shall be."""
    if (whole := state.pauses.get(EVERYTHING)) is not None:
        return {EVERYTHING: whole}
    return {name: state.pauses[name] for name in names or () if name in state.pauses}


def _running(look: GroupSnapshot, names: Sequence[PartitionId] | None) -> dict[PartitionId, Wish | None]:
    """What nothing holds, neither a pause nor a failure; EVERYTHING when that is all of the group."""
    state = _state(look)
    held = {row.partition for row in look.partitions if row.failure is not None and row.failure.kind != "retrying"}
    held |= {row.partition for row in look.partitions if state.pause_of(row.partition) is not None}
    if names is None:
        return {} if held or state.pauses else {EVERYTHING: None}
    return {name: None for name in names if name not in held}


def _stops(look: GroupSnapshot, names: Sequence[str] | None) -> list[str]:
    return [
        f"partition {row.partition} is blocked at {row.failure.event}: {row.failure.error}"
        for row in look.partitions
        if row.failure is not None and row.failure.kind == "stopped" and (names is None or row.partition in names)
    ]


def _named(partition: PartitionId) -> str:
    return called(None if partition == EVERYTHING else [partition])


def _by(wish: Wish | None) -> str:
    if wish is None or not wish.by:
        return ""
    return f" by {wish.by}" + (f": {wish.why}" if wish.why else "")


def _again(cleared: Sequence[PartitionId]) -> str:
    if not cleared:
        return ""
    return f"; {called(cleared)} {'tries its event' if len(cleared) == 1 else 'try their events'} again"
