"""`evenflow group pause` and `resume`: a paused partition has no owner; it loses no events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from evenflow.cli.confirm import Partitions, Why, Yes, carry_out, confirm, operator, say_safely
from evenflow.cli.group.partitions import check_partitions, name_partitions, take_snapshot
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
from evenflow.model import EVERYTHING, GroupState
from evenflow.operate.steer import pause as pause_group
from evenflow.operate.steer import resume as resume_group
from evenflow.operate.steer.operator import Operator
from evenflow.runtime.clock import system_clock
from evenflow.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.cli.selection import GroupSelection
    from evenflow.model import Group, PartitionId, Wish
    from evenflow.operate.inspect.watcher import GroupSnapshot


class PauseResult(Struct, frozen=True, kw_only=True):
    """The result of a pause or a resume."""

    group: Group
    partitions: Sequence[PartitionId] | None
    """The partitions that the command named; None for the whole group."""
    already: dict[PartitionId, Wish | None]
    """Partitions that were paused (or running) before, with the operator request that paused them, if known."""
    changed: bool
    cleared: Sequence[PartitionId] = ()
    """Partitions that a failed event had stopped, and that now retry it."""

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
    """Pause a group, or some of its partitions: they are drained and committed, and have no owner until resumed."""
    chosen = require_group(select_group(store, source, group, profile))
    done = carry_out(_pause(chosen, partition, operator(why), yes=yes))
    if as_json:
        print_json(done.as_facts("pause"))
        return
    for name, request in done.already.items():
        typer.echo(f"{_named(name)} of {done.group} was already paused{_by(request)}")
    if done.changed:
        typer.echo(f"paused {name_partitions(done.fresh)} of {done.group}")


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
    """Resume a group, or some of its partitions, after a pause or after a poison event stopped them.

    It asks for confirmation only if a poison event will be retried.
    """
    chosen = require_group(select_group(store, source, group, profile))
    done = carry_out(_resume(chosen, partition, operator(why), yes=yes))
    if as_json:
        print_json(done.as_facts("resume") | {"stops_cleared": list(done.cleared)})
        return
    for name in done.already:
        typer.echo(f"{_named(name)} of {done.group} was not paused")
    if done.changed:
        typer.echo(f"resumed {name_partitions(done.fresh)} of {done.group}{_retrying(done.cleared)}")


async def _pause(chosen: GroupSelection, partitions: Sequence[str] | None, by: Operator, *, yes: bool) -> PauseResult:
    async with opened(chosen) as at:
        look = await take_snapshot(at)
        names = check_partitions(look, partitions)
        already = _paused(_state(look), names)
        if EVERYTHING in already or (names is not None and len(already) == len(names)):
            return PauseResult(group=at.group, partitions=names, already=already, changed=False)
        fresh = None if names is None else [name for name in names if name not in already]
        rows = [row for row in look.partitions if fresh is None or row.partition in fresh]
        owners = sorted({row.owner for row in rows if row.owner is not None and row.status != "owner silent"})
        first = f" Events in progress on {listed(owners)} are finished first." if owners else ""
        confirm([f"This pauses {name_partitions(fresh)} of {at.group}.{first}"], yes=yes)
        await pause_group(at.store, at.group, fresh, by)
        return PauseResult(group=at.group, partitions=names, already=already, changed=True)


async def _resume(chosen: GroupSelection, partitions: Sequence[str] | None, by: Operator, *, yes: bool) -> PauseResult:
    async with opened(chosen) as at:
        look = await take_snapshot(at)
        names = check_partitions(look, partitions)
        already = _running(look, names)
        if EVERYTHING in already or (names is not None and len(already) == len(names)):
            return PauseResult(group=at.group, partitions=names, already=already, changed=False)
        fresh = None if names is None else [name for name in names if name not in already]
        stops = _stops(look, fresh)
        if stops:
            these = "this event" if len(stops) == 1 else "these events"
            confirm([*stops, f"This retries {these} of {at.group}."], yes=yes)
        cleared = await resume_group(at.store, at.group, fresh, by, system_clock(), report=say_safely)
        return PauseResult(group=at.group, partitions=names, already=already, changed=True, cleared=cleared)


def _state(look: GroupSnapshot) -> GroupState:
    return look.found.ledger.state if look.found.ledger is not None else GroupState()


def _paused(state: GroupState, names: Sequence[PartitionId] | None) -> dict[PartitionId, Wish | None]:
    """Of the partitions to pause, those that are paused already."""
    if (whole := state.pauses.get(EVERYTHING)) is not None:
        return {EVERYTHING: whole}
    return {name: state.pauses[name] for name in names or () if name in state.pauses}


def _running(look: GroupSnapshot, names: Sequence[PartitionId] | None) -> dict[PartitionId, Wish | None]:
    """Of the partitions to resume, those that neither a pause nor a failure stops; EVERYTHING for the whole group."""
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
    return name_partitions(None if partition == EVERYTHING else [partition])


def _by(request: Wish | None) -> str:
    if request is None or not request.by:
        return ""
    return f" by {request.by}" + (f": {request.why}" if request.why else "")


def _retrying(cleared: Sequence[PartitionId]) -> str:
    if not cleared:
        return ""
    return f"; {name_partitions(cleared)} {'retries its event' if len(cleared) == 1 else 'retry their events'}"
