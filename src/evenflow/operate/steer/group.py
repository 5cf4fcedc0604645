"""Operations on a group or on one of its instances: pause, resume, retire, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evenflow.core.decide import paused_by
from evenflow.core.notes import notes_of
from evenflow.errors import Misconfigured
from evenflow.model import EVERYTHING, Checkpoint, Steering
from evenflow.operate.inspect.survey import operable
from evenflow.operate.steer.checkpoint_edits import POLL_S, CheckpointEdit, CheckpointEditor
from evenflow.operate.steer.operator import called, check_partitions, ledger_of, steerable
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.model import Group, GroupState, Ledger, Member, Owner, PartitionId
    from evenflow.operate.steer.operator import Operator
    from evenflow.ports import Clock, Store

HEARTBEATS_WATCHED = 2
SLACK_S = 1.0
"""The delay that a busy machine may add to a heartbeat."""


async def pause(store: Store, group: Group, partitions: Sequence[PartitionId] | None, who: Operator) -> GroupState:
    """Pause partitions, or (None) the whole group: owners drain, commit and release; no instance claims them."""
    steering = steerable(store)
    await _check(store, group, partitions)
    names = _named(partitions)
    return await steering.steer(group, Steering(pause=names), who.did("pause", _what(names)))


async def resume(
    store: Store,
    group: Group,
    partitions: Sequence[PartitionId] | None,
    who: Operator,
    clock: Clock,
    report: Callable[[str], None] = lambda line: None,
) -> list[PartitionId]:
    """End the pause of partitions, or (None) all pauses of the group, and clear failures that halt them.

    Returns the partitions whose failure, a poison event or a tripped circuit breaker, was cleared.
    """
    steering = steerable(store)
    ledger = await _check(store, group, partitions)
    if partitions is not None and (pause_request := ledger.state.pauses.get(EVERYTHING)) is not None:
        raise Misconfigured(
            f"The whole group is {paused_by(pause_request)}, so {called(partitions)} cannot be resumed alone. Resume"
            " the group."
        )
    for name in partitions or ():
        if (pause_request := ledger.state.pauses.get(name)) is not None and pause_request.damaged:
            raise Misconfigured(
                f"{called([name])} is paused by the store itself and cannot be resumed. {pause_request.why}"
            )
    halted = await _halted(store, group, partitions)
    if halted:
        editor = CheckpointEditor(store, group, who, clock, kind="resume", report=report)
        await editor.apply({partition: CheckpointEdit(f"by {who.by}", _cleared) for partition in halted})
    names = _named(partitions)
    what = _what(names) + (f"; cleared the failure of {called(halted)}" if halted else "")
    await steering.steer(group, Steering(resume=names), who.did("resume", what))
    return halted


async def retire(store: Store, group: Group, instance: str, who: Operator) -> Owner:
    """Ask an instance to drain, hand over its partitions, and leave. It learns of this with its next heartbeat."""
    steering = steerable(store)
    ledger = await ledger_of(store, group)
    found = next((member for member in ledger.members if member.id == instance), None)
    if found is None:
        known = ", ".join(sorted((member.id for member in ledger.members), key=natural)) or "none"
        raise Misconfigured(f"Group {group} has no instance {instance!r}. It has: {known}.")
    await steering.steer(group, Steering(retire=(found.owner,)), who.did("retire", f"instance {found.owner}"))
    return found.owner


async def delete(store: Store, group: Group, who: Operator, clock: Clock) -> None:
    """Delete the group with its leases and checkpoints, unless it has live instances. Its record of actions stays."""
    steering = steerable(store)
    alive = await _alive(store, group, clock)
    if alive:
        names = ", ".join(f"{member.id} (pid {member.pid} on {member.host or '?'})" for member in alive)
        raise Misconfigured(f"Group {group} has live instances: {names}. Stop them first, then delete the group.")
    records = sorted(await operable(store).checkpoints(group), key=lambda record: natural(record.partition))
    stood = ", ".join(f"{record.partition} at {record.position}" for record in records)
    await steering.record(group, who.did("delete", f"group {group}; its checkpoints were: {stood or 'none'}"))
    await operable(store).delete(group)


async def _check(store: Store, group: Group, partitions: Sequence[PartitionId] | None) -> Ledger:
    ledger = await ledger_of(store, group)
    if partitions is not None:
        if not partitions:
            raise Misconfigured("The list of partitions is empty. Name some, or omit it to mean the whole group.")
        records = await operable(store).checkpoints(group)
        leased = {lease.partition for lease in ledger.leases}
        check_partitions(partitions, leased.union(record.partition for record in records))
    return ledger


def _named(partitions: Sequence[PartitionId] | None) -> tuple[PartitionId, ...]:
    return (EVERYTHING,) if partitions is None else tuple(dict.fromkeys(partitions))


def _what(names: tuple[PartitionId, ...]) -> str:
    return "the whole group" if EVERYTHING in names else called(names)


async def _halted(store: Store, group: Group, partitions: Sequence[PartitionId] | None) -> list[PartitionId]:
    """Partitions whose checkpoint says that a failure halted them."""
    found = []
    for record in await operable(store).checkpoints(group):
        notes = notes_of(record)
        if (notes.stopped or notes.tripped) and (partitions is None or record.partition in partitions):
            found.append(record.partition)
    return sorted(found, key=natural)


async def _cleared(record: Checkpoint) -> Checkpoint:
    """The same position, ready for a new attempt. Parked keys and redriven dead letters stay as they are."""
    notes = replace(notes_of(record), stopped=None, tripped=None, failing=None, trying=None, suspects=(), ends=None)
    return replace(record, notes=notes.as_dict())


async def _alive(store: Store, group: Group, clock: Clock) -> list[Member]:
    """Members whose heartbeat counter changes within two heartbeat intervals. Returns at once when there are none."""
    first = {member.owner: member for member in (await ledger_of(store, group)).members}
    watched_s = HEARTBEATS_WATCHED * max((member.heartbeat_s for member in first.values()), default=0.0) + SLACK_S
    end_s = clock.now() + watched_s
    while first and clock.now() < end_s:
        await clock.sleep(POLL_S)
        ledger = await operable(store).peek(group)
        now = ledger.members if ledger is not None else ()
        alive = [member for member in now if member.owner not in first or first[member.owner].mark != member.mark]
        if alive:
            return alive
    return []
