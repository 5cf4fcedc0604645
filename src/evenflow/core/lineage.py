"""Which partition follows which, where partitions split and merge: whom a child has to wait for.

Pure. A parent counts as ended when its lease says so, which outlives everybody; a parent that neither the source nor
the store knows was over before the group began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.model import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from evenflow.model import Checkpoint, Lease, Partition, PartitionId, Position


def parents_of(
    known: Iterable[Partition], listed: Collection[PartitionId], *, vanish: bool
) -> dict[PartitionId, tuple[PartitionId, ...]]:
    """Of each child, the parents that it may have to wait for.

    Where a parent can be read to its end, one that is not listed any more has expired, and nobody can end it. Where
    parents `vanish` as soon as they have children, being gone says nothing: somebody may still handle what was read.
    """
    found = {one.id: tuple(name for name in one.parents if vanish or name in listed) for one in known}
    return {name: parents for name, parents in found.items() if parents}


def unended(
    parents: Mapping[PartitionId, tuple[PartitionId, ...]], open_ones: Collection[PartitionId]
) -> dict[PartitionId, tuple[PartitionId, ...]]:
    """The children whose parents are not all over, each with those it waits for. `open_ones`: what has not ended."""
    found = {
        child: tuple(name for name in names if name in open_ones)
        for child, names in parents.items()
        if child in open_ones
    }
    return {child: names for child, names in found.items() if names}


def open_ones(partitions: Iterable[PartitionId], leases: Mapping[PartitionId, Lease]) -> set[PartitionId]:
    """All that the source or a lease names, without those that have ended."""
    names = set(partitions).union(leases)
    return {name for name in names if name not in leases or not leases[name].ended}


def attendant_of(
    partition: PartitionId, known: Collection[Partition], leases: Mapping[PartitionId, Lease]
) -> PartitionId | None:
    """Whose owner looks after the dead letters of a partition that has ended: its first child, or the first of that
    one's, and so on; None when nobody knows of any."""
    children = sorted(one.id for one in known if partition in one.parents)
    for child in children:
        lease = leases.get(child)
        if lease is None or not lease.ended:
            return child
    return next(filter(None, (attendant_of(child, known, leases) for child in children)), None)


def left_at(parent: Lease, record: Checkpoint) -> Position:
    """How far a parent has come, for its children. One that appeared late and never got anywhere knows no more than
    those before it, and less where it was gone before anybody had seen whom it follows: it says nothing."""
    return BEGINNING if parent.late and record.ordinal == 0 else record.position


def ended_into(children: Sequence[Partition]) -> str:
    """The reason of the lease that says so, for people."""
    names = ", ".join(child.id for child in children)
    if not names:
        return "ended"
    return f"ended: {'merged' if len(children) == 1 else 'split'} into {names}"


def children_told(reason: str) -> tuple[PartitionId, ...]:
    """Who goes on with a partition that has ended, by the reason of its lease."""
    _, _, names = reason.partition(" into ")
    return tuple(names.split(", ")) if names and reason.startswith("ended: ") else ()
