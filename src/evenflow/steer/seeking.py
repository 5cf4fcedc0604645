"""Going elsewhere in a group's partitions, from outside: what would change, and the change itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evenflow.core.notes import Notes, notes_of
from evenflow.errors import HubReplaced, Misconfigured, PositionOutOfRange
from evenflow.model import Checkpoint, Group, PartitionId, Position
from evenflow.observe.ownership import lag_of, natural
from evenflow.observe.survey import operable
from evenflow.steer.visit import Changed, Errand, Visit
from evenflow.steer.who import check_partitions, ledger_of, listed, steerable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model import Bounds
    from evenflow.ports import Clock, Source, Start, Store
    from evenflow.steer.who import Who


class Shift(Struct, frozen=True):
    """So many events ahead of the checkpoint, or back, but not beyond the ends of the log."""

    events: int


class FromGroup(Struct, frozen=True):
    """Where another group of the same hub stands."""

    name: str


Target: TypeAlias = "Start | Shift | FromGroup"


class Seeking(Struct, frozen=True, kw_only=True):
    """One partition of a seek."""

    partition: PartitionId
    before: Position | None
    """None: it has no checkpoint yet."""
    after: Position
    lag_before: int | None
    lag_after: int | None
    note: str = ""
    """What is not as was asked for."""


async def plan_seek(
    store: Store, source: Source, group: Group, to: Target, partitions: Sequence[PartitionId] | None
) -> list[Seeking]:
    """What a seek would change, in all partitions or in those named. Changes nothing."""
    await _check_hub(store, source, group)
    there = [partition.id for partition in await source.partitions()]
    check_partitions(partitions or (), there)
    wanted = sorted(there if partitions is None else dict.fromkeys(partitions), key=natural)
    records = await _positions(store, group)
    bounds = await source.bounds(wanted)
    others: dict[PartitionId, Position] = {}
    if isinstance(to, FromGroup):
        others = await _positions_of(store, source, replace(group, name=to.name))
    plans = []
    for partition in wanted:
        start = _start(partition, to, records.get(partition), bounds.get(partition), others)
        before, after = records.get(partition), await _resolved(source, partition, start, bounds.get(partition))
        lags = lag_of(before, bounds.get(partition)), lag_of(after, bounds.get(partition))
        plans.append(
            Seeking(
                partition=partition,
                before=before,
                after=after,
                lag_before=lags[0],
                lag_after=lags[1],
                note=_cut_short(partition, to, before, after),
            )
        )
    return plans


def _cut_short(partition: PartitionId, to: Target, before: Position | None, after: Position) -> str:
    """A shift ends where the log does: then it is told."""
    if not isinstance(to, Shift) or before is None or before.sequence is None or after.sequence is None:
        return ""
    went = after.sequence - before.sequence
    if went == to.events:
        return ""
    ends = "begins" if to.events < 0 else "ends"
    return f"partition {partition} moves by {went}, not by {to.events}: the log {ends} there"


async def seek(
    store: Store,
    group: Group,
    seekings: Sequence[Seeking],
    who: Who,
    clock: Clock,
    told: Callable[[str], None] = lambda line: None,
) -> None:
    """Carry it out. In a group that runs, just these partitions are paused until they have been moved.

    `told` is given what is waited for, in words. `Transient` when owners do not let go of them in time; whatever ends
    it, nothing stays paused that was not so before.
    """
    visit = Visit(store, group, who, clock, kind="seek", told=told)
    errands = {
        one.partition: Errand(f"to {one.after} by {who.by}", partial(_moved, to=one.after), one.after)
        for one in seekings
    }
    try:
        await visit.make(errands)
    finally:
        if moved := {name: changed for name, changed in visit.done.items() if changed is not None}:
            await steerable(store).record(group, who.did("seek", _what(moved)))


def _moved(record: Checkpoint, to: Position) -> Checkpoint:
    """There, with nothing remembered of what failed where it was. Letters stay, and so do keys behind them."""
    notes = notes_of(record)
    kept = Notes(parked=notes.parked, redriven=notes.redriven)
    return replace(record, position=to, notes=kept.as_dict(), event_at=0.0)


def _what(moved: Mapping[PartitionId, Changed]) -> str:
    each = ", ".join(
        f"partition {name}: {changed.before.position if changed.before is not None else 'no checkpoint'}"
        f" -> {changed.after.position}"
        for name, changed in sorted(moved.items(), key=lambda one: natural(one[0]))
    )
    if len(moved) == 1:
        return each
    places = {changed.after.position for changed in moved.values()}
    return f"{len(moved)} partitions{f', to {places.pop()}' if len(places) == 1 else ''}: {each}"


async def _check_hub(store: Store, source: Source, group: Group) -> None:
    identity, ledger = await source.identity(), await ledger_of(store, group)
    if (identity.namespace, identity.hub) != (group.namespace, group.hub):
        raise Misconfigured(f"Group {group} is not of hub {identity.namespace}/{identity.hub}: name its own source.")
    if ledger.state.source and ledger.state.source != identity.made:
        raise HubReplaced(
            f"The checkpoints of group {group} belong to a hub that was deleted and made again. Delete the group: then"
            " it begins anew in the new hub."
        )


async def _positions(store: Store, group: Group) -> dict[PartitionId, Position]:
    return {record.partition: record.position for record in await operable(store).checkpoints(group)}


async def _positions_of(store: Store, source: Source, group: Group) -> dict[PartitionId, Position]:
    await _check_hub(store, source, group)
    return await _positions(store, group)


def _start(
    partition: PartitionId,
    to: Target,
    before: Position | None,
    bounds: Bounds | None,
    others: Mapping[PartitionId, Position],
) -> Start:
    if isinstance(to, Shift):
        return shifted(partition, to.events, before, bounds)
    if isinstance(to, FromGroup):
        if partition not in others:
            raise Misconfigured(
                f"Group {to.name!r} has no checkpoint of partition {partition}. Name the partitions that it has:"
                f" {listed(others) or 'none yet'}."
            )
        return others[partition]
    return to


def shifted(partition: PartitionId, events: int, before: Position | None, bounds: Bounds | None) -> Start:
    """So far from the checkpoint, but not beyond the ends of the log, which are named as such."""
    if before is None:
        raise Misconfigured(f"Partition {partition} has no checkpoint to count from: seek to a place instead.")
    oldest = bounds.oldest.sequence if bounds is not None and bounds.oldest is not None else None
    newest = bounds.newest.sequence if bounds is not None and bounds.newest is not None else None
    if before.sequence is None or oldest is None or newest is None:
        raise Misconfigured(f"The source does not number the events of partition {partition}: seek to a place instead.")
    sequence = before.sequence + events
    if sequence < oldest:
        return "earliest"
    return "latest" if sequence >= newest else Position(str(sequence), sequence)


async def _resolved(source: Source, partition: PartitionId, start: Start, bounds: Bounds | None) -> Position:
    try:
        return await source.resolve(partition, start)
    except PositionOutOfRange as error:
        oldest = bounds.oldest if bounds is not None and bounds.oldest is not None else "not known"
        newest = bounds.newest if bounds is not None and bounds.newest is not None else "not known"
        raise type(error)(
            f"Partition {partition}: {start} is not in the log. Its oldest event is at position {oldest}, its newest at"
            f" {newest}."
        ) from error
