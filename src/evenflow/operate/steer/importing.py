"""Imports the checkpoints of an EventProcessorHost into a group: reading its leases, planning, and writing.

A host keeps one lease for each partition, as JSON, with its checkpoint in it. Only the position is imported; owner and
epoch are for display.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from evenflow.errors import Misconfigured, PositionGone, PositionOutOfRange
from evenflow.model import Member, Position
from evenflow.operate.inspect.lag import lag_of
from evenflow.operate.inspect.survey import operable
from evenflow.operate.steer.checkpoint_edits import CheckpointEdit, CheckpointEditor
from evenflow.operate.steer.operator import check_partitions, steerable
from evenflow.operate.steer.seeking import check_hub
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model import Checkpoint, Group, PartitionId
    from evenflow.operate.steer.checkpoint_edits import CheckpointChange
    from evenflow.operate.steer.operator import Operator
    from evenflow.ports import Clock, Source, Store

BEFORE_ALL = "-1"
TTL_S = 8.0


class HostLease(Struct, frozen=True, kw_only=True):
    """The lease of one partition. Without an offset the host has never written a checkpoint."""

    partition: PartitionId
    offset: str | None
    sequence: int | None
    owner: str = ""
    epoch: int = 0


class PartitionImport(Struct, frozen=True, kw_only=True):
    """The planned change of one checkpoint; `after` None: no change."""

    partition: PartitionId
    owner: str
    before: Position | None
    after: Position | None
    lag_after: int | None = None
    note: str = ""


def host_lease(name: str, text: bytes | str) -> HostLease:
    """The hosts of .NET, Java and Python each spell the field names differently."""
    try:
        found = json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
        facts = {key.lower().replace("_", ""): value for key, value in found.items()}
        offset, sequence = facts.get("offset"), facts.get("sequencenumber")
        return HostLease(
            partition=_text(facts["partitionid"]),
            offset=None if offset in (None, "") else _text(offset),
            sequence=None if sequence is None else int(_text(sequence)),
            owner=str(facts.get("owner") or ""),
            epoch=int(_text(facts.get("epoch") or 0)),
        )
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise Misconfigured(
            f"{name} is not a lease of an EventProcessorHost, which is JSON with PartitionId, Offset and SequenceNumber"
            f" ({type(error).__name__}: {error}). Name the folder, or the container and --prefix, of the leases only."
        ) from error


def _text(value: Any) -> str:
    """Some hosts write numbers as strings, and strings as numbers; floats and lists are errors."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r:.60} is neither a string nor an integer")
    return str(value)


async def plan_import(store: Store, source: Source, group: Group, leases: Sequence[HostLease]) -> list[PartitionImport]:
    """What would be changed, without changing it. The group need not exist yet."""
    known = [partition.id for partition in await source.partitions()]
    check_partitions([lease.partition for lease in leases], known)
    twice = {lease.partition for lease in leases if sum(one.partition == lease.partition for one in leases) > 1}
    if twice:
        raise Misconfigured(
            f"There are two leases of partition {min(twice, key=natural)}. Name the leases of one group only."
        )
    there = await operable(store).peek(group) is not None
    if there:
        await check_hub(store, source, group)
    records = {one.partition: one.position for one in await operable(store).checkpoints(group)} if there else {}
    ordered = sorted(leases, key=lambda lease: natural(lease.partition))
    return [await _planned(source, lease, records.get(lease.partition)) for lease in ordered]


async def _planned(source: Source, lease: HostLease, before: Position | None) -> PartitionImport:
    one = PartitionImport(partition=lease.partition, owner=lease.owner, before=before, after=None)
    if lease.offset is None:
        return replace(one, note="not imported: its host never wrote a checkpoint")
    note = ""
    try:
        after = await source.resolve(lease.partition, _start(lease.offset, lease.sequence))
        await _check_agreement(source, lease)
    except PositionGone:
        after, note = (
            await source.resolve(lease.partition, "earliest"),
            "removed by retention: moves to the oldest event",
        )
    except PositionOutOfRange as error:
        raise PositionOutOfRange(f"{error} Is this the hub that the host read?") from error
    bounds = (await source.bounds([lease.partition])).get(lease.partition)
    if before is not None and _is_back(before, after):
        note = note or "moves backward"
    return replace(one, after=after, lag_after=lag_of(after, bounds), note=note)


def _start(offset: str, sequence: int | None) -> Any:
    return "earliest" if offset == BEFORE_ALL else Position(offset, sequence)


async def _check_agreement(source: Source, lease: HostLease) -> None:
    """Offset and sequence number must be of the same event. Else the lease was edited, or belongs to another hub."""
    assert lease.offset is not None
    if lease.sequence is None or lease.offset in (BEFORE_ALL, str(lease.sequence)):
        return
    try:
        found = await source.resolve(lease.partition, Position(lease.offset))
    except PositionGone:
        return  # this event was removed by retention: there is nothing to compare with
    if found.sequence not in (None, lease.sequence):
        raise Misconfigured(
            f"The lease of partition {lease.partition} says offset {lease.offset} and sequence number {lease.sequence},"
            f" but in the source this offset is event {found.sequence}. Was the lease edited by hand, or written for"
            " another hub? Correct it, or import the other partitions with --partition."
        )


def _is_back(before: Position, after: Position) -> bool:
    return before.sequence is not None and after.sequence is not None and after.sequence < before.sequence


async def import_checkpoints(
    store: Store,
    source: Source,
    group: Group,
    imports: Sequence[PartitionImport],
    who: Operator,
    clock: Clock,
    report: Callable[[str], None] = lambda line: None,
) -> Mapping[PartitionId, CheckpointChange]:
    """Write them like a seek: by compare-and-set, and recorded. Creates the group if it does not exist."""
    await _create_group(store, source, group, clock)
    editor = CheckpointEditor(store, group, who, clock, kind="import", report=report)
    edits = {
        one.partition: CheckpointEdit(f"to {one.after} by {who.by}", _edit(one.after), one.after)
        for one in imports
        if one.after is not None
    }
    try:
        await editor.apply(edits)
    finally:
        done = {name: changed for name, changed in editor.done.items() if changed is not None}
        if done:
            each = ", ".join(f"partition {name}: {done[name].after.position}" for name in sorted(done, key=natural))
            await steerable(store).record(group, who.did("import", each))
    return done


def _edit(to: Position) -> Any:
    async def edit(record: Checkpoint) -> Checkpoint:
        return replace(record, position=to, event_at=0.0)

    return edit


async def _create_group(store: Store, source: Source, group: Group, clock: Clock) -> None:
    """By joining and leaving, so that the group records the incarnation and mode of the hub that it belongs to."""
    if await operable(store).peek(group) is None:
        made = (await source.identity()).source
        member = Member(id=f"import-{clock.nonce()[:8]}", nonce=clock.nonce(), ttl_s=TTL_S, source=made)
        ledger = await store.heartbeat(group, member, None)
        assert ledger.me is not None
        await store.heartbeat(group, replace(ledger.me, leaving=True), ledger.cursor)
