"""Moves the checkpoints of a group from outside: the preview, and the change itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evenflow.core.notes import Notes, notes_of
from evenflow.errors import HubReplaced, Misconfigured, PositionOutOfRange
from evenflow.model import Checkpoint, Group, PartitionId, Position
from evenflow.operate.inspect.lag import lag_of
from evenflow.operate.inspect.survey import operable
from evenflow.operate.steer.checkpoint_edits import CheckpointChange, CheckpointEdit, CheckpointEditor
from evenflow.operate.steer.operator import check_partitions, is_its_hub, ledger_of, listed, steerable
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from evenflow.model import Bounds
    from evenflow.operate.steer.operator import Operator
    from evenflow.ports import Clock, Source, Start, Store


class Shift(Struct, frozen=True):
    """This many events forward from the checkpoint, or backward if negative, within the log."""

    events: int


class FromGroup(Struct, frozen=True):
    """To the checkpoints of another group of the same hub."""

    name: str


Target: TypeAlias = "Start | Shift | FromGroup"


class PartitionSeek(Struct, frozen=True, kw_only=True):
    """One partition of a seek: the planned or the completed change."""

    partition: PartitionId
    to: Target
    """The requested target. Unless it is a position, it is resolved again once the partition is paused."""
    before: Position | None
    """None: it has no checkpoint yet."""
    after: Position
    lag_before: int | None
    lag_after: int | None
    note: str = ""
    """How the result differs from the request."""


async def plan_seek(
    store: Store, source: Source, group: Group, to: Target, partitions: Sequence[PartitionId] | None
) -> list[PartitionSeek]:
    """What a seek would change, in all partitions or in those named, without changing it."""
    await check_hub(store, source, group)
    ended = {lease.partition for lease in (await ledger_of(store, group)).leases if lease.ended}
    there = [partition.id for partition in await source.partitions() if partition.id not in ended]
    _check_not_ended(partitions or (), ended)
    check_partitions(partitions or (), there)
    wanted = sorted(there if partitions is None else dict.fromkeys(partitions), key=natural)
    records = {record.partition: record.position for record in await operable(store).checkpoints(group)}
    bounds = await source.bounds(wanted)
    targets = _TargetResolver(store, source, group, to)
    plans = []
    for partition in wanted:
        before, there_is = records.get(partition), bounds.get(partition)
        after = await targets.find(partition, before, there_is)
        plans.append(_seeking(partition, to, before, after, there_is))
    return plans


def _check_not_ended(wanted: Sequence[PartitionId], ended: Collection[PartitionId]) -> None:
    if over := [name for name in wanted if name in ended]:
        raise Misconfigured(
            f"Partition {listed(over)} has ended: all of it is handled, and its children continue it. Seek in the"
            " children; to handle earlier events again, use another group, or delete this one and start at a time."
        )


def _cut_short(partition: PartitionId, to: Target, before: Position | None, after: Position) -> str:
    """The note for a shift that was cut short by an end of the log."""
    if not isinstance(to, Shift) or before is None or before.sequence is None or after.sequence is None:
        return ""
    went = after.sequence - before.sequence
    if went == to.events:
        return ""
    end = "beginning" if to.events < 0 else "end"
    return f"partition {partition} moves by {went}, not by {to.events}: that is the {end} of the log"


async def seek(
    store: Store,
    source: Source,
    group: Group,
    seekings: Sequence[PartitionSeek],
    who: Operator,
    clock: Clock,
    report: Callable[[str], None] = lambda line: None,
) -> list[PartitionSeek]:
    """Carry it out, and return what was really changed: a running group has progressed since the plan.

    In a running group only these partitions are paused, until they are moved. `report` receives progress messages.
    `Transient` when owners do not release them in time. However it ends, every partition that it paused is resumed.
    """
    editor = CheckpointEditor(store, group, who, clock, kind="seek", report=report)
    moves = {one.partition: _SeekEdit(store, source, group, one) for one in seekings}
    edits = {
        name: CheckpointEdit(f"{_words(move.plan.to)} by {who.by}", move.edit, move.plan.after)
        for name, move in moves.items()
    }
    try:
        await editor.apply(edits)
    finally:
        done = {name: changed for name, changed in editor.done.items() if changed is not None}
        if done:
            await steerable(store).record(group, who.did("seek", _what(done)))
    return [moves[name].done(done[name]) for name in sorted(done, key=natural)]


class _TargetResolver:
    """Resolves a target in the partitions of a group, from the current state of the log and the groups."""

    def __init__(self, store: Store, source: Source, group: Group, to: Target) -> None:
        self._store, self._source, self._group, self._to = store, source, group, to

    async def find(self, partition: PartitionId, before: Position | None, bounds: Bounds | None) -> Position:
        return await _resolved(self._source, partition, await self._start(partition, before, bounds), bounds)

    async def _start(self, partition: PartitionId, before: Position | None, bounds: Bounds | None) -> Start:
        if isinstance(self._to, Shift):
            return shifted(partition, self._to.events, before, bounds)
        if isinstance(self._to, FromGroup):
            return await self._of_other(partition, self._to.name)
        return self._to

    async def _of_other(self, partition: PartitionId, name: str) -> Position:
        other = replace(self._group, name=name)
        await check_hub(self._store, self._source, other)
        records = {record.partition: record.position for record in await operable(self._store).checkpoints(other)}
        if partition not in records:
            raise Misconfigured(
                f"Group {name!r} has no checkpoint of partition {partition}. Name the partitions that it has:"
                f" {listed(records) or 'none yet'}."
            )
        return records[partition]


class _SeekEdit:
    """The part of a seek for one partition: resolves the target once the partition is paused."""

    def __init__(self, store: Store, source: Source, group: Group, plan: PartitionSeek) -> None:
        self.plan = plan
        self._source = source
        self._targets = _TargetResolver(store, source, group, plan.to)
        self._bounds: Bounds | None = None

    async def edit(self, record: Checkpoint) -> Checkpoint:
        """A position was resolved by the plan and stays valid; other targets are resolved again."""
        plan = self.plan
        self._bounds = (await self._source.bounds([plan.partition])).get(plan.partition)
        if isinstance(plan.to, Position):
            return _moved(record, plan.after)
        return _moved(record, await self._targets.find(plan.partition, record.position, self._bounds))

    def done(self, changed: CheckpointChange) -> PartitionSeek:
        before = changed.before.position if changed.before is not None else None
        return _seeking(self.plan.partition, self.plan.to, before, changed.after.position, self._bounds)


def _seeking(
    partition: PartitionId, to: Target, before: Position | None, after: Position, bounds: Bounds | None
) -> PartitionSeek:
    return PartitionSeek(
        partition=partition,
        to=to,
        before=before,
        after=after,
        lag_before=lag_of(before, bounds),
        lag_after=lag_of(after, bounds),
        note=_cut_short(partition, to, before, after),
    )


def _words(to: Target) -> str:
    if isinstance(to, Shift):
        return f"{to.events:+d} events"
    return f"to where group {to.name} is" if isinstance(to, FromGroup) else f"to {to}"


def _moved(record: Checkpoint, to: Position) -> Checkpoint:
    """At the new position, without the failures of the old one. Dead letters and parked keys stay."""
    notes = notes_of(record)
    kept = Notes(parked=notes.parked, redriven=notes.redriven)
    return replace(record, position=to, notes=kept.as_dict(), event_at=0.0)


def _what(moved: Mapping[PartitionId, CheckpointChange]) -> str:
    each = ", ".join(
        f"partition {name}: {changed.before.position if changed.before is not None else 'no checkpoint'}"
        f" -> {changed.after.position}"
        for name, changed in sorted(moved.items(), key=lambda one: natural(one[0]))
    )
    if len(moved) == 1:
        return each
    places = {changed.after.position for changed in moved.values()}
    return f"{len(moved)} partitions{f', to {places.pop()}' if len(places) == 1 else ''}: {each}"


async def check_hub(store: Store, source: Source, group: Group) -> None:
    identity, ledger = await source.identity(), await ledger_of(store, group)
    if (identity.namespace, identity.hub) != (group.namespace, group.hub):
        raise Misconfigured(
            f"Group {group} does not read hub {identity.namespace}/{identity.hub}. Name the group's own source."
        )
    if not is_its_hub(f"Group {group} reads", ledger.state.source, identity):
        raise HubReplaced(
            f"The checkpoints of group {group} belong to a hub that was deleted and created again. Delete the group to"
            " start over in the new hub."
        )


def shifted(partition: PartitionId, events: int, before: Position | None, bounds: Bounds | None) -> Start:
    """This far from the checkpoint, within the log. Events that arrive meanwhile are not skipped."""
    if before is None:
        raise Misconfigured(
            f"Partition {partition} has no checkpoint to count from. Seek to a position or a time instead."
        )
    oldest = bounds.oldest.sequence if bounds is not None and bounds.oldest is not None else None
    newest = bounds.newest.sequence if bounds is not None and bounds.newest is not None else None
    if before.sequence is None or oldest is None or newest is None:
        raise Misconfigured(
            f"The source does not number the events of partition {partition}. Seek to a position or a time instead."
        )
    sequence = before.sequence + events
    if sequence < oldest:
        return "earliest"
    if sequence < newest:
        return Position(str(sequence), sequence)
    return "latest" if newest < oldest or bounds is None or bounds.newest is None else bounds.newest


async def _resolved(source: Source, partition: PartitionId, start: Start, bounds: Bounds | None) -> Position:
    try:
        return await source.resolve(partition, start)
    except PositionOutOfRange as error:
        oldest = bounds.oldest if bounds is not None and bounds.oldest is not None else "unknown"
        newest = bounds.newest if bounds is not None and bounds.newest is not None else "unknown"
        raise type(error)(
            f"Partition {partition}: {start} is not in the log. Its oldest event is at position {oldest}, its newest at"
            f" {newest}."
        ) from error
