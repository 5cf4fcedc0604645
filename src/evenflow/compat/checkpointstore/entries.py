"""The dictionaries that azure-eventhub and its checkpoint store exchange, and what they are in our records.

Nothing is decided here and nothing is asked. An etag says what a claim is conditional on: the lease's revision, and the
mark of its owner, which every renewal moves.
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
    """A lease at one moment. `mark` is None where nobody owns it, or its owner has no row."""

    history: int
    revision: int
    mark: int | None

    def __str__(self) -> str:
        return f"{self.history}.{self.revision}.{'' if self.mark is None else self.mark}"


NO_ETAG = Etag(-1, -1, None)
"""Of no lease that there ever was: an etag that this store never gave."""


class Claim(NamedTuple):
    """What one dictionary asks for."""

    entry: Mapping[str, Any]
    group: Group
    partition: PartitionId
    owner: str
    """ "" lets go of it."""
    etag: Etag | None
    """None: there shall be no lease yet."""


def group_of(namespace: str, hub: str, name: str) -> Group:
    """The very group that a Processor of this hub is in. Case has no meaning in a namespace, which is a host's name."""
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
    """Which checkpoint it is, and where it shall be."""
    group = group_of(*(_field(entry, name) for name in NAMES))
    offset, sequence = _field(entry, "offset"), _field(entry, "sequence_number")
    if offset is None:
        raise Misconfigured("a checkpoint has no offset: give the event that was received, with its offset.")
    if sequence is not None and not _is_whole(sequence):
        raise Misconfigured(f"sequence_number={sequence!r}: give a whole number.")
    partition = _text("partition_id", _field(entry, "partition_id"))
    return group, partition, Position(str(offset), None if sequence is None else int(sequence))


def ownership_of(names: tuple[str, str, str], lease: Lease, history: int, member: Member | None) -> dict[str, Any]:
    """One entry of a list; `member` is the owner's row."""
    return {
        **dict(zip(NAMES, names, strict=True)),
        "partition_id": lease.partition,
        "owner_id": lease.owner.id if lease.owner is not None else "",
        "etag": str(Etag(history, lease.revision, member.mark if member is not None else None)),
        "last_modified_time": modified_at(lease, member),
    }


def claimed(claim: Claim, lease: Lease, history: int, member: Member | None) -> dict[str, Any]:
    """The entry as it was given, with what is so now."""
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
    """The last change of the lease, or the last renewal by its owner: by the store's clock."""
    return max(lease.changed_at, member.heartbeat_at) if member is not None else lease.changed_at


def row_of(owner: Owner | None, members: Mapping[str, Member]) -> Member | None:
    """The row of this very incarnation."""
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
        raise Misconfigured(f"an ownership or checkpoint lacks {name!r}; it has {', '.join(sorted(entry))}.") from None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise Misconfigured(f"{name}={value!r}: give a text.")
    return value
