"""Estimates the lag of each lease from the lease store and the monitored container, without contacting any host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenflow.core.lineage import open_ones
from evenflow.errors import EvenflowError
from evenflow.model import Group
from evenflow.operate.inspect.lag import lag_of
from evenflow.operate.inspect.survey import pieces_of, survey
from evenflow.ports import Dated, Vanishing
from evenflow.runtime.coordinator import check_source
from evenflow.text import natural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from evenflow.model import PartitionId, Position
    from evenflow.operate.inspect.survey import Survey
    from evenflow.ports import Source, Store
    from evenflow.runtime.settings import Settings


class LeaseEstimate(Struct, frozen=True, kw_only=True):
    """The lag of one lease."""

    lease_token: str
    owner: str | None
    """The instance that owns it; None without an owner."""
    remaining: int | None
    """Number of changes still to be handled, from their sequence numbers; None if unknown. After a split or a merge it
    may be too high, but never too low."""
    since: datetime | None = None
    """When the first of them was made; None if there is none, or the time is unknown."""
    continuation: str | None
    """The position of the checkpoint. None before the first checkpoint: `remaining` counts from the start position."""


async def estimate(source: Source, store: Store, settings: Settings) -> list[LeaseEstimate]:
    identity = await source.identity()
    found = await survey(store, Group(identity.namespace, identity.hub, settings.group), source, moves=0)
    if found.ledger is not None:
        check_source(found.group, found.ledger, identity.source)
    places = await _places(source, found, settings)
    pieces = pieces_of(source, {name: place for name, place in places.items() if place is not None})
    remaining = {
        name: 0 if name in found.vanished else lag_of(place, found.bounds.get(name), pieces.get(name, ()))
        for name, place in places.items()
    }
    behind = {name: place for name, place in places.items() if place is not None and remaining[name] != 0}
    dated: object = source
    since = await dated.waiting_since(behind) if isinstance(dated, Dated) and behind else {}
    continuations = {record.partition: record.position.offset for record in found.checkpoints}
    return [
        LeaseEstimate(
            lease_token=name,
            owner=_owner(found, name),
            remaining=0 if name in since and since[name] is None else remaining[name],
            since=since.get(name),
            continuation=continuations.get(name),
        )
        for name in places
    ]


async def _places(source: Source, found: Survey, settings: Settings) -> Mapping[PartitionId, Position | None]:
    """The position after which each lease continues or would start; leases that have ended are left out."""
    records = {record.partition: record.position for record in found.checkpoints}
    names = sorted(open_ones(found.partitions, found.leases), key=natural)
    return {name: records.get(name) or await _start(source, found, settings, name, records) for name in names}


async def _start(
    source: Source, found: Survey, settings: Settings, name: PartitionId, records: Mapping[PartitionId, Position]
) -> Position | None:
    """The start position: of a child, after the checkpoints of its parents; of others, as the option `start` says."""
    vanishing: object = source
    if isinstance(vanishing, Vanishing) and any(parent in records for parent in found.parents.get(name, ())):
        return found.starts.get(name)
    lease = found.leases.get(name)
    late = lease.late if lease is not None else bool(found.leases)
    try:
        return await source.resolve(name, settings.start_of(name, late=late))
    except EvenflowError:
        return None


def _owner(found: Survey, name: PartitionId) -> str | None:
    lease = found.leases.get(name)
    return lease.owner.id if lease is not None and lease.owner is not None else None
