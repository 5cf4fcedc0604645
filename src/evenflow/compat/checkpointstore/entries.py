"""Translates the dictionaries that azure-eventhub exchanges with its checkpoint store to our records, and back.

This module makes no decisions and sends no requests. A claim is conditional on its etag: the revision of the lease, and
the heartbeat counter of its owner, which every renewal increments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.errors import Misconfigured
from evenflow.model import Group, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model import Checkpoint, Lease, Member, Owner, PartitionId

_ETAG = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]*)")
NAMES = ("fully_qualified_namespace", "eventhub_name", "consumer_group")


class Etag(NamedTuple):
    """The state of a lease. `mark` is the heartbeat counter of its owner; None without an owner or its member row."""

    history: int
    revision: int
    mark: int | None

    def __str__(self) -> str:
        return f"{self.history}.{self.revision}.{'' if self.mark is None else self.mark}"


NO_ETAG = Etag(-1, -1, None)
"""Matches no lease: for an etag that this store never issued."""


class Claim(NamedTuple):
    """One claim of a partition, from azure-eventhub's dictionary."""

    entry: Mapping[str, Any]
    group: Group
    partition: PartitionId
    owner: str
    """ "" releases the partition."""
    etag: Etag | None
    """None if no lease may exist yet."""


def group_of(namespace: str, hub: str, name: str) -> Group:
    """The group of a Processor on this hub. A namespace is a host name, so its case does not matter."""
    namespace, hub, name = (_text(*field) for field in zip(NAMES, (namespace, hub, name), strict=True))
    return Group(namespace.lower(), hub, name)


def claim_of(entry: Mapping[str, Any]) -> Claim:
    group = group_of(*(_field(entry, name) for name in NAMES))
    partition, owner = (
        _text("partition_id", _field(entry, "partition_id")),
        _text("owner_id", _field(entry, "owner_id")),
    )
    etag = entry.get("etag")
    return Claim(entry, group, partition, owner, _etag_of(etag) if etag else None)


def position_of(entry: Mapping[str, Any]) -> tuple[Group, PartitionId, Position]:
    """The group, partition and position of a checkpoint."""
    group = group_of(*(_field(entry, name) for name in NAMES))
    offset, sequence = _field(entry, "offset"), _field(entry, "sequence_number")
    if offset is None:
        raise Misconfigured("The checkpoint has no offset; pass the event as it was received.")
    if sequence is not None and not _is_whole(sequence):
        raise Misconfigured(f"sequence_number={sequence!r}: give an integer.")
    partition = _text("partition_id", _field(entry, "partition_id"))
    return group, partition, Position(str(offset), None if sequence is None else int(sequence))


def ownership_of(names: tuple[str, str, str], lease: Lease, history: int, member: Member | None) -> dict[str, Any]:
    """One entry of the ownership list; `member` is the row of the owner."""
    return {
        **dict(zip(NAMES, names, strict=True)),
        "partition_id": lease.partition,
        "owner_id": lease.owner.id if lease.owner is not None else "",
        "etag": str(Etag(history, lease.revision, member.mark if member is not None else None)),
        "last_modified_time": modified_at(lease, member),
    }


def claimed(claim: Claim, lease: Lease, history: int, member: Member | None) -> dict[str, Any]:
    """The entry of the claim with its new etag and time."""
    etag = Etag(history, lease.revision, member.mark if member is not None else None)
    return {**claim.entry, "etag": str(etag), "last_modified_time": modified_at(lease, member)}


def checkpoint_of(names: tuple[str, str, str], record: Checkpoint) -> dict[str, Any]:
    return {
        **dict(zip(NAMES, names, strict=True)),
        "partition_id": record.partition,
        "offset": record.position.offset,
        "sequence_number": record.position.sequence,
    }


def modified_at(lease: Lease, member: Member | None) -> float:
    """The time of the last change of the lease or the last renewal by its owner, by the store's clock."""
    return max(lease.changed_at, member.heartbeat_at) if member is not None else lease.changed_at


def row_of(owner: Owner | None, members: Mapping[str, Member]) -> Member | None:
    """The member row of this owner; None if it belongs to another incarnation."""
    member = members.get(owner.id) if owner is not None else None
    return member if member is not None and member.owner == owner else None


def _etag_of(text: object) -> Etag:
    found = _ETAG.fullmatch(str(text))
    if found is None:
        return NO_ETAG
    return Etag(int(found[1]), int(found[2]), int(found[3]) if found[3] else None)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.removeprefix("-").isdecimal())


def _field(entry: Mapping[str, Any], name: str) -> Any:
    try:
        return entry[name]
    except KeyError:
        raise Misconfigured(
            f"The ownership or checkpoint has no {name!r}; it has only {', '.join(sorted(entry))}."
        ) from None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise Misconfigured(f"{name}={value!r}: give a string.")
    return value
