"""The ownership table: from what a store and a source tell, to one row a partition and one row a member.

Pure, so that the command line, the console and tests make the same of the same facts. What is not known stays None,
and is never shown as zero. Times are wall-clock times, for people: nothing is decided by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from evenflow.model import Bounds, Checkpoint, Lease, Ledger, Member, Owner, PartitionId, Position

PartitionStatus: TypeAlias = Literal[
    "ok",
    "starting",
    "moving",
    "paused",
    "unowned",
    "owner gone",
    "owner silent",
    "events gone",
    "ended",
]
"""In words. starting: its owner has not sealed it yet; moving: its owner leaves; owner gone: the lease names somebody
who has no member row; owner silent: no beat for a whole time-to-live; events gone: retention was faster."""

MemberStatus: TypeAlias = Literal["alive", "silent", "leaving", "unknown"]


class PartitionRow(Struct, frozen=True, kw_only=True):
    partition: PartitionId
    owner: str | None
    epoch: int | None
    offset: str | None
    sequence: int | None
    newest: int | None
    lag: int | None
    """Events after the checkpoint that can still be read."""
    changed_at: float | None
    """When the lease last changed."""
    checkpoint_at: float | None
    reason: str | None
    """Why the lease last changed."""
    status: PartitionStatus


class MemberRow(Struct, frozen=True, kw_only=True):
    id: str
    incarnation: int
    partitions: int
    weight: float
    host: str
    pid: int
    version: str
    started_at: float
    beat_at: float
    """When the store had its last beat, by the store's wall clock: for people, who know how far to trust it."""
    beat_s: float
    ttl_s: float
    silent_s: float | None
    """How long its beat has stood still, as far as was watched; None when nobody has watched."""
    status: MemberStatus


def partition_rows(
    ledger: Ledger | None,
    checkpoints: Iterable[Checkpoint],
    bounds: Mapping[PartitionId, Bounds],
    partitions: Iterable[PartitionId] = (),
    silences: Mapping[Owner, float | None] | None = None,
) -> list[PartitionRow]:
    """One row for each partition that anybody names: the source (`partitions`), a lease or a checkpoint."""
    leases = {lease.partition: lease for lease in ledger.leases} if ledger is not None else {}
    records = {record.partition: record for record in checkpoints}
    return [
        _partition_row(
            name,
            leases.get(name),
            records.get(name),
            bounds.get(name),
            status_of(leases.get(name), records.get(name), bounds.get(name), ledger, silences or {}),
        )
        for name in sorted({*partitions, *leases, *records, *bounds}, key=natural)
    ]


def member_rows(ledger: Ledger | None, silences: Mapping[Owner, float | None] | None = None) -> list[MemberRow]:
    """One row for each member, with how many partitions it owns."""
    if ledger is None:
        return []
    owned = [lease.owner for lease in ledger.leases if not lease.ended]
    return [
        _member_row(member, owned.count(member.owner), (silences or {}).get(member.owner))
        for member in sorted(ledger.members, key=lambda member: natural(member.id))
    ]


def lag_of(position: Position | None, bounds: Bounds | None) -> int | None:
    """How many events come after the position, counted from the oldest that is still there; None when unknown."""
    if position is None or position.sequence is None:
        return None
    if bounds is None or bounds.newest is None or bounds.newest.sequence is None:
        return None
    oldest = bounds.oldest.sequence if bounds.oldest is not None else None
    after = position.sequence if oldest is None else max(position.sequence, oldest - 1)
    return max(0, bounds.newest.sequence - after)


def status_of(
    lease: Lease | None,
    record: Checkpoint | None,
    bounds: Bounds | None,
    ledger: Ledger | None,
    silences: Mapping[Owner, float | None],
) -> PartitionStatus:
    """The most telling word: what keeps events from being handled comes first."""
    if lease is not None and lease.ended:
        return "ended"
    if ledger is not None and lease is not None and ledger.state.pause_of(lease.partition) is not None:
        return "paused"
    if ledger is None or lease is None or lease.owner is None:
        return "unowned"
    member = next((member for member in ledger.members if member.owner == lease.owner), None)
    if member is None:
        return "owner gone"
    if (silences.get(lease.owner) or 0.0) >= lease.ttl_s > 0:
        return "owner silent"
    if _is_behind_retention(record, bounds):
        return "events gone"
    if record is None or record.epoch < lease.epoch:
        return "starting"
    return "moving" if member.retiring else "ok"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """An order for people: 2 before 10, consumer-2 before consumer-10."""
    parts: list[tuple[int, int, str]] = []
    rest = name
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = digits or next((at for at, letter in enumerate(rest) if letter in "0123456789"), len(rest))
        part, rest = rest[:length], rest[length:]
        parts.append((0, int(part), "") if digits else (1, 0, part))
    return tuple(parts)


def _is_behind_retention(record: Checkpoint | None, bounds: Bounds | None) -> bool:
    if record is None or record.position.sequence is None or bounds is None or bounds.oldest is None:
        return False
    return bounds.oldest.sequence is not None and record.position.sequence + 1 < bounds.oldest.sequence


def _partition_row(
    name: PartitionId, lease: Lease | None, record: Checkpoint | None, bounds: Bounds | None, status: PartitionStatus
) -> PartitionRow:
    position = record.position if record is not None else None
    newest = bounds.newest if bounds is not None else None
    return PartitionRow(
        partition=name,
        owner=lease.owner.id if lease is not None and lease.owner is not None else None,
        epoch=lease.epoch if lease is not None else None,
        offset=position.offset if position is not None else None,
        sequence=position.sequence if position is not None else None,
        newest=newest.sequence if newest is not None else None,
        lag=lag_of(position, bounds),
        changed_at=lease.changed_at if lease is not None else None,
        checkpoint_at=record.changed_at if record is not None else None,
        reason=lease.reason if lease is not None else None,
        status=status,
    )


def _member_row(member: Member, partitions: int, silent_s: float | None) -> MemberRow:
    status: MemberStatus = "unknown" if silent_s is None else "alive"
    if silent_s is not None and silent_s >= member.ttl_s:
        status = "silent"
    elif member.retiring:
        status = "leaving"
    return MemberRow(
        id=member.id,
        incarnation=member.incarnation,
        partitions=partitions,
        weight=member.weight,
        host=member.host,
        pid=member.pid,
        version=member.version,
        started_at=member.started_at,
        beat_at=member.beat_at,
        beat_s=member.beat_s,
        ttl_s=member.ttl_s,
        silent_s=silent_s,
        status=status,
    )
