"""The leases of a group with their checkpoints, as JSON: for backups, inspection, or moving to another store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, ValidationError, json

from evenflow.errors import Corrupt, HubReplaced, Misconfigured
from evenflow.model import Position
from evenflow.operate.inspect.survey import operable
from evenflow.operate.steer.importing import HostLease
from evenflow.operate.steer.operator import is_its_hub, ledger_of
from evenflow.ports import Vanishing
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model import Group, Identity, PartitionId
    from evenflow.ports import Clock, Source, Store

LAYOUT = 1


class ExportedLease(Struct, frozen=True, kw_only=True):
    partition: str
    owner: str | None
    epoch: int
    offset: str | None
    """The checkpoint: the last handled event. None without a checkpoint."""
    sequence: int | None
    handled: int | None
    """Number of events, over all owners."""
    ended: bool


class Export(Struct, frozen=True, kw_only=True):
    evenflow: int
    """The version of this layout."""
    namespace: str
    hub: str
    group: str
    made: str
    """The incarnation and mode of the hub that the checkpoints belong to; "" when unknown."""
    exported_at: datetime | float
    """Files of earlier versions have seconds since 1970."""
    leases: tuple[ExportedLease, ...]


async def export(store: Store, group: Group, clock: Clock) -> Export:
    """A snapshot: a running group is not interrupted."""
    ledger = await ledger_of(store, group)
    leases = {lease.partition: lease for lease in ledger.leases}
    records = {record.partition: record for record in await operable(store).checkpoints(group)}
    for name, pause_request in ledger.state.pauses.items():
        if pause_request.damaged and name not in records:
            raise Corrupt(f"The leases cannot be exported completely. {pause_request.why}")
    exported = []
    for name in sorted({*leases, *records}, key=natural):
        lease, record = leases.get(name), records.get(name)
        exported.append(
            ExportedLease(
                partition=name,
                owner=lease.owner.id if lease is not None and lease.owner is not None else None,
                epoch=lease.epoch if lease is not None else 0,
                offset=record.position.offset if record is not None else None,
                sequence=record.position.sequence if record is not None else None,
                handled=record.ordinal if record is not None else None,
                ended=lease is not None and lease.ended,
            )
        )
    return Export(
        evenflow=LAYOUT,
        namespace=group.namespace,
        hub=group.hub,
        group=group.name,
        made=ledger.state.source,
        exported_at=datetime.fromtimestamp(int(clock.wall()), UTC),
        leases=tuple(exported),
    )


def read_export(name: str, text: bytes) -> Export:
    try:
        found = json.decode(text, type=Export)
    except (DecodeError, ValidationError) as error:
        raise Misconfigured(f"{name} does not contain leases written by `evenflow leases export`: {error}.") from error
    if found.evenflow > LAYOUT:
        raise Misconfigured(f"{name} was written by a newer evenflow (layout {found.evenflow}). Upgrade this one.")
    return found


async def leases_for(source: Source, exported: Export) -> list[HostLease]:
    """Every current partition with the position to continue at: partitions that were split or merged since continue in
    their children. HubReplaced when the source is another hub."""
    _check_hub(await source.identity(), exported)
    current = await source.partitions()
    names = {one.id for one in current}
    places = {one.partition: Position(one.offset, one.sequence) for one in exported.leases if one.offset is not None}
    owners = {one.partition: one.owner or "" for one in exported.leases}
    found = [
        HostLease(partition=one.partition, offset=one.offset, sequence=one.sequence, owner=one.owner or "")
        for one in exported.leases
        if one.partition in names
    ]
    for child in current:
        after = {name: places[name] for name in child.parents if name in places}
        if child.id not in owners and after:
            position = await _child_start(source, child.id, after)
            found.append(HostLease(partition=child.id, offset=position.offset, sequence=position.sequence))
    gone = [name for name in places if name not in names and not any(name in one.parents for one in current)]
    if gone and not found:
        raise Misconfigured(
            f"The source has neither partition {', '.join(gone)} nor children of it. Is this the right source?"
        )
    return found


async def _child_start(source: Source, child: PartitionId, after: Mapping[PartitionId, Position]) -> Position:
    if isinstance(source, Vanishing):
        return await source.child_start(child, after)
    return await source.resolve(child, "earliest")


def _check_hub(identity: Identity, exported: Export) -> None:
    if (identity.namespace, identity.hub) != (exported.namespace, exported.hub):
        raise Misconfigured(
            f"These leases are of hub {exported.namespace}/{exported.hub}, and the source is"
            f" {identity.namespace}/{identity.hub}: their positions are not valid there. Name the source of that hub."
        )
    if not is_its_hub("These leases are of a group that reads", exported.made, identity):
        raise HubReplaced(
            f"The hub {identity.namespace}/{identity.hub} was deleted and created again since these leases were"
            " exported: their positions are not valid in the new hub. Start at its beginning, or at a time."
        )
